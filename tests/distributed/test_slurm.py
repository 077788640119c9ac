"""The scripts of examples/slurm on a real Slurm of two nodes: files of one process, whatever happens to tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.measure.ports import free_port
from convert.errors import EXIT_DAMAGED
from convert.journal.journal import STATUS
from convert.run.command import main
from tests.distributed.training import TOLERANCE, torch_losses
from tests.distributed.training import arguments as arguments_of_training
from tests.fixtures.command import REPOSITORY, TIMEOUT, run, tree, wait_until, written
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, write_dataset
from tests.fixtures.faults.gate import STATUSES, Gates
from tests.fixtures.same_conversion import arguments
from tests.fixtures.slurm_cluster import NODES, SlurmCluster, missing_requirement, slurm_cluster
from tests.installed import needs

REASON = missing_requirement()
pytestmark = [pytest.mark.long, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

SCRIPTS = REPOSITORY / "examples" / "slurm"
TASKS, SHARDS = 3, 12
STEPS = "60"
"""Steps of the training, which saves a checkpoint every second step."""
SAVED = 6
"""Checkpoints that a run of the training saves at most before it is stopped: two runs do not end it."""
NODE = {"cpus-per-task": "1", "mem": "2G"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def long_dataset(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    """Shards that take long enough for a task to be met in the middle of its share."""
    shards = [[demo_episode(400, seed=shard, size=(240, 320))] for shard in range(SHARDS)]
    return write_dataset(tmp_path_factory.mktemp("source"), splits={"train": shards})


@pytest.fixture(scope="module")
def expected(long_dataset: RldsDataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("expected")
    assert main([*arguments(long_dataset, output), "--num-workers", "1"]) == 0
    return tree(output)


class Array:
    """The array of convert.sbatch, submitted to a cluster."""

    def __init__(self, cluster: SlurmCluster, dataset: RldsDataset, output: Path) -> None:
        self.cluster = cluster
        self.output = output
        self.logs = output.parent / "logs"
        self.logs.mkdir(exist_ok=True)
        self.gates = Gates()
        self._arguments = arguments(dataset, output)

    def submit(self, tasks: str = f"0-{TASKS - 1}", **options: str) -> str:
        """Submit the array, or some tasks of it."""
        log = str(self.logs / "%A-%a.log")
        options = {**NODE, "array": tasks, "output": log, **options}
        variables = self.gates.variables | ({} if tasks == f"0-{TASKS - 1}" else {"TASKS": str(TASKS)})
        return self.cluster.submit(SCRIPTS / "convert.sbatch", *self._arguments, options=options, **variables)

    def finalize(self, job: str) -> list[str]:
        """Submit finalize.sbatch after the array; return its state and exit code."""
        options = {**NODE, "dependency": f"afterany:{job}", "output": str(self.logs / "finalize.log")}
        finalize = self.cluster.submit(SCRIPTS / "finalize.sbatch", *self._arguments, options=options)
        assert wait_until(lambda: self.cluster.has_ended(finalize), seconds=240, poll=0.5), self.cluster.report()
        fields = self.cluster.fields(finalize)
        return [fields["JobState"], fields["ExitCode"]]

    def close_gate(self, task: int) -> str:
        """Let a task wait before it puts its last shard into place; return the gate."""
        gate = f"train-{SHARDS - TASKS + task:05d}-of-{SHARDS:05d}.arrayrecord"
        self.gates.close(gate)
        return gate

    def wait_for_the_middle(self, job: str, task: int) -> None:
        """Wait until a task has finished some of its shards and works on the others."""
        share = {f"train-{shard:05d}-of-{SHARDS:05d}" for shard in range(task, SHARDS, TASKS)}

        def is_in_the_middle() -> bool:
            finished = {path.stem.partition(".")[0] for path in written(self.output, "*.arrayrecord")}
            return 0 < len(share & finished) < 4 and self.cluster.fields(f"{job}_{task}")["JobState"] == "RUNNING"

        assert wait_until(is_in_the_middle, seconds=TIMEOUT, poll=0.05), self.cluster.report()


@pytest.fixture
def array(cluster: SlurmCluster, long_dataset: RldsDataset, tmp_path: Path) -> Array:
    return Array(cluster, long_dataset, tmp_path / "out")


def test_more_tasks_than_nodes_write_what_one_process_writes(
    cluster: SlurmCluster, dataset: RldsDataset, in_memory: dict[str, str], tmp_path: Path
) -> None:
    array = Array(cluster, dataset, tmp_path / "out")
    job = array.submit()
    assert array.finalize(job) == ["FAILED", f"{EXIT_DAMAGED}:0"]
    codes = cluster.exit_codes(job, range(TASKS))
    assert set(codes) <= {"COMPLETED 0:0", f"FAILED {EXIT_DAMAGED}:0"}, codes
    assert tree(array.output) == in_memory


@pytest.mark.slow
def test_a_requeued_task_does_the_rest_and_finalize_names_what_a_cancelled_one_left(
    array: Array, expected: dict[str, str]
) -> None:
    gates = [array.close_gate(0), array.close_gate(2)]
    job = array.submit()
    array.wait_for_the_middle(job, 0)
    array.cluster.control("requeue", f"{job}_0")
    array.cluster.wait_until_pending(f"{job}_0")
    array.gates.open(gates[0])
    array.cluster.start_now(f"{job}_0")
    array.wait_for_the_middle(job, 2)
    array.cluster.cancel(f"{job}_2")
    assert array.finalize(job) == ["FAILED", "1:0"]
    assert "train-000" in (array.logs / "finalize.log").read_text()
    codes = array.cluster.exit_codes(job, range(TASKS))
    assert [code for task, code in enumerate(codes) if task != 2] == ["COMPLETED 0:0"] * (TASKS - 1)
    assert codes[2].startswith("CANCELLED")
    assert array.cluster.fields(f"{job}_0")["Restarts"] == "1"
    array.gates.open()
    second = array.submit("2")
    assert array.cluster.exit_codes(second, range(2, 3)) == ["COMPLETED 0:0"]
    assert tree(array.output) == expected


def test_a_node_that_dies_costs_only_the_shards_that_it_had_begun(array: Array, expected: dict[str, str]) -> None:
    array.close_gate(0)
    job = array.submit()
    array.wait_for_the_middle(job, 0)
    node = array.cluster.fields(f"{job}_0")["NodeList"]
    array.cluster.kill_node(node)
    array.gates.open()
    # A shard without a status was begun, even if it has its name already.
    finished = {path.name.removesuffix(STATUS) for path in written(array.output, f"*{STATUS}")}
    files = [path for path in written(array.output, "*.arrayrecord") if path.stem in finished]
    before = {path: path.stat().st_mtime_ns for path in files}
    # Slurm requeues the task once it has missed the node for SlurmdTimeout.
    assert wait_until(lambda: array.cluster.fields(f"{job}_0")["Restarts"] == "1", seconds=TIMEOUT, poll=0.5)
    array.cluster.start_now(f"{job}_0")
    assert array.cluster.exit_codes(job, range(TASKS)) == ["COMPLETED 0:0"] * TASKS
    array.cluster.start_node(node)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert tree(array.output) == expected


@pytest.mark.slow
def test_a_task_that_is_out_of_time_is_done_by_the_same_array_again(array: Array, expected: dict[str, str]) -> None:
    array.close_gate(0)
    # A minute is the shortest limit of Slurm.
    job = array.submit(time="1")
    array.wait_for_the_middle(job, 0)
    array.cluster.stop_tasks(array.cluster.fields(f"{job}_0")["NodeList"])
    codes = array.cluster.exit_codes(job, range(TASKS))
    assert codes[0].startswith("TIMEOUT")
    array.gates.open()
    assert array.finalize(job) == ["FAILED", "1:0"]
    again = array.submit()
    assert array.cluster.exit_codes(again, range(TASKS)) == ["COMPLETED 0:0"] * TASKS
    assert tree(array.output) == expected


@needs("ray")
def test_a_job_that_starts_ray_on_its_nodes_writes_what_one_process_writes(
    cluster: SlurmCluster, long_dataset: RldsDataset, expected: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "ray.log"
    options = {**NODE, "nodes": "2", "output": str(log)}
    command = arguments(long_dataset, tmp_path / "out")
    gates = Gates()
    gates.close(STATUSES)
    job = cluster.submit(SCRIPTS / "ray.sbatch", *command, options=options, HEAD_ADDR="127.0.0.1", **gates.variables)
    # Each node waits in its first shard for the other: on a busy machine one might do all before the other joins.
    for node in NODES:
        assert wait_until(lambda: cluster.has_open_files(node, tmp_path / "out"), seconds=TIMEOUT), log.read_text()  # noqa: B023
    gates.open()
    assert wait_until(lambda: cluster.has_ended(job), seconds=240, poll=0.5), log.read_text()
    assert cluster.fields(job)["JobState"] == "COMPLETED", log.read_text()
    assert f"{SHARDS}/{SHARDS} shards" in log.read_text()
    assert tree(tmp_path / "out") == expected


def test_training_on_two_nodes_that_is_preempted_and_out_of_time_ends_as_one_process_does(
    cluster: SlurmCluster, oxe_root: Path, tmp_path: Path
) -> None:
    parts, full = tmp_path / "parts", tmp_path / "full"
    options = {**NODE, "output": str(tmp_path / "train.log")}
    checkpoint, gates = parts / "checkpoint.pt", Gates()
    gates.close(checkpoint.name, after=SAVED)
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **gates.variables}
    command = arguments_of_training(oxe_root, parts, "--steps", STEPS, "--every", "2")
    job = cluster.submit(SCRIPTS / "train.sbatch", *command, options=options, **variables)
    assert wait_until(checkpoint.exists, seconds=TIMEOUT), cluster.report()
    cluster.control("requeue", job)
    cluster.wait_until_pending(job)
    gates.close(checkpoint.name, after=SAVED)
    before = checkpoint.stat().st_mtime_ns
    cluster.start_now(job)
    assert wait_until(lambda: checkpoint.stat().st_mtime_ns > before, seconds=TIMEOUT), cluster.report()
    # What Slurm sends two minutes before the end of the time.
    cluster.signal(f"{job}.0", "USR1")

    def is_requeued() -> bool:
        # The signal may come late, while the run waits at the gate.
        gates.close(checkpoint.name, after=1)
        return int(cluster.fields(job)["Restarts"]) >= 2

    assert wait_until(is_requeued, seconds=TIMEOUT, poll=2), cluster.report()
    gates.open()
    cluster.start_now(job)
    assert wait_until(lambda: cluster.has_ended(job), seconds=TIMEOUT, poll=0.5), cluster.report()
    assert cluster.fields(job)["JobState"] == "COMPLETED", (tmp_path / "train.log").read_text()
    log = (tmp_path / "train.log").read_text()
    assert log.count("starts at step 0;") == 1 and log.count("--resume continues") == 3
    command = ["--nproc-per-node", "1", "examples/train_latent_action.py", *arguments_of_training(oxe_root, full)]
    result = run(*command, "--steps", STEPS, module="torch.distributed.run")
    assert result.code == 0, result.err
    for together, alone in zip(torch_losses(parts), torch_losses(full), strict=True):
        assert together == pytest.approx(alone, rel=TOLERANCE)
