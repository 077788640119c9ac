"""Whatever runs the pipeline, in however many processes and whatever order: the same files, byte for byte."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from convert.errors import EXIT_DAMAGED
from convert.run import main
from tests.command import Command, Result, run, start, tree, wait_until, write_damaged_dataset
from tests.rlds_dataset import RldsDataset, demo_episode, write_dataset

SHARDS = 9


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    """Nine shards in two splits, with everything in them that can be wrong with an episode."""
    return write_damaged_dataset(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def in_memory(dataset: RldsDataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one process writes, without any other."""
    output = tmp_path_factory.mktemp("in-memory")
    assert main([*arguments(dataset, output), "--num-workers", "1"]) == EXIT_DAMAGED
    files = tree(output)
    assert {"demo/1.0.0/dataset.json", "demo/1.0.0/quarantine.jsonl"} < set(files)
    assert sum(name.endswith(".arrayrecord") for name in files) == SHARDS
    return files


def arguments(dataset: RldsDataset, output: Path) -> list[str]:
    common = ["--datasets", "demo", "--source", str(dataset.root), "--output", str(output)]
    return [*common, "--config", str(dataset.registry()), "--image-size", "32x48"]


def assert_complete(result: Result) -> None:
    assert result.code == EXIT_DAMAGED, result.err
    assert "complete, but damaged input was left out: demo (" in result.error()


@pytest.mark.parametrize(
    "runner",
    [
        ("--num-workers", "2"),
        pytest.param(("--num-workers", "4"), marks=pytest.mark.slow),
        ("--runner", "DirectRunner", "--num-workers", "1"),
        ("--runner", "DaskRunner", "--num-workers", "2"),
    ],
    ids=" ".join,
)
def test_runner_writes_what_the_in_memory_one_writes(
    dataset: RldsDataset, tmp_path: Path, in_memory: dict[str, str], runner: tuple[str, ...]
) -> None:
    with start(*arguments(dataset, tmp_path), *runner) as command:
        assert_complete(command.wait())
        assert command.processes() == []
    assert tree(tmp_path) == in_memory


def test_dask_cluster_that_runs_elsewhere_writes_what_the_in_memory_runner_writes(
    dataset: RldsDataset, tmp_path: Path, in_memory: dict[str, str]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    with ExitStack() as stack:
        cluster = Cluster(stack, address)
        command = stack.enter_context(
            start(*arguments(dataset, tmp_path), "--runner", "DaskRunner", "--dask_client_address", address)
        )
        assert_complete(command.wait())
        assert cluster.is_running()
    assert tree(tmp_path) == in_memory


class Cluster:
    """A Dask scheduler and a worker, as an administrator starts them."""

    def __init__(self, stack: ExitStack, address: str) -> None:
        scheduler = ("--host", address, "--no-dashboard")
        worker = (address, "--no-nanny", "--nthreads", "2", "--no-dashboard")
        self._commands: list[Command] = [
            stack.enter_context(start(*scheduler, module="distributed.cli.dask_scheduler")),
            stack.enter_context(start(*worker, module="distributed.cli.dask_worker")),
        ]

    def is_running(self) -> bool:
        return all(command.process.poll() is None for command in self._commands)


def test_tasks_one_after_the_other_in_any_order_write_what_one_process_writes(
    dataset: RldsDataset, tmp_path: Path, in_memory: dict[str, str]
) -> None:
    results = [run(*task(dataset, tmp_path, index)) for index in (2, 0, 1)]
    for unfinished in results[:2]:
        assert unfinished.code == 0, unfinished.err
        assert "3/3 shards" in unfinished.err
        assert "not complete, left to other tasks: demo" in unfinished.err
    assert_complete(results[2])
    assert tree(tmp_path) == in_memory


def test_manifest_appears_only_with_the_last_task(dataset: RldsDataset, tmp_path: Path) -> None:
    appeared = []
    for index in range(3):
        main(task(dataset, tmp_path, index))
        appeared.append((tmp_path / "demo" / "1.0.0" / "dataset.json").exists())
    assert appeared == [False, False, True]


def test_tasks_at_the_same_time_write_what_one_process_writes(
    dataset: RldsDataset, tmp_path: Path, in_memory: dict[str, str]
) -> None:
    with ExitStack() as stack:
        commands = [stack.enter_context(start(*task(dataset, tmp_path, index))) for index in range(3)]
        results = [command.wait() for command in commands]
    assert {result.code for result in results} <= {0, EXIT_DAMAGED}
    for complete in (result for result in results if result.code):
        assert_complete(complete)
    assert EXIT_DAMAGED in [result.code for result in results]
    assert tree(tmp_path) == in_memory


def task(dataset: RldsDataset, output: Path, index: int) -> list[str]:
    return [*arguments(dataset, output), "--num-workers", "1", "--task-count", "3", "--task-index", str(index)]


def test_not_more_workers_are_started_than_there_are_shards(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "source", splits={"train": [[demo_episode(9, seed=i)] for i in range(2)]})
    most = 0
    with start(*arguments(dataset, tmp_path / "out"), "--num-workers", "6") as command:

        def ended() -> bool:
            nonlocal most
            most = max(most, len(command.processes()))
            return command.process.poll() is not None

        assert wait_until(ended, seconds=120, poll=0.3)
        assert command.wait().code == 0
    assert most == 2
