"""Damage of every kind to every file of a split."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stream.format.names import TABLE_KINDS, shard_file, table_file
from tests.fixtures.faults.conversion_damage import (
    DATASET,
    OTHER,
    STEM,
    become_a_folder,
    become_a_loose_link,
    become_a_pipe,
    empty,
    flip,
    lengthen,
    remove,
    scramble,
    truncate,
    verify,
    zero,
)

DAMAGES = [flip, truncate, zero, scramble, lengthen, empty, remove, become_a_folder, become_a_pipe, become_a_loose_link]


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [*map(table_file, TABLE_KINDS), shard_file(STEM)])
def test_a_damaged_file_is_named_and_no_other(
    root: Path, folder: Path, name: str, damage: Callable[[Path], None], deep: bool
) -> None:
    path = folder / "train" / name
    damage(path)
    report = verify(root, deep=deep)
    actual = [(item["dataset"], item["version"], item["split"]) for item in report.to_json()["findings"]]
    assert actual == [(DATASET, "1.0.0", "train")]
    assert {problem.file for problem in report.problems} == {str(path)}


@pytest.mark.parametrize(
    "names",
    [
        (f"train/{shard_file(STEM)}", f"train/{shard_file(OTHER)}"),
        *((f"train/{table_file(kind)}", f"val/{table_file(kind)}") for kind in TABLE_KINDS),
    ],
)
def test_two_files_that_were_swapped_are_told_apart(root: Path, folder: Path, names: tuple[str, str]) -> None:
    first, second = sorted(folder / name for name in names)
    extra = folder / "spare"
    first.rename(extra), second.rename(first), extra.rename(second)
    actual = [(problem.file, problem.text) for problem in verify(root, deep=False).problems]
    assert [file for file, _ in actual] == [str(first), str(second)]
    assert [text.split("; ")[-1] for _, text in actual] == [
        f"these are the bytes of {path}" for path in (second, first)
    ]


def test_a_damaged_record_is_named_and_the_others_are_not(root: Path, folder: Path) -> None:
    flip(folder / "train" / shard_file(STEM))
    texts = [problem.text for problem in verify(root).problems]
    assert len(texts) == 2 and "does not read" in texts[1] and texts[1].startswith("record ")


def test_a_split_folder_that_is_gone_is_one_problem(root: Path, folder: Path) -> None:
    shutil.rmtree(folder / "val")
    assert [problem.file for problem in verify(root).problems] == [str(folder / "val")]
