"""A conversion that is killed or interrupted leaves no process, and the same command continues it."""

import contextlib
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from convert.errors import EXIT_FAILED, EXIT_INTERRUPTED
from convert.journal.journal import FOLDER
from convert.run.command import main
from stream.format.names import split_of
from tests.fixtures.command import TIMEOUT, Command, Result, run, start, tree, wait_until
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, write_dataset
from tests.fixtures.faults.gate import STATUSES, Gates

SHARDS = 20
MOST = 16
"""Shards that a conversion finishes before it is met, however late that is."""
WORKERS = {"one": ("--num-workers", "1"), "two": ("--num-workers", "2"), "dask": ("--runner=DaskRunner",)}

Files = dict[str, tuple[int, int]]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    """Twenty shards in two splits; enlarging their frames takes about 0.2 s a shard."""
    shards = [[demo_episode(12, seed=i, size=(120, 160))] for i in range(SHARDS)]
    return write_dataset(tmp_path_factory.mktemp("source"), splits={"train": shards[:15], "val": shards[15:]})


@pytest.fixture(scope="module")
def reference(dataset: RldsDataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the files that an undisturbed conversion writes."""
    output = tmp_path_factory.mktemp("reference")
    assert main([*arguments(dataset, output), "--num-workers", "1"]) == 0
    files = tree(output)
    shutil.rmtree(output)
    return files


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "out"
    shutil.rmtree(tmp_path / "out", ignore_errors=True)


@pytest.fixture
def gates() -> Gates:
    """Gates that let a conversion finish most of its shards, and never all of them."""
    gates = Gates()
    gates.close(STATUSES, after=MOST)
    return gates


def arguments(dataset: RldsDataset, output: Path) -> list[str]:
    common = ["--datasets", "demo", "--source", str(dataset.root), "--output", str(output)]
    return [*common, "--config", str(dataset.registry()), "--image-size", "768"]


def finished(output: Path) -> list[str]:
    """The shards that the journal says are finished."""
    suffix = ".status.json"
    # The conversion may remove its journal meanwhile.
    with contextlib.suppress(FileNotFoundError):
        names = os.listdir(output / "demo/1.0.0" / FOLDER)
        return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return []


def files_of_finished_shards(output: Path) -> Files:
    """Inode and time of the ArrayRecord files of all finished shards."""
    stems = finished(output)
    paths = [path for stem in stems for path in output.glob(f"demo/1.0.0/{split_of(stem)}/{stem}.*")]
    assert len(paths) == len(stems)
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


def assert_untouched(before: Files) -> None:
    assert {path: (os.stat(path).st_ino, os.stat(path).st_mtime_ns) for path in before} == before


def wait_for(shards: float, command: Command, output: Path) -> None:
    """Wait until so many shards are finished, or the command is."""
    ended = wait_until(
        lambda: len(finished(output)) >= shards or command.process.poll() is not None, seconds=120, poll=0.005
    )
    assert ended, f"{len(finished(output))} shards after two minutes"


def kill(command: Command) -> None:
    """``kill -9`` of the main process; whatever it started has to go by itself."""
    command.kill()
    assert wait_until(lambda: not command.processes(), seconds=60), command.processes()


def assert_same_command_completes(command: list[str], output: Path, reference: dict[str, str]) -> Result:
    before = files_of_finished_shards(output)
    with start(*command) as repeated:
        result = repeated.wait()
        assert result.code == 0, result.err
        assert repeated.processes() == []
    # The whole tree is compared, so that neither a temporary file nor the journal is left.
    assert tree(output) == reference
    assert_untouched(before)
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "workers"), [(seed, ("one", "two", "two", "dask")[seed % 4]) for seed in range(20)])
def test_conversion_killed_at_a_random_moment_ends_as_if_it_was_not(
    dataset: RldsDataset, output: Path, reference: dict[str, str], seed: int, workers: str
) -> None:
    moments = random.Random(seed)
    command = [*arguments(dataset, output), *WORKERS[workers]]
    with start(*command) as running:
        if moments.random() < 0.2:
            time.sleep(moments.uniform(0, 5))
        else:
            wait_for(moments.uniform(0, SHARDS), running, output)
            time.sleep(moments.uniform(0, 0.3))
        kill(running)
    if not (output / "demo" / "1.0.0" / "dataset.json").exists():
        assert_same_command_completes(command, output, reference)
    else:
        assert run(*command).code == 0
        assert tree(output) == reference


def to_main(command: Command, number: int) -> None:
    command.signal(number)


def to_all(command: Command, number: int) -> None:
    os.killpg(command.pid, number)


@pytest.mark.long
@pytest.mark.parametrize("workers", ["one", "two", pytest.param("dask", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("number", "send"), [(signal.SIGINT, to_all), (signal.SIGTERM, to_main)], ids=["Ctrl-C in a terminal", "SIGTERM"]
)
def test_interrupt_ends_with_one_line_and_leaves_nothing_half_written(
    dataset: RldsDataset, output: Path, gates: Gates, workers: str, number: int, send: Callable[[Command, int], None]
) -> None:
    with start(*arguments(dataset, output), *WORKERS[workers], environment=gates.variables) as command:
        wait_for(2, command, output)
        send(command, number)
        result = command.wait()
        assert command.processes() == []
    assert result.code == EXIT_INTERRUPTED
    said = [line for line in result.err.splitlines() if line.strip() and " shards, " not in line]
    assert said == ["interrupted; run the same command again to continue"]
    assert not list(output.rglob("*.tmp"))
    assert not list(output.rglob("dataset.json"))


def test_interrupt_while_it_plans_ends_with_one_line(output: Path) -> None:
    """It waits for a store that takes the connection and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(TIMEOUT)
        environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
        command_line = ("--datasets", "bridge", "--source", "s3://bucket/oxe", "--output", str(output))
        with start(*command_line, environment=environment) as command:
            connection, _ = server.accept()
            with connection:
                command.signal(signal.SIGINT)
                result = command.wait()
    assert result.code == EXIT_INTERRUPTED
    assert result.err == "interrupted; run the same command again to continue\n"
    assert not output.exists()


@pytest.mark.long
def test_worker_process_that_is_killed_stops_the_conversion_and_the_same_command_goes_on(
    dataset: RldsDataset, output: Path, gates: Gates, reference: dict[str, str]
) -> None:
    command = [*arguments(dataset, output), *WORKERS["two"]]
    with start(*command, environment=gates.variables) as running:
        wait_for(2, running, output)
        running.processes()[0].kill()
        result = running.wait()
        assert running.processes() == []
    assert result.code == EXIT_FAILED
    assert result.error() == (
        "error: a worker process was killed by SIGKILL, as the kernel does when memory runs out; run the same command "
        "again to continue, perhaps with fewer --num-workers"
    )
    assert not list(output.rglob("*.tmp"))
    assert_same_command_completes(command, output, reference)
