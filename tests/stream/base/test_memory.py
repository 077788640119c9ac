"""Tests of the memory that the kernel and the control groups leave to a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream.base.machine import available_memory

GB = 1 << 30
HUGE = str((1 << 63) - 4096)
"""Limit that version 1 of control groups gives to an unlimited group."""
MEMINFO = f"MemTotal: {64 * GB // 1024} kB\nMemAvailable: {50 * GB // 1024} kB\n"
V2 = ("memory.max", "memory.current", "anon 1\ninactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "inactive_file 7\ntotal_inactive_file")
Group = tuple[tuple[str, str, str], str, int | str, int, int]
"""Names of the files of a group, its folder, its limit, the bytes that it uses, and those of unused files."""


@pytest.mark.parametrize(
    ("own", "groups", "available"),
    [
        (None, [], 50 * GB),
        ("0::/user/job", [(V2, ".", "max", 30 * GB, 0), (V2, "user/job", 4 * GB, 3 * GB, 0)], GB),
        (
            "0::/user/job/step",
            [
                (V2, "user/job/step", "max", GB, 0),
                (V2, "user/job", 8 * GB, 6 * GB, 0),
                (V2, "user", 20 * GB, 15 * GB, 0),
                (V2, "other", GB, GB, 0),
            ],
            2 * GB,
        ),
        ("0::/job", [(V2, "job", 8 * GB, 8 * GB, 3 * GB)], 3 * GB),
        ("0::/machine/containers/4711", [(V2, ".", 6 * GB, 2 * GB, 0)], 4 * GB),
        (
            "11:cpu,cpuacct:/elsewhere\n5:memory:/slurm/job_7\n1:name=systemd:/x",
            [
                (V1, "memory", HUGE, 30 * GB, 0),
                (V1, "memory/slurm/job_7", 2 * GB, GB, GB // 2),
                (V1, "memory/elsewhere", 1, 0, 0),
            ],
            3 * GB // 2,
        ),
        ("0::/job", [(V2, "job", GB, 2 * GB, 0)], 0),
        ("nothing\n0::/job", [(V2, "job", "many", 0, 0)], 50 * GB),
    ],
    ids=[
        *("what the kernel says", "its own group", "the smallest limit on the way up", "unused pages of files"),
        *("the root of a container", "the first version", "use over the limit", "something else"),
    ],
)
def test_the_least_of_the_kernel_and_the_groups_is_available(
    own: str | None, groups: list[Group], available: int, tmp_path: Path
) -> None:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(MEMINFO)
    if own is not None:
        (proc / "self" / "cgroup").write_text(f"{own}\n")
    for (limit_file, usage_file, inactive), name, limit, used, unused in groups:
        folder = tmp_path / "cgroup" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / limit_file).write_text(f"{limit}\n")
        (folder / usage_file).write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"{inactive} {unused}\n")
    assert available_memory(proc=proc, groups=tmp_path / "cgroup") == available
    (proc / "meminfo").write_text("MemAvailable:\n")
    if own is None or own.startswith("nothing"):
        assert available_memory(proc=proc, groups=tmp_path / "cgroup") is None


def test_this_machine_has_some() -> None:
    assert (available_memory() or 0) > 1 << 20
