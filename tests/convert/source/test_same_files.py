"""Every kind of source gives the same files, byte for byte, in any number of processes, shares and attempts."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from convert.errors import EXIT_INTERRUPTED
from convert.run.command import main
from tests.convert.source.rosbag.bags import write_bags
from tests.fixtures.arrays.written import write_shards_of_hdf5, write_shards_of_zarr
from tests.fixtures.command import TIMEOUT, is_written, start, tree, wait_until
from tests.fixtures.datasets.own_files import write_files

KINDS: dict[str, Callable[[Path], list[str]]] = {
    "python": write_files,
    "rosbag": write_bags,
    "robomimic": write_shards_of_hdf5,
    "umi": write_shards_of_zarr,
}
"""Writes a dataset of each kind, of several shards, to a folder, and returns the arguments of ``convert.run``."""
RUNNERS = [("--num-workers", "2"), ("--runner", "DaskRunner", "--num-workers", "2")]
OPTIONS = ("--layout", "frames", "--cameras", "all", "--image-size", "512")


@pytest.fixture(scope="module", params=KINDS)
def arguments(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [*KINDS[request.param](tmp_path_factory.mktemp(request.param)), *OPTIONS]


@pytest.fixture(scope="module")
def reference(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("reference")
    assert main([*arguments, "--output", str(output), "--num-workers", "1"]) == 0
    return tree(output)


@pytest.mark.long
def test_array_tasks_write_what_one_process_writes(
    arguments: list[str], tmp_path: Path, reference: dict[str, str]
) -> None:
    tasks = [[*arguments, "--output", str(tmp_path), "--task-count", "3", "--task-index", str(i)] for i in (2, 0, 1)]
    assert [main([*item, "--num-workers", "1"]) for item in tasks] == [0, 0, 0]
    assert tree(tmp_path) == reference


@pytest.mark.long
@pytest.mark.parametrize("runner", RUNNERS, ids=" ".join)
def test_processes_write_what_one_process_writes(
    arguments: list[str], tmp_path: Path, reference: dict[str, str], runner: tuple[str, ...]
) -> None:
    with start(*arguments, "--output", str(tmp_path), *runner) as command:
        assert command.wait().code == 0
    assert tree(tmp_path) == reference


@pytest.mark.long
def test_an_interrupted_conversion_goes_on(arguments: list[str], tmp_path: Path, reference: dict[str, str]) -> None:
    with start(*arguments, "--output", str(tmp_path), "--num-workers", "1") as command:
        assert wait_until(
            lambda: is_written(tmp_path, "*.status.json") or command.process.poll() is not None, seconds=TIMEOUT
        )
        command.process.send_signal(signal.SIGINT)
        # Python ends by the signal itself where it came while a text was executed, as for a dataclass.
        assert command.wait().code in (0, EXIT_INTERRUPTED, -signal.SIGINT)
    assert main([*arguments, "--output", str(tmp_path), "--num-workers", "1"]) == 0
    assert tree(tmp_path) == reference
