"""Tests of opening the index of a split, and of the comparison of its columns with the manifest."""

from __future__ import annotations

import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import stream.format.index
from stream import make_loader
from stream.base.errors import FormatError
from stream.format.catalog import Catalog
from stream.format.index import IndexCheck, SplitIndex, UsedColumn, open_index, used_columns
from stream.format.names import TABLE_KINDS, TableKind, table_file
from tests.stream.index_root import change_table, open_data, open_split, read_table, with_values, write_dataset

NO_VECTORS = {"action": None, "state": None, "language": None}


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a dataset; tests do not write to it."""
    root = tmp_path_factory.mktemp("index")
    return write_dataset(root, "arm", {"train": [[5, 1, 4], [], [6]], "test": [[4], [3, 7]]})


@pytest.fixture
def folder(converted: Path, tmp_path: Path) -> Path:
    """Copy the dataset, for tests that damage it."""
    shutil.copytree(converted, tmp_path / "arm" / "1.0.0")
    return tmp_path / "arm" / "1.0.0"


def columns_of(folder: Path, columns: list[tuple[TableKind, str]], split: str = "train") -> list[UsedColumn]:
    dataset = Catalog(folder.parents[1]).open("arm")
    index = open_index(dataset, split)
    return used_columns(dataset, index, columns, reference=index)


def all_columns(folder: Path) -> list[UsedColumn]:
    index = open_split(folder)
    return columns_of(folder, [(kind, name) for kind in TABLE_KINDS for name in index.table(kind).columns])


def flip(folder: Path, kind: TableKind, name: str, *, span: int = -1, split: str = "train") -> None:
    """Change a byte of a column in a new file, since the old one may be mapped."""
    path = folder / split / table_file(kind)
    start, stop = open_split(folder, split).table(kind).columns[name].spans[span]
    content = bytearray(path.read_bytes())
    content[(start + stop) // 2] ^= 4
    path.unlink()
    path.write_bytes(content)


def fault_of(folder: Path, kind: TableKind, name: str, split: str = "train") -> str:
    return rf"^{folder}/{split}/{kind}\.arrow: column '{name}' differs from the manifest"


def test_a_split_is_opened_with_its_tables_and_shards(converted: Path) -> None:
    for split in ("train", "test"):
        index = open_split(converted, split)
        assert (index.dataset, index.split, index.folder) == ("arm", split, str(converted / split))
        for kind in TABLE_KINDS:
            assert index.table(kind).arrow().equals(read_table(converted, kind, split))
        for shard in range(len(index.shards)):
            path = Path(index.record_path(shard))
            assert path.parent == converted / split
            assert path.stat().st_size == index.shards.sizes[shard]
            assert path.stem == index.shards.stem(shard)
        shards, firsts = index.records.array("shard"), index.shards.first_records
        expected = np.repeat(np.arange(len(index.shards)), np.diff(firsts))
        np.testing.assert_array_equal(shards, expected)
        assert firsts[0] == 0
        assert index.shards.episodes.tolist() == [
            int((index.episodes.array("shard") == shard).sum()) for shard in range(len(index.shards))
        ]


@pytest.mark.parametrize("kind", TABLE_KINDS)
def test_a_table_that_is_not_as_the_manifest_says_is_refused(folder: Path, kind: TableKind) -> None:
    path = folder / "train" / table_file(kind)
    content = path.read_bytes()
    for damage in (content[:-1], content + b"\0"):
        path.unlink()
        path.write_bytes(damage)
        with pytest.raises(FormatError, match=f"^{path}: "):
            open_split(folder)
    path.unlink()
    path.write_bytes(content)
    change_table(folder, kind, lambda table: table.slice(0, len(table) - 1))
    with pytest.raises(FormatError, match=rf"{kind}\.arrow: \d+ rows, the manifest says \d+"):
        open_split(folder)


def test_each_column_is_used_once_and_has_its_checksum_and_size(converted: Path) -> None:
    asked: list[tuple[TableKind, str]] = [("records", "step"), ("steps", "note"), ("records", "step")]
    step, note = columns_of(converted, asked)
    assert (step.name, note.name) == ("step", "note")
    assert step.bytes == 4 * len(open_split(converted).records)
    assert note.bytes == sum(stop - start for start, stop in note.table.columns["note"].spans) > 0
    manifest = Catalog(converted.parents[1]).open("arm").manifest
    assert note.xxh3 == manifest.splits["train"].index["steps"].columns["note"]
    with pytest.raises(FormatError, match=r"steps\.arrow: column 'missing' is not in both the file and the manifest"):
        columns_of(converted, [("steps", "missing")])


def other_type(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("state", lambda rows: pa.array([[1, 2, 3]] * rows, pa.list_(pa.float32(), 3))),
        ("reward", lambda rows: pa.array([1] * rows, pa.float64())),
        ("is_last", lambda rows: pa.array([1] * rows, pa.uint8())),
        ("note", lambda rows: pa.array([1] * rows, pa.int32())),
    ],
)
def test_splits_whose_columns_differ_in_type_are_refused(
    folder: Path, name: str, values: Callable[[int], pa.Array]
) -> None:
    change_table(folder, "steps", lambda table: other_type(table, name, values(len(table))), split="test")
    root = folder.parents[1]
    open_data(root, {"arm": 1}, split="train", columns=("reward", "is_last", "note")).check  # noqa: B018
    data = open_data(root, {"arm": 1}, split="train+test", columns=("reward", "is_last", "note"))
    with pytest.raises(FormatError, match=rf"test/steps\.arrow: column '{name}' is of another type than in .*/train/"):
        _ = data.check


def test_every_column_of_a_small_index_is_checked_at_once(folder: Path) -> None:
    columns = all_columns(folder)
    assert sum(len(_spans(column)) for column in columns) > 40
    for column in columns:
        path = Path(column.table.path)
        content = path.read_bytes()
        intact = [reference for reference in columns if reference is not column]
        for start, stop in _spans(column):
            path.unlink()
            path.write_bytes(content[:start] + bytes([content[start] ^ 4]) + content[start + 1 :])
            with pytest.raises(FormatError, match=rf"^{path}: column '{column.name}' differs from the manifest"):
                IndexCheck(columns)
            IndexCheck(intact)
            assert stop > start
        path.unlink()
        path.write_bytes(content)
    check = IndexCheck(columns)
    check.start()
    check.raise_error()
    assert check._thread is None


def _spans(column: UsedColumn) -> tuple[tuple[int, int], ...]:
    return column.table.columns[column.name].spans


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_columns_are_hashed_in_pieces(folder: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream.format.table, "CHUNK", chunk)
    IndexCheck(all_columns(folder))
    flip(folder, "steps", "count")
    with pytest.raises(FormatError, match=fault_of(folder, "steps", "count")):
        IndexCheck(all_columns(folder))


def test_a_file_that_changes_after_it_was_opened_is_an_error(folder: Path) -> None:
    columns = columns_of(folder, [("records", "xxh3_64")])
    path = folder / "train" / "records.arrow"
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(FormatError, match=rf"^{path}: cannot be read \(No such file or directory\)"):
        IndexCheck(columns)
    path.write_bytes(content[: columns[0].table.columns["xxh3_64"].data + 8])
    with pytest.raises(FormatError, match=f"^{path}: ends before column 'xxh3_64' does"):
        IndexCheck(columns)


@pytest.fixture
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every index as a large one."""
    monkeypatch.setattr(stream.format.index, "_AT_ONCE", 0)


def checked(columns: list[UsedColumn]) -> IndexCheck:
    """Run a check to its end in the background."""
    check = IndexCheck(columns)
    check.raise_error()
    check.start()
    thread = check._thread
    assert thread is not None and thread.daemon
    check.start()
    assert check._thread is thread
    thread.join()
    return check


@pytest.mark.long
@pytest.mark.usefixtures("_large")
def test_a_large_index_is_checked_in_the_background(folder: Path) -> None:
    checked(all_columns(folder)).raise_error()
    flip(folder, "steps", "reward")
    check = checked(all_columns(folder))
    for _ in range(2):
        with pytest.raises(FormatError, match=fault_of(folder, "steps", "reward")):
            check.raise_error()


@pytest.mark.usefixtures("_large")
@pytest.mark.parametrize(("free_bytes", "num_checked"), [(0, 0), (1, 1), (2, 2), (3, 3), (100, 3), (None, 3)])
def test_reading_ahead_takes_at_most_half_of_the_memory_available(
    folder: Path, free_bytes: int | None, num_checked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three columns have the same size; ``free_bytes`` is the count of columns that fit in half of the memory."""
    names = ("position", "xxh3_64", "steps_row")
    asked: list[tuple[TableKind, str]] = [("records", name) for name in names]
    size = columns_of(folder, asked)[0].bytes
    available = None if free_bytes is None else 2 * free_bytes * size + 1
    monkeypatch.setattr(stream.format.index, "available_memory", lambda: available)
    original = (folder / "train" / "records.arrow").read_bytes()
    seen = 0
    for name in names:
        flip(folder, "records", name)
        seen += checked(columns_of(folder, asked)).error is not None
        (folder / "train" / "records.arrow").unlink()
        (folder / "train" / "records.arrow").write_bytes(original)
    assert seen == num_checked


@pytest.mark.usefixtures("_large")
def test_an_iterator_raises_what_the_background_finds(folder: Path) -> None:
    flip(folder, "steps", "action")
    iterator = iter(make_loader(folder.parents[1], {"arm": 1}, batch_size=2, num_workers=0))
    end = time.monotonic() + 300
    with pytest.raises(FormatError, match=fault_of(folder, "steps", "action")):
        while time.monotonic() < end:
            next(iterator)
    with pytest.raises(FormatError):
        next(iterator)
    iterator.close()


@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [
        ("episodes", "first_record", {}),
        ("episodes", "first_record", {"samples_per_episode": 2}),
        ("records", "episode", {"select": {"where": [("score", ">", -9.0)]}, **NO_VECTORS}),
        ("steps", "reward", {"select": {"where": [("reward", ">", -9.0)]}}),
        ("records", "steps_row", {"select": {"where": [("reward", ">", -9.0)]}, **NO_VECTORS}),
        ("episodes", "score", {"select": {"where": [("score", ">", -9.0)]}}),
        ("records", "camera", {"select": {"where": [("camera", "!=", 7)]}}),
        ("records", "position", NO_VECTORS),
        ("records", "shard", NO_VECTORS),
        ("steps", "language", {}),
        ("steps", "action", {}),
        ("steps", "state", {}),
        ("steps", "observation/state", {"state": {"columns": {"arm": ["observation/state"]}}}),
        ("episodes", "num_steps", {"action": 3}),
        ("episodes", "scene", {"columns": ("scene",)}),
    ],
)
def test_what_a_loader_uses_is_checked(folder: Path, kind: TableKind, name: str, options: dict[str, Any]) -> None:
    root = folder.parents[1]
    _ = open_data(root, {"arm": 1}, split="train+test", **options).check
    flip(folder, kind, name, span=0 if name == "scene" else -1, split="test")
    # Some damage shows before the comparison.
    with pytest.raises(FormatError, match=rf"test/({kind}\.arrow: .*{name}|records\.arrow: names rows)"):
        _ = open_data(root, {"arm": 1}, split="train+test", **options).check


def test_what_a_loader_does_not_use_may_be_damaged(folder: Path) -> None:
    for kind, name in (("steps", "reward"), ("episodes", "score"), ("steps", "words"), ("episodes", "num_records")):
        flip(folder, kind, name)  # type: ignore[arg-type]
    _ = open_data(folder.parents[1], {"arm": 1}).check


@pytest.mark.parametrize("samples_per_episode", [0, 2])
@pytest.mark.parametrize("value", [-1, -(1 << 31), 1 << 30, (1 << 31) - 1, 1 << 62, -(1 << 63), (1 << 63) - 1])
def test_episodes_that_lead_outside_of_the_records_are_an_error(
    folder: Path, value: int, samples_per_episode: int
) -> None:
    def change(table: pa.Table) -> pa.Table:
        values = table["first_record"].to_pylist()
        values[2] = value
        return with_values(table, "first_record", values)

    change_table(folder, "episodes", change)
    with pytest.raises(FormatError, match=r"train/episodes\.arrow: first_record leads outside of 9 records"):
        open_data(folder.parents[1], {"arm": 1}, split="train[2:]+train[1:2]", samples_per_episode=samples_per_episode)


def test_an_index_takes_little_to_send_to_a_worker(converted: Path) -> None:
    index: SplitIndex = open_split(converted)
    _ = index.steps.content
    unpickled: SplitIndex = pickle.loads(pickle.dumps(index))
    assert len(pickle.dumps(index)) < 20_000
    assert unpickled.steps.arrow().equals(index.steps.arrow())
