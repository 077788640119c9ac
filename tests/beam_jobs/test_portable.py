"""Portable runners: Flink's and Spark's as Beam starts them, behind them Beam's own job server in Python.

Flink and Spark themselves are not run: their jars are not part of the installation. Their runners are the portable one
with a job server that they start from a jar; here the launcher of that jar starts Beam's Python job server on the port
instead. So everything on this side of the job server is as with a cluster.
"""

import os
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import (
    PipelineOptions,
)
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.portability.common_urns import primitives
from apache_beam.runners.portability.flink_runner import FlinkRunner
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.portability.spark_runner import SparkRunner

from beam_jobs import job_server
from beam_jobs.graph import build_graph
from beam_jobs.options import choose_runner, open_runner, temporary_files_in
from convert.errors import EXIT_FAILED, EXIT_USAGE, UsageError
from tests.fixtures.command import run, start, tree, wait_until
from tests.fixtures.datasets.rlds_dataset import RldsDataset
from tests.fixtures.same_conversion import arguments, assert_complete, free_port

_SERVICE = "apache_beam.runners.portability.local_job_service_main"
_WORKERS = "apache_beam.runners.worker.worker_pool_main"
RUNNERS = {"flink": FlinkRunner, "spark": SparkRunner}


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    path = tmp_path / "job-server.jar"
    path.touch()
    return path


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """In the place of ``java``: notes its arguments and starts Beam's Python job server on the port that they name."""
    path = tmp_path / "launcher"
    path.write_text(
        f"#!/bin/bash\nprintf '%s\\n' \"$@\" > {shlex.quote(str(tmp_path / 'arguments'))}\n"
        'while [ "$1" != --job-port ]; do shift; done\n'
        f'exec {shlex.quote(sys.executable)} -m {_SERVICE} --port "$2"\n'
    )
    path.chmod(0o755)
    return path


@pytest.mark.long
@pytest.mark.parametrize("name", ["flink", pytest.param("spark", marks=pytest.mark.slow)])
def test_runner_starts_the_jar_that_is_named_and_writes_what_the_in_memory_one_writes(
    dataset: RldsDataset, tmp_path: Path, in_memory: dict[str, str], jar: Path, launcher: Path, name: str
) -> None:
    options = ["--runner", name, f"--{name}_job_server_jar", str(jar), "--job_server_java_launcher", str(launcher)]
    with start(*arguments(dataset, tmp_path / "out"), *options) as command:
        assert_complete(command.wait())
        assert command.processes() == []
    assert tree(tmp_path / "out") == in_memory
    values = (tmp_path / "arguments").read_text().splitlines()
    assert values[values.index("-jar") + 1] == str(jar)


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


def translate(dataset: RldsDataset, output: Path, name: str, *options: str) -> beam_runner_api_pb2.Pipeline:
    """The pipeline that a runner's job server gets."""
    choice = choose_runner((f"--runner={name}", *options), num_workers=1, program_flags=[])
    parsed = PipelineOptions(list(choice.arguments))
    runner = RUNNERS[name]()
    conversion = dataset.conversion(output)
    output.mkdir(exist_ok=True)
    with temporary_files_in(output):
        runner.default_environment(parsed)
        pipeline = beam.Pipeline(options=parsed)
        build_graph(pipeline, conversion.jobs, {"demo": conversion.plan})
        return PortableRunner.get_proto_pipeline(pipeline, parsed)


LEAVES = {primitives.IMPULSE.urn, primitives.GROUP_BY_KEY.urn, primitives.FLATTEN.urn, primitives.PAR_DO.urn}
"""What the translators of Flink's and Spark's job servers take: ParDos are fused into stages of the SDK's workers, the
rest is the runner's own."""


@pytest.mark.parametrize("name", RUNNERS)
def test_graph_has_only_what_the_job_servers_translate(dataset: RldsDataset, tmp_path: Path, name: str) -> None:
    graph = translate(dataset, tmp_path, name)
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


def open_options(*arguments: str) -> Iterator[Any]:
    choice = choose_runner(arguments, num_workers=1, program_flags=[])
    with open_runner(choice) as (_, options):
        yield options


@pytest.mark.long
@pytest.mark.parametrize("name", RUNNERS)
def test_jar_that_does_not_exist_is_refused_before_anything_is_written(
    dataset: RldsDataset, tmp_path: Path, name: str
) -> None:
    result = run(*arguments(dataset, tmp_path / "out"), "--runner", name, f"--{name}_job_server_jar", "none.jar")
    assert result.code == EXIT_USAGE
    assert result.error() == f"error: --{name}_job_server_jar none.jar: no such file"
    assert not (tmp_path / "out").exists()


def refused(*arguments: str) -> str:
    with pytest.raises(UsageError) as caught:
        list(open_options(*arguments))
    return str(caught.value)


def test_jar_that_cannot_be_downloaded_says_where_to_put_it(tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{free_port()}/beam.jar"
    error = refused(
        *("--runner=FlinkRunner", f"--flink_job_server_jar={address}", f"--jar_cache_dir={tmp_path}"),
        f"--job_server_java_launcher={sys.executable}",
    )
    assert error.startswith(f"the jar of Beam's job server is not available from {address} (")
    assert error.endswith(f"name it with --flink_job_server_jar PATH, or put it at {tmp_path / 'beam.jar'}")


def test_download_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_server, "_PATIENCE", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/beam.jar"
        error = refused(
            *("--runner=SparkRunner", f"--spark_job_server_jar={address}", f"--jar_cache_dir={tmp_path}"),
            f"--job_server_java_launcher={sys.executable}",
        )
    assert f"is not available from {address} (timed out)" in error


def test_jar_that_was_downloaded_before_needs_no_network(tmp_path: Path) -> None:
    (tmp_path / "beam.jar").touch()
    address = f"http://127.0.0.1:{free_port()}/beam.jar"
    options = ("--runner=FlinkRunner", f"--flink_job_server_jar={address}", f"--jar_cache_dir={tmp_path}")
    assert list(open_options(*options, f"--job_server_java_launcher={sys.executable}"))


def test_java_that_is_not_there_is_named(jar: Path) -> None:
    error = refused("--runner=flink", f"--flink_job_server_jar={jar}", "--job_server_java_launcher=/no/java")
    assert "there is no '/no/java'; install Java 11 or newer" in error


def test_job_server_that_does_not_answer_is_named() -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    error = refused("--runner=PortableRunner", f"--job_endpoint={endpoint}")
    assert error == f"--job_endpoint {endpoint}: nothing answers there (Connection refused)"


def test_portable_runner_needs_a_job_server() -> None:
    assert "needs --job_endpoint HOST:PORT" in refused("--runner=PortableRunner")
