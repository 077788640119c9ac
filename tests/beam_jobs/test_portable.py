"""The portable runner of Flink and Spark, with Beam's own job server in Python.

Flink and Spark themselves are not run: their Java job servers are not part of the installation. Everything on this side
of the job server is as with a cluster.
"""

import os
import socket
import sys
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.portability.common_urns import primitives
from apache_beam.runners.portability.portable_runner import PortableRunner

from beam_jobs.graph import build_graph
from beam_jobs.options import choose_runner, temporary_files_in
from bench.measure.ports import free_port
from convert.errors import EXIT_FAILED, UsageError
from tests.fixtures.command import run, start, tree, wait_until
from tests.fixtures.datasets.rlds_dataset import RldsDataset
from tests.fixtures.same_conversion import arguments, assert_complete

_SERVICE = "apache_beam.runners.portability.local_job_service_main"
_WORKERS = "apache_beam.runners.worker.worker_pool_main"


@pytest.mark.long
def test_job_server_and_workers_that_run_elsewhere_write_what_the_in_memory_runner_writes(
    dataset: RldsDataset, tmp_path: Path, in_memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Beam's worker pool starts what is called python.
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=":")
    server, workers = free_port(), free_port()
    options = ["--runner", "PortableRunner", "--job_endpoint", f"localhost:{server}"]
    options += ["--environment_type", "EXTERNAL", "--environment_config", f"localhost:{workers}"]
    with (
        start("--port", str(server), module=_SERVICE) as service,
        start("--service_port", str(workers), module=_WORKERS) as pool,
    ):
        for port in (server, workers):
            wait_for_port(port)
        temporary = tmp_path / "temporary"
        temporary.mkdir()
        monkeypatch.setenv("TMPDIR", str(temporary))
        assert_complete(run(*arguments(dataset, tmp_path / "out"), *options))
        assert tree(tmp_path / "out") == in_memory
        assert list(temporary.iterdir()) == []
        failed = run(*arguments(dataset, tmp_path / "fails"), *options, "--on-error", "fail")
        assert failed.code == EXIT_FAILED
        assert "/demo/1.0.0/demo-" in failed.error()
        assert list(temporary.iterdir()) == []
        assert service.process.poll() is None
        assert pool.process.poll() is None


def wait_for_port(port: int) -> None:
    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("localhost", port)) == 0

    assert wait_until(answers, seconds=120, poll=0.1)


LEAVES = {primitives.IMPULSE.urn, primitives.GROUP_BY_KEY.urn, primitives.FLATTEN.urn, primitives.PAR_DO.urn}
"""What the translators of Flink's and Spark's job servers take: ParDos are fused into stages of the SDK's workers, the
rest is the runner's own."""


def test_graph_has_only_what_the_job_servers_translate(dataset: RldsDataset, tmp_path: Path) -> None:
    conversion = dataset.conversion(tmp_path)
    with temporary_files_in(tmp_path):
        pipeline = beam.Pipeline(runner=PortableRunner())
        build_graph(pipeline, conversion.jobs, {"demo": conversion.plan})
        graph = PortableRunner.get_proto_pipeline(pipeline, PipelineOptions())
    transforms = graph.components.transforms
    leaves = [first for first in transforms.values() if not first.subtransforms and first.spec.urn]
    assert {first.spec.urn for first in leaves} <= LEAVES
    for first in leaves:
        if first.spec.urn == primitives.PAR_DO.urn:
            payload = beam_runner_api_pb2.ParDoPayload.FromString(first.spec.payload)
            assert first.environment_id in graph.components.environments
            assert not (payload.state_specs or payload.timer_family_specs or payload.side_inputs)
            assert not (payload.restriction_coder_id or payload.requires_stable_input)
    assert not graph.requirements


def refused(*arguments: str) -> str:
    with pytest.raises(UsageError) as caught:
        choose_runner(arguments, num_workers=1, program_flags=[])
    return str(caught.value)


def test_job_server_that_does_not_answer_is_named() -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    error = refused("--runner=PortableRunner", f"--job_endpoint={endpoint}")
    assert error == f"--job_endpoint {endpoint}: nothing answers there (Connection refused)"
    error = refused("--runner=PortableRunner", "--job_endpoint=127.0.0.1:99999")
    assert error.startswith("--job_endpoint 127.0.0.1:99999: nothing answers there (")


def test_portable_runner_needs_a_job_server() -> None:
    assert "needs --job_endpoint HOST:PORT" in refused("--runner=PortableRunner")
