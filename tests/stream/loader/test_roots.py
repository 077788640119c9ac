"""Members of a mixture with a root of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from stream import load_loader, make_loader
from stream.base.errors import ArgumentError
from tests.fixtures.command import run


@pytest.fixture
def mine(oxe_root: Path, tmp_path: Path) -> Path:
    """A root with kuka alone."""
    shutil.copytree(oxe_root / "kuka", tmp_path / "mine" / "kuka")
    return tmp_path / "mine"


def test_a_member_of_another_root_gives_the_batches_of_one_root(oxe_root: Path, mine: Path, tmp_path: Path) -> None:
    together = make_loader(oxe_root, {"bridge": 1, "kuka": 2}, batch_size=16)
    apart = make_loader(oxe_root, {"bridge": 1, "kuka": {"root": str(mine), "weight": 2}}, batch_size=16)
    (tmp_path / "soup.yaml").write_text(
        "members: {bridge: {split: train}, kuka: {split: train, root: mine, weight: 2}}"
    )
    from_file = make_loader(oxe_root, tmp_path / "soup.yaml", batch_size=16)
    for loader in (apart, from_file):
        assert loader.state_at(3) == together.state_at(3)
        np.testing.assert_array_equal(loader.batch_at(5)["frames"], together.batch_at(5)["frames"])
    apart.save(tmp_path / "loader.json")
    loaded = load_loader(tmp_path / "loader.json")
    assert loaded.describe(7) == together.describe(7)


def test_a_member_takes_a_name_of_its_own(oxe_root: Path, mine: Path) -> None:
    loader = make_loader(oxe_root, {"kuka": 1, "my_robot": {"dataset": "kuka", "root": mine.as_posix()}}, batch_size=8)
    assert loader.dataset_names == ("kuka", "my_robot")
    assert {ref.dataset for ref in loader.describe(0)} == {"kuka", "my_robot"}


def test_a_root_that_is_not_there_is_named(oxe_root: Path) -> None:
    with pytest.raises(ArgumentError, match="/nowhere: no such folder; give the --output of a conversion"):
        make_loader(oxe_root, {"kuka": {"root": "/nowhere"}}, batch_size=8)


def test_fetch_leaves_other_roots_unchanged(oxe_root: Path, mine: Path, tmp_path: Path) -> None:
    soup = tmp_path / "soup.yaml"
    soup.write_text("members: {bridge: 1, kuka: {root: mine}}")
    done = run(str(oxe_root), str(tmp_path / "local"), "--mixture", str(soup), module="pairstream fetch")
    assert done.code == 2
    assert "member kuka has a separate root" in done.err
    assert not (tmp_path / "local").exists()


def test_convert_leaves_members_with_a_root_of_their_own_out(oxe_root: Path, mine: Path, tmp_path: Path) -> None:
    soup = tmp_path / "soup.yaml"
    soup.write_text("members: {bridge: 1, late: {dataset: bridge, split: 'train[5:]'}, kuka: {root: mine}}")
    source = ("--source", str(oxe_root.parent / "source"), "--output", str(tmp_path / "out"))
    done = run("--datasets", str(soup), *source, "--dry-run", module="convert.run")
    assert done.code == 0, done.err
    assert "bridge" in done.out
    assert "kuka" not in done.out
