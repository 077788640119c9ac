"""Wrong calls of ``--engine ray``: each ends in one sentence, at once, and writes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from bench.measure.ports import free_port
from convert.errors import EXIT_USAGE
from convert.run.command import main
from tests.fixtures.command import REPOSITORY, run
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, write_dataset
from tests.fixtures.same_conversion import arguments
from tests.installed import needs

CLUSTER = """
import sys
from tests.fixtures.servers.ray_cluster import ray_cluster
with ray_cluster(1) as cluster:
    print(cluster.address, flush=True)
    sys.stdin.read()
"""
"""A program that runs a cluster until its input ends."""
ALONE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Hides all other processes of this machine from a command: for ``auto``, Ray looks for clusters among them too."""
AT_ONCE_S = 60
"""A command that was refused at once takes two seconds; Ray itself waits for minutes."""


@pytest.fixture(scope="module")
def small_dataset(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    return write_dataset(tmp_path_factory.mktemp("source"), splits={"train": [[demo_episode(6)]]})


WRONG_OPTIONS = {
    "--address 10.0.0.1:6379": "--address 10.0.0.1:6379 is the address of a Ray cluster; add --engine ray",
    "--engine rai": "invalid choice: 'rai'",
}
WRONG_OPTIONS_OF_RAY = {
    "--runner DaskRunner": "unknown option --runner; ",
    "--adress auto": "unknown option --adress; did you mean '--address'",
    "--address 10.0.0.1": "--address 10.0.0.1: expected HOST:PORT, such as 10.0.0.1:6379, or auto",
    "--address ray://10.0.0.1:10001": "run this command on a node of the cluster, with HOST:PORT or auto",
    "--num-workers 0": "--num-workers 0: expected 1 or more",
}


@pytest.mark.parametrize(("options", "message"), WRONG_OPTIONS.items())
def test_options_that_lack_the_engine_are_refused(
    small_dataset: RldsDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, message: str
) -> None:
    assert _exit_code([*arguments(small_dataset, tmp_path / "out"), *options.split()]) == EXIT_USAGE
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@needs("ray")
@pytest.mark.parametrize(("options", "message"), WRONG_OPTIONS_OF_RAY.items())
def test_options_that_ray_has_not_are_refused(
    small_dataset: RldsDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, message: str
) -> None:
    command_line = [*arguments(small_dataset, tmp_path / "out"), "--engine", "ray", *options.split()]
    assert _exit_code(command_line) == EXIT_USAGE
    error = capsys.readouterr().err
    assert message in error and error.count("error:") == 1
    assert not (tmp_path / "out").exists()


def test_without_ray_the_extra_is_named(
    small_dataset: RldsDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert _exit_code([*arguments(small_dataset, tmp_path / "out"), "--engine", "ray"]) == EXIT_USAGE
    assert "--engine ray needs ray, which is not installed; install pairstream[ray]" in capsys.readouterr().err


@needs("ray")
@pytest.mark.long
@pytest.mark.parametrize("address", ["auto", "auto, killed", "nobody", "no.such.host.invalid:6379", "another server"])
def test_a_cluster_that_does_not_answer_is_refused_at_once(
    small_dataset: RldsDataset, tmp_path: Path, address: str
) -> None:
    through = ALONE if address.startswith("auto") else ()
    if through and (
        shutil.which("unshare") is None or subprocess.run([*ALONE, "true"], capture_output=True).returncode
    ):
        pytest.skip("a process cannot be hidden from another one here (unshare)")
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    ports = {"nobody": free_port(), "another server": server.server_port}
    place = f"127.0.0.1:{ports[address]}" if address in ports else address
    if address == "auto, killed":
        # Ray leaves the address of a cluster that was killed.
        place = "auto"
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{ports['nobody']}")
    options = (*arguments(small_dataset, tmp_path / "out"), "--engine", "ray", "--address", place)
    Thread(target=server.serve_forever, daemon=True).start()
    started = time.monotonic()
    try:
        # No cluster of this account is running in a folder that Ray has not used.
        result = run(*options, environment={"RAY_TMPDIR": str(tmp_path), "RAY_ADDRESS": None}, through=through)
    finally:
        server.shutdown()
        server.server_close()
    assert result.code == EXIT_USAGE
    assert result.error().startswith(f"error: no Ray cluster at {place}: ")
    assert "start one with `ray start --head`" in result.error()
    assert time.monotonic() - started < AT_ONCE_S
    assert not (tmp_path / "out").exists()


@needs("ray")
@pytest.mark.long
def test_a_wrong_token_is_named_after_a_few_tries(small_dataset: RldsDataset, tmp_path: Path) -> None:
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64}
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as cluster:
        assert cluster.stdin is not None and cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        options = (*arguments(small_dataset, tmp_path / "out"), "--engine", "ray", "--address", address)
        result = run(*options, environment={**environment, "RAY_AUTH_TOKEN": "b" * 64})
        cluster.stdin.close()
    assert result.code == EXIT_USAGE
    *warnings, error = result.err.splitlines()
    assert error.startswith(f"error: no Ray cluster at {address}: ")
    assert "its token is another one than that of this account" in error
    assert len(warnings) <= 3, "Ray's own messages"
    assert not (tmp_path / "out").exists()


@needs("ray")
@pytest.mark.long
def test_the_address_may_come_from_the_environment(small_dataset: RldsDataset, tmp_path: Path) -> None:
    place = f"127.0.0.1:{free_port()}"
    options = (*arguments(small_dataset, tmp_path / "out"), "--engine", "ray")
    result = run(*options, environment={"RAY_ADDRESS": place})
    assert result.code == EXIT_USAGE
    assert result.error().startswith(f"error: no Ray cluster at {place}: ")


def _exit_code(command_line: list[str]) -> int:
    """Return the exit code of the command, also where its parser ends the program."""
    try:
        return main(command_line)
    except SystemExit as end:
        assert isinstance(end.code, int)
        return end.code
