"""The graph as a service gets it: portable, small, and accepted by Dataflow's translation. Nothing goes out."""

import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.portability.common_urns import primitives
from apache_beam.runners.pipeline_context import PipelineContext
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.transforms.environments import EmbeddedPythonEnvironment

from beam_jobs.graph import build_graph
from beam_jobs.options import choose_runner, open_runner, temporary_files_in
from convert.errors import EXIT_USAGE
from convert.jobs import SplitJob
from convert.journal.journal import Journal
from convert.plan import Conversion
from convert.run.command import main
from convert.run.finish import finalise
from tests.fixtures.command import write_damaged_dataset
from tests.fixtures.datasets.rlds_dataset import merge_splits
from tests.fixtures.object_stores import object_store, objects, upload_tree, versions

DATAFLOW = (
    "--runner=DataflowRunner",
    "--project=a-project",
    "--region=europe-west4",
    "--temp_location=gs://a-bucket/tmp",
    "--no_auth",
    "--dry_run=True",
)
"""With dry_run Beam translates the graph into Dataflow's job and stops before it asks any server."""


@pytest.fixture(scope="module")
def conversion(tmp_path_factory: pytest.TempPathFactory) -> Conversion:
    root = tmp_path_factory.mktemp("dataflow")
    return write_damaged_dataset(root / "source").conversion(root / "out")


SPLITS = [SplitJob(dataset="demo", split=split, shards=(0,), count=1) for split in ("train", "val")]


@pytest.fixture(scope="module", params=["shards", "splits"])
def graph(
    request: pytest.FixtureRequest, conversion: Conversion, tmp_path_factory: pytest.TempPathFactory
) -> beam_runner_api_pb2.Pipeline:
    """The graph that converts shards, or merges splits, in Beam's portable form."""
    with temporary_files_in(tmp_path_factory.mktemp("temporary")):
        pipeline = beam.Pipeline()
        build_graph(pipeline, conversion.jobs if request.param == "shards" else SPLITS, {"demo": conversion.plan})
        return pipeline.to_runner_api()


def par_do(graph: beam_runner_api_pb2.Pipeline) -> tuple[Any, beam_runner_api_pb2.ParDoPayload]:
    """The transform that converts, and what it says of itself."""
    (transform,) = [first for first in graph.components.transforms.values() if first.unique_name == "Convert"]
    return transform, beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)


def test_graph_has_one_shuffle_and_it_is_before_any_image_is_read(graph: beam_runner_api_pb2.Pipeline) -> None:
    shuffles = [
        name
        for name, first in graph.components.transforms.items()
        if first.spec.urn == primitives.GROUP_BY_KEY.urn and "Spread" in first.unique_name
    ]
    every = [first for first in graph.components.transforms.values() if first.spec.urn == primitives.GROUP_BY_KEY.urn]
    assert len(shuffles) == len(every) == 1
    (produced,) = par_do(graph)[0].outputs.values()
    assert not [first for first in graph.components.transforms.values() if produced in first.inputs.values()]


def test_converting_is_a_plain_par_do(graph: beam_runner_api_pb2.Pipeline) -> None:
    transform, payload = par_do(graph)
    assert transform.spec.urn == primitives.PAR_DO.urn
    assert list(transform.outputs) == ["None"]
    assert not payload.side_inputs
    assert not payload.state_specs
    assert not payload.timer_family_specs
    assert not payload.requests_finalization
    assert not payload.requires_stable_input


def test_everything_is_bounded(graph: beam_runner_api_pb2.Pipeline) -> None:
    bounded = beam_runner_api_pb2.IsBounded.BOUNDED
    assert {first.is_bounded for first in graph.components.pcollections.values()} == {bounded}


def test_graph_grows_by_less_than_a_kilobyte_a_shard(conversion: Conversion) -> None:
    assert len(pickle.dumps(conversion.jobs)) / len(conversion.jobs) < 1000
    large = SplitJob(dataset="demo", split="train", shards=tuple(range(20_000)), count=20_000)
    assert len(pickle.dumps(large)) < 100_000


@pytest.fixture
def apiclient(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of Beam that makes Dataflow's requests."""
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    return pytest.importorskip(
        "apache_beam.runners.dataflow.internal.apiclient",
        reason="Dataflow's libraries are not installed; pip install '.[dataflow]'",
        exc_type=ImportError,
    )


def submit(conversion: Conversion, *more: str) -> Any:
    """Run the pipeline on the Dataflow runner up to the request; returns its job."""
    choice = choose_runner((*DATAFLOW, *more), num_workers=1, program_flags=[])
    with tempfile.TemporaryDirectory() as scratch, open_runner(choice, Path(scratch)) as (runner, options):
        pipeline = beam.Pipeline(runner=runner, options=options)
        build_graph(pipeline, conversion.jobs, {"demo": conversion.plan})
        result: Any = pipeline.run()
        return result.job


def test_dataflow_accepts_the_graph_as_a_batch_job(apiclient: Any, conversion: Conversion) -> None:
    job = json.loads(submit(conversion).json())
    assert job["type"] == "JOB_TYPE_BATCH"


def test_graph_that_dataflow_gets_converts_when_it_is_run_here(apiclient: Any, conversion: Conversion) -> None:
    graph = submit(conversion).proto_pipeline
    local = EmbeddedPythonEnvironment.default().to_runner_api(PipelineContext())
    for environment in graph.components.environments.values():
        environment.CopyFrom(local)
    Journal(conversion.plan.output).begin(conversion.parameters)
    FnApiRunner().run_via_runner_api(graph, PipelineOptions([])).wait_until_finish()
    merge_splits(conversion)
    assert finalise(conversion) is not None


@pytest.mark.long
def test_dry_run_of_the_command_translates_and_writes_nothing(
    apiclient: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    dataset = write_damaged_dataset(tmp_path / "source")
    with object_store("s3", tmp_path / "log") as store:
        bucket = store.new_bucket()
        upload_tree(dataset.path, f"{bucket}/rlds/demo/1.0.0")
        arguments = ["--datasets", "demo", "--source", f"{bucket}/rlds", "--output", f"{bucket}/out"]
        arguments += ["--config", str(dataset.registry())]
        with temporary_files_in(temporary):
            assert main([*arguments, *DATAFLOW]) == 0
        assert list(temporary.iterdir()) == []
        assert "nothing was sent or converted" in capsys.readouterr().out
        assert objects(f"{bucket}/out") == {}
        main(arguments)
        before = versions(f"{bucket}/out")
        assert main([*arguments, "--overwrite", *DATAFLOW]) == 0
        assert versions(f"{bucket}/out") == before


def test_paths_that_no_worker_of_dataflow_can_reach_are_one_error(
    apiclient: Any, conversion: Conversion, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(conversion.source.path)
    arguments = ["--datasets", "demo", "--source", str(source.parents[1]), "--output", str(tmp_path / "out")]
    assert main([*arguments, "--config", str(source.parents[1] / "demo.yaml"), *DATAFLOW]) == EXIT_USAGE
    assert capsys.readouterr().err == (
        f"error: the workers of DataflowRunner cannot reach {source} and others; copy the source to a bucket, and give "
        "gs:// or s3:// for --source and --output\n"
    )
    assert not (tmp_path / "out").exists()


def test_each_worker_of_dataflow_has_one_thread_unless_more_are_asked_for(apiclient: Any, tmp_path: Path) -> None:
    threads = []
    for more in ((), ("--number_of_worker_harness_threads=3",)):
        choice = choose_runner((*DATAFLOW, *more), num_workers=1, program_flags=[])
        with open_runner(choice, tmp_path) as (_, options):
            threads.append(options.view_as(DebugOptions).number_of_worker_harness_threads)
    assert threads == [1, 3]
