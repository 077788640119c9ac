"""Every runner writes the same files, byte for byte, with any number of processes in any order."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench.measure.ports import free_port
from convert.errors import EXIT_DAMAGED, EXIT_FAILED, EXIT_USAGE
from convert.run.command import main
from tests.fixtures.command import REPOSITORY, TIMEOUT, Command, run, start, tree, wait_until, written
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, write_dataset
from tests.fixtures.faults.gate import STATUSES, Gates
from tests.fixtures.same_conversion import SHARDS, arguments, assert_complete, lerobot_arguments

SLURM = REPOSITORY / "examples" / "slurm"


RUNNERS = [
    ("--num-workers", "2"),
    pytest.param(("--num-workers", "4"), marks=pytest.mark.slow),
    ("--runner", "DirectRunner", "--num-workers", "1"),
    ("--runner", "DaskRunner", "--num-workers", "2"),
]


@pytest.mark.long
@pytest.mark.parametrize("runner", RUNNERS, ids=" ".join)
def test_runner_writes_what_the_in_memory_one_writes(
    dataset: RldsDataset, tmp_path: Path, in_memory: dict[str, str], runner: tuple[str, ...]
) -> None:
    with start(*arguments(dataset, tmp_path), *runner, "--json") as command:
        result = command.wait()
        assert_complete(result)
        assert command.processes() == []
    assert tree(tmp_path) == in_memory
    assert "Warning" not in result.err
    assert_counted(json.loads(result.out), counts="DaskRunner" not in runner)


@pytest.fixture(scope="module")
def lerobot(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return lerobot_arguments(tmp_path_factory.mktemp("lerobot"))


@pytest.fixture(scope="module")
def lerobot_in_memory(lerobot: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("lerobot-in-memory")
    assert main([*lerobot, "--output", str(output), "--num-workers", "1"]) == EXIT_DAMAGED
    return tree(output)


@pytest.mark.long
@pytest.mark.parametrize("runner", RUNNERS, ids=" ".join)
def test_runner_writes_what_the_in_memory_one_writes_of_a_lerobot_dataset(
    lerobot: list[str], tmp_path: Path, lerobot_in_memory: dict[str, str], runner: tuple[str, ...]
) -> None:
    with start(*lerobot, "--output", str(tmp_path), *runner) as command:
        assert command.wait().code == EXIT_DAMAGED
    assert tree(tmp_path) == lerobot_in_memory


def assert_counted(printed: dict[str, Any], *, counts: bool) -> None:
    """Beam's counters are those of the result, if the runner has any; Dask's has none."""
    (summary,) = printed["complete"]
    counters = printed["counters"]
    if not counts:
        assert counters is None
        return
    assert counters.pop("bytes_in") > 0
    assert counters == {
        "shards": SHARDS,
        "episodes": summary["episodes"],
        "pairs": summary["pairs"],
        "bytes_out": summary["bytes_out"],
        "left_out": sum(summary["left_out"].values()),
        "splits": len(summary["splits"]),
    }


@pytest.mark.long
@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_dask_cluster_that_runs_elsewhere_writes_what_the_in_memory_runner_writes(
    dataset: RldsDataset, tmp_path: Path, in_memory: dict[str, str], workers: int
) -> None:
    with ExitStack() as stack:
        # Workers and command in folders of their own, to which relative paths would lead.
        cluster = Cluster(stack, workers=workers, folder=tmp_path)
        local = tmp_path / "here"
        local.mkdir()
        options = arguments(dataset, Path("../out"))
        options[options.index(str(dataset.root))] = os.path.relpath(dataset.root, local)
        command = stack.enter_context(start(*options, *cluster.options, cwd=local))
        assert_complete(command.wait())
        assert tree(tmp_path / "out") == in_memory
        # In the same cluster, because one takes longer to start than all that is done on it.
        options[options.index("../out")] = "../pieces"
        module, actual = "tests.fixtures.convert_in_pieces", {"PYTHONPATH": str(REPOSITORY)}
        cut = stack.enter_context(start(*options, *cluster.options, cwd=local, module=module, environment=actual))
        assert_complete(cut.wait())
        assert tree(tmp_path / "pieces") == in_memory
        failing = stack.enter_context(
            start(*arguments(dataset, tmp_path / "fails"), *cluster.options, "--on-error", "fail", "--json")
        )
        failed = failing.wait()
        assert failed.code == EXIT_FAILED
        assert "/demo/1.0.0/demo-" in failed.error()
        assert "run with --on-error quarantine to leave it out" in failed.error()
        assert cluster.is_running()
    listed = run("finalize", *arguments(dataset, tmp_path / "fails"), "--on-error", "fail")
    assert failed.error().removeprefix("error: ") in listed.out


class Cluster:
    """A Dask scheduler and worker processes, as an administrator starts them."""

    def __init__(self, stack: ExitStack, *, workers: int, folder: Path) -> None:
        address = f"tcp://127.0.0.1:{free_port()}"
        scheduler = ("--host", address, "--no-dashboard")
        worker = (address, "--no-nanny", "--nthreads", "1", "--no-dashboard")
        self.options = ("--runner", "DaskRunner", "--dask_client_address", address)
        self._commands: list[Command] = [
            stack.enter_context(start(*scheduler, module="distributed.cli.dask_scheduler"))
        ]
        for number in range(workers):
            options = folder / f"worker-{number}"
            options.mkdir()
            command = start(*worker, module="distributed.cli.dask_worker", cwd=options)
            self._commands.append(stack.enter_context(command))

    def is_running(self) -> bool:
        return all(command.process.poll() is None for command in self._commands)


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_slurm_scripts_of_the_examples_write_what_one_process_writes(
    dataset: RldsDataset, tmp_path: Path, in_memory: dict[str, str]
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    # srun on a node that has the task's cores already: it runs its arguments.
    (programs / "srun").write_text('#!/bin/sh\nexec "$@"\n')
    (programs / "srun").chmod(0o755)
    out = tmp_path / "out"

    def submit(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        # Slurm starts a script in the folder that it was submitted from.
        return subprocess.run(
            ["bash", str(SLURM / script), *arguments(dataset, out)],
            cwd=REPOSITORY,
            env={**os.environ, "PATH": path, "SLURM_CPUS_PER_TASK": "1", **variables},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )

    of_three = {"SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MAX": "2"}
    refused = submit("convert.sbatch", SLURM_ARRAY_TASK_ID="1", TASKS="2", **of_three)
    assert refused.returncode == EXIT_USAGE
    assert "--array goes to 2, but an array of TASKS=2 ends at 1" in refused.stderr
    assert not out.exists()
    again = {"SLURM_ARRAY_TASK_COUNT": "1", "SLURM_ARRAY_TASK_MAX": "2", "TASKS": "3"}
    codes = [submit("convert.sbatch", SLURM_ARRAY_TASK_ID=index, **of_three).returncode for index in ("1", "0")]
    codes += [submit("convert.sbatch", SLURM_ARRAY_TASK_ID="2", **again).returncode]
    assert codes == [0, 0, EXIT_DAMAGED]
    assert submit("finalize.sbatch").returncode == EXIT_DAMAGED
    assert tree(out) == in_memory


@pytest.mark.parametrize("script", sorted(SLURM.glob("*.sbatch")), ids=lambda path: path.name)
def test_slurm_script_is_sound_for_the_shell(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_not_more_workers_are_started_than_there_are_shards(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "source", splits={"train": [[demo_episode(9, seed=i)] for i in range(2)]})
    gates = Gates()
    gates.close(STATUSES)
    most = 0
    with start(*arguments(dataset, tmp_path / "out"), "--num-workers", "6", environment=gates.variables) as command:

        def look(reached: bool) -> bool:
            nonlocal most
            most = max(most, len(command.processes()))
            return reached or command.process.poll() is not None

        # Each worker waits with the files of a shard in place.
        assert wait_until(lambda: look(len(written(tmp_path / "out", "*.arrayrecord")) == 2), seconds=TIMEOUT)
        gates.open()
        assert wait_until(lambda: look(False), seconds=TIMEOUT, poll=0.3)
        assert command.wait().code == 0
    assert most == 2


@pytest.mark.long
def test_dask_without_enough_file_handles_is_refused(dataset: RldsDataset, tmp_path: Path) -> None:
    command_line = (*arguments(dataset, tmp_path / "out"), "--runner", "DaskRunner")
    with start(*command_line, through=("prlimit", "--nofile=64:64")) as command:
        result = command.wait()
    assert result.code == EXIT_USAGE
    assert "only 64 files may be open (ulimit -n), a local Dask cluster needs 256" in result.error()
