"""Tests of the memory that the kernel and the control groups leave to a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream.base.machine import available_memory

GB = 1 << 30
HUGE = str((1 << 63) - 4096)
"""Limit that version 1 of control groups gives to an unlimited group."""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text(f"MemTotal: {64 * GB // 1024} kB\nMemAvailable: {50 * GB // 1024} kB\n")
    return folder


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "cgroup"


def group(folder: Path, limit: int | str, used: int, *, inactive: int = 0) -> None:
    """Write a control group of version 2."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")


def old_group(folder: Path, limit: int | str, used: int, *, inactive: int = 0) -> None:
    """Write a control group of version 1."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"inactive_file 7\ntotal_inactive_file {inactive}\n")


def test_without_a_group_it_is_what_the_kernel_says(proc: Path, groups: Path) -> None:
    assert available_memory(proc=proc, groups=groups) == 50 * GB


def test_the_own_group_counts_and_not_the_root_alone(proc: Path, groups: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/user.slice/job.scope\n")
    group(groups, "max", 30 * GB)
    group(groups / "user.slice" / "job.scope", 4 * GB, 3 * GB)
    assert available_memory(proc=proc, groups=groups) == GB


def test_the_smallest_limit_on_the_way_up_counts(proc: Path, groups: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/user.slice/job.scope/step\n")
    group(groups / "user.slice" / "job.scope" / "step", "max", GB)
    group(groups / "user.slice" / "job.scope", 8 * GB, 6 * GB)
    group(groups / "user.slice", 20 * GB, 15 * GB)
    group(groups / "other.slice", GB, GB)
    assert available_memory(proc=proc, groups=groups) == 2 * GB


def test_pages_of_files_that_nobody_uses_are_free(proc: Path, groups: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/job\n")
    group(groups / "job", 8 * GB, 8 * GB, inactive=3 * GB)
    assert available_memory(proc=proc, groups=groups) == 3 * GB


def test_a_group_that_is_the_root_of_a_container_counts(proc: Path, groups: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/machine/containers/4711\n")
    group(groups, 6 * GB, 2 * GB)
    assert available_memory(proc=proc, groups=groups) == 4 * GB


def test_groups_of_the_first_version_are_those_of_the_memory_controller(proc: Path, groups: Path) -> None:
    (proc / "self" / "cgroup").write_text("11:cpu,cpuacct:/elsewhere\n5:memory:/slurm/job_7\n1:name=systemd:/x\n")
    old_group(groups / "memory", HUGE, 30 * GB)
    old_group(groups / "memory" / "slurm" / "job_7", 2 * GB, GB, inactive=GB // 2)
    old_group(groups / "memory" / "elsewhere", 1, 0)
    assert available_memory(proc=proc, groups=groups) == 3 * GB // 2


def test_use_over_the_limit_is_none_left(proc: Path, groups: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/job\n")
    group(groups / "job", GB, 2 * GB)
    assert available_memory(proc=proc, groups=groups) == 0


def test_files_that_hold_something_else_are_left_out(proc: Path, groups: Path) -> None:
    (proc / "self" / "cgroup").write_text("nothing\n0::/job\n")
    group(groups / "job", "many", 0)
    (proc / "meminfo").write_text("MemAvailable:\n")
    assert available_memory(proc=proc, groups=groups) is None


def test_this_machine_has_some() -> None:
    assert (available_memory() or 0) > 1 << 20
