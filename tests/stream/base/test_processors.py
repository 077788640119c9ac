"""Tests of the processors that affinity, control groups and other ranks leave to a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stream.base.machine import usable_processors


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 96 processors, 12 of which are this process's; its parent has all."""
    affinity = os.getpid()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12 if pid in (0, affinity) else 96)))


def count(tmp_path: Path, **environment: str) -> int:
    return usable_processors(environment=environment, proc=tmp_path / "proc", groups=tmp_path / "groups")


def limit(tmp_path: Path, line: str, files: dict[str, str]) -> None:
    """Write the control groups of this process."""
    for name, text in {"proc/self/cgroup": line, **{f"groups/{name}": text for name, text in files.items()}}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_it_is_the_affinity_of_the_process() -> None:
    affinity = os.sched_getaffinity(0)
    assert 1 <= usable_processors(environment={}) <= len(affinity)
    os.sched_setaffinity(0, {min(affinity)})
    try:
        assert usable_processors(environment={}) == 1
    finally:
        os.sched_setaffinity(0, affinity)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 12),
        ({"LOCAL_WORLD_SIZE": "8"}, 12),
        ({"LOCAL_WORLD_SIZE": "16"}, 6),
        ({"LOCAL_WORLD_SIZE": "200"}, 1),
        ({"LOCAL_WORLD_SIZE": "0"}, 12),
        ({"LOCAL_WORLD_SIZE": "two"}, 12),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "1", "SLURM_CPUS_ON_NODE": "32"}, 8),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2", "SLURM_CPUS_ON_NODE": "30"}, 10),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "3", "SLURM_CPUS_ON_NODE": "30"}, 12),
        ({"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NODEID": "0"}, 3),
        ({"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NODEID": "0", "SLURM_CPUS_ON_NODE": "96"}, 12),
        ({"LOCAL_WORLD_SIZE": "16", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NODEID": "0"}, 6),
        ({"SLURM_TASKS_PER_NODE": "4", "SLURM_NODEID": "0"}, 12),
    ],
)
def test_a_rank_has_its_share_and_no_more_than_its_own(
    tmp_path: Path, environment: dict[str, str], expected: int
) -> None:
    assert count(tmp_path, **environment) == expected


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("0::/pod", {"pod/cpu.max": "450000 100000"}, 4),
        ("0::/pod", {"pod/cpu.max": "50000 100000"}, 1),
        ("0::/pod", {"pod/cpu.max": "max 100000"}, 12),
        ("0::/pod/job", {"pod/cpu.max": "300000 100000", "pod/job/cpu.max": "max 100000"}, 3),
        ("0::/pod", {"cpu.max": "700000 100000", "other/cpu.max": "100000 100000"}, 7),
        ("0::/pod", {"pod/cpu.max": "many"}, 12),
        ("3:cpu,cpuacct:/pod", {"cpu/pod/cpu.cfs_quota_us": "200000", "cpu/pod/cpu.cfs_period_us": "50000"}, 4),
        ("3:cpu,cpuacct:/pod", {"cpu/pod/cpu.cfs_quota_us": "-1", "cpu/pod/cpu.cfs_period_us": "100000"}, 12),
        ("3:memory:/pod", {"cpu/pod/cpu.cfs_quota_us": "100000", "cpu/pod/cpu.cfs_period_us": "100000"}, 12),
    ],
)
def test_the_quota_of_a_control_group_counts(tmp_path: Path, line: str, files: dict[str, str], expected: int) -> None:
    limit(tmp_path, line, files)
    assert count(tmp_path) == expected


@pytest.mark.usefixtures("many")
def test_ranks_share_a_quota(tmp_path: Path) -> None:
    limit(tmp_path, "0::/pod", {"pod/cpu.max": "1000000 100000"})
    assert count(tmp_path, LOCAL_WORLD_SIZE="2") == 5
