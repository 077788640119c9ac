"""``--engine ray`` on a real Ray cluster: the files of one process, whatever happens to nodes and to the command."""

from __future__ import annotations

import json
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from convert.errors import EXIT_DAMAGED, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from convert.run.command import main
from tests.fixtures.command import TIMEOUT, is_alive, is_written, run, start, tree, wait_until, written
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, write_dataset
from tests.fixtures.faults.gate import STATUSES, Gates
from tests.fixtures.object_stores import Store, object_store, objects
from tests.fixtures.same_conversion import SHARDS, arguments, assert_complete
from tests.fixtures.servers.ray_cluster import RayCluster, ray_cluster
from tests.installed import needs

pytestmark = [pytest.mark.long, needs("ray")]

LARGE = ("--image-size", "768")
"""Frames that take a while to enlarge, so that a job is met in its middle."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with object_store("s3", tmp_path_factory.mktemp("store") / "log") as store:
        yield store


@pytest.fixture(scope="module")
def all_gates() -> Gates:
    return Gates()


@pytest.fixture(scope="module")
def cluster(store: Store, all_gates: Gates) -> Iterator[RayCluster]:
    """Two nodes, whose workers find the store by their environment."""
    with ray_cluster(2, all_gates.variables) as cluster:
        yield cluster


@pytest.fixture
def gates(all_gates: Gates) -> Iterator[Gates]:
    """Gates of the cluster's workers, which let three of the five large shards be finished."""
    all_gates.close(STATUSES, after=3)
    yield all_gates
    all_gates.open()


@pytest.fixture(scope="module")
def large_dataset(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    shards = [[demo_episode(40, seed=shard, size=(120, 160))] for shard in range(5)]
    return write_dataset(tmp_path_factory.mktemp("source"), splits={"train": shards})


@pytest.fixture(scope="module")
def expected(large_dataset: RldsDataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("expected")
    assert main([*arguments(large_dataset, output), *LARGE, "--num-workers", "1"]) == 0
    return tree(output)


def on(cluster: RayCluster) -> tuple[str, ...]:
    return "--engine", "ray", "--address", cluster.address


def temporary_files(output: Path) -> list[Path]:
    return written(output, "*.tmp")


def test_two_nodes_write_what_one_process_writes_and_count_it(
    cluster: RayCluster, dataset: RldsDataset, in_memory: dict[str, str], tmp_path: Path
) -> None:
    result = run(*arguments(dataset, tmp_path), *on(cluster), "--json")
    assert_complete(result)
    assert tree(tmp_path) == in_memory
    printed = json.loads(result.out)
    (summary,) = printed["complete"]
    counters = printed["counters"]
    assert counters.pop("bytes_in") > 0
    assert counters == {
        "shards": SHARDS,
        "episodes": summary["episodes"],
        "pairs": summary["pairs"],
        "bytes_out": summary["bytes_out"],
        "left_out": sum(summary["left_out"].values()),
        "splits": 2,
    }


def test_workers_write_into_a_bucket_what_one_process_writes_on_a_disk(
    cluster: RayCluster, store: Store, dataset: RldsDataset, tmp_path: Path
) -> None:
    bucket = store.new_bucket()
    command = arguments(dataset, tmp_path / "out")
    command[command.index(str(tmp_path / "out"))] = bucket
    assert_complete(run(*command, *on(cluster)))
    assert main([*arguments(dataset, tmp_path / "out"), "--num-workers", "1"]) == EXIT_DAMAGED
    local = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert objects(bucket) == {str(path.relative_to(tmp_path / "out")): content for path, content in local.items()}


def test_the_job_of_a_node_that_dies_in_its_middle_is_done_by_another(
    cluster: RayCluster, gates: Gates, large_dataset: RldsDataset, expected: dict[str, str], tmp_path: Path
) -> None:
    cluster.add_node()
    assert wait_until(lambda: cluster.num_alive() == 3, seconds=TIMEOUT)
    with start(*arguments(large_dataset, tmp_path), *LARGE, *on(cluster), "--json") as command:
        open_files = cluster.kill_a_node_in_the_middle_of_a_job(tmp_path)
        assert open_files and not is_written(tmp_path, "dataset.json")
        gates.open()
        result = command.wait()
    assert result.code == 0, result.err
    assert json.loads(result.out)["counters"]["shards"] == 5
    assert tree(tmp_path) == expected
    assert wait_until(lambda: cluster.num_alive() == 2, seconds=TIMEOUT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_command_ends_its_tasks_and_the_same_command_continues(
    cluster: RayCluster,
    gates: Gates,
    large_dataset: RldsDataset,
    expected: dict[str, str],
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    command_line = (*arguments(large_dataset, tmp_path), *LARGE, *on(cluster))
    with start(*command_line) as command:
        assert wait_until(lambda: bool(temporary_files(tmp_path)), seconds=TIMEOUT), "no job began"
        command.signal(number)
        result = command.wait()
    assert result.code == EXIT_INTERRUPTED, result.err
    assert "run the same command again to continue" in result.err
    assert "Traceback" not in result.err
    assert temporary_files(tmp_path) == []
    gates.open()
    assert run(*command_line).code == 0
    assert tree(tmp_path) == expected


def test_a_job_that_fails_ends_the_command_with_its_reason_and_leaves_the_cluster(
    cluster: RayCluster, dataset: RldsDataset, tmp_path: Path
) -> None:
    result = run(*arguments(dataset, tmp_path), *on(cluster), "--on-error", "fail")
    assert result.code == EXIT_FAILED
    assert "/demo/1.0.0/demo-" in result.error()
    assert "run with --on-error quarantine to leave it out" in result.error()
    assert result.error().endswith(f" (on {socket.gethostname()})")
    assert temporary_files(tmp_path) == []
    assert cluster.num_alive() == 2


def test_a_node_with_another_version_of_a_library_is_named(
    cluster: RayCluster, dataset: RldsDataset, tmp_path: Path
) -> None:
    metadata = tmp_path / "simplejpeg-0.0.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: simplejpeg\nVersion: 0.0.1\n")
    with ray_cluster(1, variables={"PYTHONPATH": str(tmp_path)}) as other:
        result = run(*arguments(dataset, tmp_path / "out"), *on(other))
    assert result.code == EXIT_USAGE, result.err
    assert "has simplejpeg 0.0.1, this process has" in result.error()
    assert "install the same versions on all nodes" in result.error()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [None, signal.SIGKILL], ids=["to the end", "killed"])
def test_without_an_address_a_cluster_of_this_machine_ends_with_the_command(
    dataset: RldsDataset, in_memory: dict[str, str], tmp_path: Path, number: signal.Signals | None
) -> None:
    home, gates = tmp_path.with_name("home"), Gates()
    gates.close(STATUSES)
    command_line = (*arguments(dataset, tmp_path), "--engine", "ray", "--num-workers", "2")
    # Ray's folder has a short name, as its sockets are there.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        environment = {"HOME": str(home), "RAY_TMPDIR": folder, **gates.variables}
        with start(*command_line, environment=environment) as command:
            assert wait_until(lambda: bool(temporary_files(tmp_path)), seconds=TIMEOUT), "no job began"
            processes = psutil.Process(command.pid).children(recursive=True)
            if number is None:
                gates.open()
                assert_complete(command.wait())
                assert tree(tmp_path) == in_memory
                assert written(Path(folder), "session_2*") == []
            else:
                command.kill()
        assert not (home / ".ray" / "auth_token").exists(), "later clusters of this account would take the token"
        assert processes
        assert wait_until(lambda: not any(map(is_alive, processes)), seconds=60)
