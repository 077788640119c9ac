"""A power cut loses what was not synced: a conversion is then old or new, and never names files that it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from convert.journal.journal import Journal
from convert.plan import Conversion, ConvertConfig
from convert.shard.images import FramePolicy
from convert.storage.durable import describe_durably
from stream.format.manifest import read_manifest
from tests.fixtures.command import tree
from tests.fixtures.datasets.rlds_dataset import RldsDataset, convert_dataset, demo_episode, write_dataset
from tests.fixtures.faults.disk import Disk, write_tree
from tests.fixtures.faults.kill_points import check_as_reader

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def source(tmp_path: Path) -> RldsDataset:
    return write_dataset(tmp_path / "source", splits={"train": [[demo_episode(4, seed=1)], [demo_episode(3, seed=2)]]})


def conversion_of(source: RldsDataset, output: Path) -> Conversion:
    return source.conversion(output, ConvertConfig(policy=FramePolicy(size=None)))


def after_each_rename(patch: pytest.MonkeyPatch, look: Callable[[str], object]) -> None:
    """Call a function with the new name after each rename."""
    replace = os.replace

    def replacing(source: Any, target: Any, **more: Any) -> None:
        replace(source, target, **more)
        look(str(target))

    patch.setattr(os, "replace", replacing)


def test_every_disk_that_a_power_cut_may_leave_is_no_conversion_or_a_whole_one(
    source: RldsDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    output.mkdir()
    disk = Disk(output)
    actual: list[str] = []

    def look(name: str) -> None:
        for left in disk.survivors():
            actual.append(f"{tmp_path}/left{len(actual)}")
            write_tree(left, Path(actual[-1]))

    conversion = conversion_of(source, output)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", disk.sync)
        after_each_rename(patch, look)
        convert_dataset(conversion)
        before_end = len(actual)
        look("the end")
    complete_bytes = tree(output)
    complete = 0
    for left in map(Path, actual):
        if (left / "demo/1.0.0/dataset.json").exists():
            check_as_reader(left, lost=set())
            complete += 1
            kept = tree(left)
            assert {name: kept.get(name) for name in complete_bytes} == complete_bytes
    assert 0 < complete < len(actual)
    # What the caller is told to be complete stays.
    assert all((Path(left) / "demo/1.0.0/dataset.json").exists() for left in actual[before_end:])


def test_a_power_cut_while_a_dataset_is_removed_never_leaves_a_manifest_without_its_files(
    source: RldsDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    convert_dataset(conversion_of(source, output))
    disk, unlink = Disk(output), os.unlink
    actual: list[dict[str, bytes | None]] = []

    def unlinking(path: Any, **more: Any) -> None:
        unlink(path, **more)
        actual.extend(disk.survivors())

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", disk.sync)
        patch.setattr(os, "unlink", unlinking)
        Journal(output / "demo/1.0.0").remove_output()
    assert len(actual) > 5
    for number, left in enumerate(actual):
        write_tree(left, tmp_path / f"left{number}")
        check_as_reader(tmp_path / f"left{number}", lost=set())
    assert "demo/1.0.0/dataset.json" not in actual[-1]


def test_a_power_cut_while_a_shard_is_replaced_never_leaves_the_old_manifest_with_the_new_shard(
    source: RldsDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    convert_dataset(conversion_of(source, output))
    journal = Journal(output / "demo/1.0.0")
    disk = Disk(output)
    name = read_manifest(output / "demo/1.0.0").splits["train"].shards[0].name
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", disk.sync)
        journal.begin({})
        with journal.lock(name), journal.stage(name) as folder:
            for kind in ("episodes", "steps", "records", "arrayrecord"):
                (folder / kind).write_bytes(b"new")
                describe_durably(folder / kind)
            journal.withdraw(name)
            journal.place(name, folder)
            for number, left in enumerate(disk.survivors()):
                write_tree(left, tmp_path / f"left{number}")
    for left_over in tmp_path.glob("left*"):
        check_as_reader(left_over, lost=set())


@pytest.mark.long
@pytest.mark.parametrize("case", ["new", "changed"])
def test_cut_anywhere_the_same_command_ends_as_if_nothing_had_happened(
    source: RldsDataset, tmp_path: Path, case: str
) -> None:
    source.registry()
    before = tmp_path / "before"
    before.mkdir()
    if case == "changed":
        convert_dataset(conversion_of(source, before))
        (before / "demo/1.0.0/train/train-00001-of-00002.arrayrecord").unlink()
    convert_dataset(conversion_of(source, tmp_path / "complete"))
    locations = (source.root, before, tmp_path / "complete", tmp_path / "copies")
    command = [sys.executable, "-m", "tests.fixtures.faults.kill_points", "power", *map(str, locations)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 20
