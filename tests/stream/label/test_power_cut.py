"""A power cut loses what was not synced: labels are then those of before or the new ones, whole in either case."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from convert.verify.command import verify_root
from pairstream.fetch import fetch
from stream.format.manifest import read_manifest
from stream.format.names import waiting_label
from tests.fixtures.faults.disk import disks_of, write_tree
from tests.stream.label.conftest import Action, attach, remove, value_of


@pytest.mark.parametrize(
    ("before", "action", "old", "new"),
    [(None, attach(5), None, 5), (attach(5), attach(7), 5, 7), (attach(5), remove, 5, None)],
    ids=["attaching", "replacing", "removing"],
)
def test_every_disk_that_a_power_cut_may_leave_has_the_old_labels_or_the_new(
    before: Action | None,
    action: Action,
    old: float | None,
    new: float | None,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if before is not None:
        before(root)
    during, after = disks_of(action, root, monkeypatch)
    values = []
    for number, tree in enumerate([*during, *after]):
        left = tmp_path / f"left{number}"
        write_tree(tree, left)
        values.append(value_of(left))
        assert [problem for problem in verify_root(left, jobs=1).problems if "/labels/" in str(problem.file)] == []
        attach(9)(left)
        assert value_of(left) == 9
        assert [path for path in left.rglob(".*") if path.is_file()] == []
        shutil.rmtree(left)
    assert set(values) == {old, new}
    # What the caller was told to be attached or removed stays so.
    assert set(values[len(during) :]) == {new}


def test_a_power_cut_after_a_fetch_leaves_all_that_was_fetched(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach(5)(root)
    disks = tmp_path / "disks"
    disks.mkdir()
    _, after = disks_of(lambda disk: fetch(str(root), disk / "new" / "copy", "demo"), disks, monkeypatch)
    for number, tree in enumerate(after):
        write_tree(tree, tmp_path / f"left{number}")
        assert value_of(tmp_path / f"left{number}" / "new" / "copy") == 5


def test_labels_that_wait_for_their_name_are_removed_and_not_lost_before(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach(5)(root)
    (folder,) = root.glob("demo/*")
    # A process was killed after the manifest named the new table, and the old one has the name still.
    path = folder / "train" / "labels" / "value.arrow"
    entry = read_manifest(folder).splits["train"].labels["value"]
    path.rename(path.with_name(waiting_label("value", entry.sha256)))
    path.write_bytes(b"the table of before")
    during, after = disks_of(remove, root, monkeypatch)
    for number, tree in enumerate([*during, *after]):
        write_tree(tree, tmp_path / f"left{number}")
        assert value_of(tmp_path / f"left{number}") in ((5, None) if number < len(during) else (None,))
