"""Tables in files, with masks, by the command: what would lose a value in silence is one error."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stream
from pairstream.label import main
from stream.base.errors import ArgumentError
from tests.fixtures.command import tree
from tests.fixtures.faults.other_user import open_to_others
from tests.stream.index_root import open_split, write_dataset


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "root", "demo", {"train": [[2, 1]]})
    return tmp_path / "root"


def write_folder(folder: Path, *tables: dict[str, Any]) -> Path:
    folder.mkdir()
    for number, table in enumerate(tables):
        pq.write_table(pa.table(table), folder / f"{number}.parquet")
    return folder


def labels(root: Path, column: str) -> list[Any]:
    values: list[Any] = open_split(next(root.glob("demo/*"))).steps.arrow().column(column).to_pylist()
    return values


@pytest.mark.parametrize(
    ("second", "columns"),
    [
        ({"episode": [1], "y": [2.0]}, "episode int64, y double"),
        ({"episode": [1]}, "episode int64"),
        ({"episode": [1], "x": [2.0], "y": [1]}, "episode int64, x double, y int64"),
        ({"episode": [1], "x": ["a"]}, "episode int64, x string"),
        ({"episode": [1], "x": pa.array([2.0], pa.float32())}, "episode int64, x float"),
    ],
)
def test_files_of_a_folder_with_other_columns_are_refused_by_name(
    root: Path, tmp_path: Path, second: dict[str, Any], columns: str
) -> None:
    folder = write_folder(tmp_path / "x", {"episode": [0], "x": [1.0]}, second)
    with pytest.raises(ArgumentError, match=f"1.parquet: has the columns {columns}, and .*0.parquet in the same"):
        stream.add_labels(root, "demo", folder)


def test_files_of_a_folder_have_their_columns_in_any_order_and_their_endings_in_any_case(
    root: Path, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "x", {"episode": [0], "x": [1.0]}, {"x": [2.0], "episode": [1]})
    (folder / "1.parquet").rename(folder / "1.PARQUET")
    stream.add_labels(root, "demo", folder)
    assert labels(root, "x") == [1, 1, 2]
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "0.csv").write_text("episode,y\n0,1\n")
    (tmp_path / "csv" / "1.csv").write_text("episode,z\n1,1\n")
    with pytest.raises(ArgumentError, match=r"1.csv: has the columns episode, z, and .*0.csv"):
        stream.add_labels(root, "demo", tmp_path / "csv")


@pytest.mark.parametrize("mask", [[1, 0], ["yes", "no"], [1.0, 0.0]])
def test_a_mask_that_is_not_of_booleans_is_refused_unless_it_is_chosen_as_a_label(root: Path, mask: list[Any]) -> None:
    table = {"episode": [0, 1], "x": [1, 2], "x_mask": mask}
    for columns in (None, ["x"]):
        with pytest.raises(ArgumentError, match=r"column 'x_mask' is .*; expected the mask of 'x', true or false"):
            stream.add_labels(root, "demo", table, name="x", columns=columns)
    stream.add_labels(root, "demo", table, name="x", columns=["x", "x_mask"])
    assert (labels(root, "x"), labels(root, "x_mask")) == ([1, 1, 2], [mask[0], *mask])
    # Without the column that it would be of, a name is a name.
    stream.add_labels(root, "demo", {"episode": [0], "y_mask": [3]})
    assert labels(root, "y_mask") == [3, 3, None]


def test_a_column_whose_name_cannot_be_printed_is_refused(root: Path) -> None:
    for name in ("a\nb", "a\x00b", "\ud800"):
        with pytest.raises(ArgumentError, match=r"a label cannot have this name|cannot be read"):
            stream.add_labels(root, "demo", {"episode": [0], name: [1]}, name="x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--columns", ""], "no column '' to attach; columns there: x"),
        (["--name", ""], "name=''"),
        (["--split", ""], "no split ''"),
    ],
)
def test_an_empty_option_is_not_a_missing_one(
    root: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"episode": [0], "x": [1]}), tmp_path / "x.parquet")
    before = tree(root)
    assert main([str(root), "demo", str(tmp_path / "x.parquet"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert tree(root) == before


def test_options_of_a_table_are_refused_without_one(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--name", "x"], ["--columns", "x"], ["--overwrite"], ["--split", "train"]):
        assert main([str(root), "demo", *option]) == 2
        assert capsys.readouterr().err.startswith(f"error: {option[0]} is for a TABLE to attach")


def test_a_key_that_is_a_list_and_a_column_of_nulls_alone_are_one_error_each(root: Path, tmp_path: Path) -> None:
    for name in ("episode_id", "dataset"):
        with pytest.raises(ArgumentError, match=rf"the key '{name}' is list<.*>; expected texts"):
            stream.add_labels(root, "demo", {"episode": [0], name: [[1]], "x": [1]})
    (tmp_path / "x.csv").write_text("episode,x\n")
    with pytest.raises(ArgumentError, match="column 'x' has no value at all"):
        stream.add_labels(root, "demo", tmp_path / "x.csv")


def as_another_user(arguments: list[str], error: Path) -> int:
    """Run the command as a user who may write nothing here; return its exit code, and write its error to a file."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = -1
    with error.open("w") as sys.stderr:
        os.setgroups([])
        os.setuid(65534)
        code = main(arguments)
    os._exit(code)


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
def test_a_root_of_somebody_else_is_one_error_and_stays_as_it_is(root: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"episode": [0], "x": [1]}), tmp_path / "x.parquet")
    stream.add_labels(root, "demo", {"episode": [0], "old": [1]})
    before = tree(root)
    open_to_others(tmp_path)
    for arguments in ([str(tmp_path / "x.parquet")], ["--remove", "old"]):
        assert as_another_user([str(root), "demo", *arguments], tmp_path / "error") == 1
        error = (tmp_path / "error").read_text()
        assert error.startswith("error: ") and "Permission denied" in error and error.count("\n") == 1, error
        assert tree(root) == before


def test_values_stay_when_their_memory_is_given_back_after_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream.label.columns._KEPT", 0)
    write_dataset(tmp_path, "demo", {"train": [[600]]}, offset=1, size=(8, 8))
    rows = {"episode": [0] * 600, "step": list(range(600)), "value": [step * 0.5 for step in range(600)]}
    parts = pa.Table.from_batches(pa.table(rows).to_batches(max_chunksize=200))
    stream.add_labels(tmp_path, "demo", parts, name="value")
    assert labels(tmp_path, "value") == rows["value"]
