"""Two nodes that convert the same dataset into a shared folder, each of which sees its own locks alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from convert.errors import EXIT_DAMAGED, EXIT_FAILED
from tests.fixtures.command import TIMEOUT, Command, is_written, run, start, tree, wait_until
from tests.fixtures.datasets.rlds_dataset import RldsDataset
from tests.fixtures.faults.gate import STATUSES, Gates
from tests.fixtures.same_conversion import arguments, assert_complete

pytestmark = pytest.mark.long
BEGUN = 3
"""Shards that a node finishes before it is stopped or dies, however late that is."""


@contextlib.contextmanager
def _node(name: str, arguments: list[str], output: Path, gates: Gates | None = None) -> Iterator[Command]:
    """Start the conversion on a node."""
    folder = output.parent / name
    folder.mkdir(exist_ok=True)
    gates = gates or Gates()
    variables = {"TEST_NODE": str(folder), "TEST_SHARED": str(output), **gates.variables}
    with start(*arguments, "--num-workers", "2", environment=variables) as command:
        yield command


def test_two_nodes_at_once_write_what_one_writes(
    dataset: RldsDataset, tmp_path: Path, in_memory: dict[str, str]
) -> None:
    output = tmp_path / "out"
    output.mkdir()
    options = arguments(dataset, output)
    with _node("first", options, output) as first, _node("second", options, output) as second:
        for node in (first, second):
            assert_complete(node.wait())
    assert tree(output) == in_memory
    assert list((tmp_path / "first").iterdir()) and list((tmp_path / "second").iterdir())  # the locks of each


def test_a_node_that_wakes_when_the_other_has_finished_changes_nothing(
    dataset: RldsDataset, tmp_path: Path, in_memory: dict[str, str]
) -> None:
    output = tmp_path / "out"
    output.mkdir()
    options, gates = arguments(dataset, output), Gates()
    gates.close(STATUSES, after=BEGUN)
    with _node("first", options, output, gates) as first:
        assert wait_until(lambda: is_written(output, "*.arrayrecord"), seconds=TIMEOUT)
        asleep = [psutil.Process(first.pid), *first.processes()]
        for process in asleep:
            process.suspend()
        with _node("second", options, output) as second:
            assert_complete(second.wait())
        gates.open()
        for process in asleep:
            process.resume()
        woken = first.wait()
    assert woken.code in (EXIT_DAMAGED, EXIT_FAILED) and "Traceback" not in woken.err
    actual = tree(output)
    assert {name: actual[name] for name in in_memory} == in_memory
    assert_complete(run(*options, "--num-workers", "1"))
    assert tree(output) == in_memory


def test_a_node_that_dies_leaves_nothing_that_stops_the_other(
    dataset: RldsDataset, tmp_path: Path, in_memory: dict[str, str]
) -> None:
    output = tmp_path / "out"
    output.mkdir()
    options, gates = arguments(dataset, output), Gates()
    gates.close(STATUSES, after=BEGUN)
    with _node("first", options, output, gates) as first, _node("second", options, output) as second:
        assert wait_until(lambda: is_written(output, "*.arrayrecord"), seconds=TIMEOUT)
        first.kill()
        result = second.wait()
    assert_complete(result if result.code == EXIT_DAMAGED else run(*options, "--num-workers", "1"))
    actual = tree(output)
    assert {name: actual[name] for name in in_memory} == in_memory
    # What the dead node was writing is removed by that node alone, which may be alive for all that others see.
    assert all("/.convert" in name for name in actual.keys() - in_memory.keys())
    with _node("first", options, output) as first:
        assert_complete(first.wait())
    assert tree(output) == in_memory
