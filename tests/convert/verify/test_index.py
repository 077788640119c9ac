"""Tables of an index whose bytes are as the manifest says and whose content is wrong."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stream.format.names import TABLE_KINDS, TableKind, shard_file, table_file
from tests.fixtures.datasets.rewritten_records import admit_table, change_table
from tests.fixtures.faults.conversion_damage import OTHER, STEM, edit_manifest, entry_of, problems, verify
from tests.fixtures.parameters import long_but

Change = Callable[[pa.Table], pa.Table]


def change_value(folder: Path, kind: TableKind, column: str, row: int, value: Any) -> None:
    """Change one value, or what it is by a function; rows count from the first of shard STEM, the second of two."""
    shards = json.loads((folder / "dataset.json").read_text())["splits"]["train"]["shards"]

    def edit(table: pa.Table) -> pa.Table:
        values = table.column(column).to_pylist()
        path = shards[0][kind] + row if row >= 0 else row
        values[path] = value(values[path]) if callable(value) else value
        index = table.schema.get_field_index(column)
        field = table.schema.field(index)
        return table.set_column(index, field, pa.array(values, field.type))

    change_table(folder, "train", kind, edit)


def plus_one(value: int) -> int:
    return value + 1


def renamed(table: pa.Table) -> pa.Table:
    return table.rename_columns(["other", *table.column_names[1:]])


def shortened(table: pa.Table) -> pa.Table:
    return table.slice(0, table.num_rows - 1)


def reversed_rows(table: pa.Table) -> pa.Table:
    return table.take(list(reversed(range(table.num_rows))))


def nullable(table: pa.Table) -> pa.Table:
    return table.cast(table.schema.set(1, table.schema.field(1).with_nullable(True)))


EDITS: list[tuple[TableKind, str, int, Any, str]] = [
    ("records", "shard", 0, 0, "shard is 0, expected 1"),
    ("records", "episode", -1, plus_one, "episode is"),
    ("records", "episode", 0, -1, f"(row 0 of {STEM}): episode is -1"),
    ("records", "step", 0, -1, "is outside its episode"),
    ("records", "step", -1, 2**31 - 1, "is outside its episode"),
    ("records", "step", 1, 0, f"(row 1 of {STEM}): step is 0 after 0, expected more"),
    ("records", "camera", 1, 1, f"(row 1 of {STEM}): camera is 1, expected 0"),
    ("records", "offset", 2, 4, f"(row 2 of {STEM}): offset is 4, expected 3"),
    ("records", "steps_row", 0, plus_one, f"(row 0 of {STEM}): steps_row is"),
    ("records", "position", 0, -8, f"(row 0 of {STEM}): "),
    ("records", "num_bytes", 0, 2**31 - 1, "2,147,483,647 bytes at"),
    ("steps", "step", 2, 5, f"(row 2 of {STEM}): step is 5, expected 2"),
    ("steps", "episode", 0, 1, f"(row 0 of {STEM}): episode is 1, expected"),
    ("episodes", "episode", 1, 0, f"(row 1 of {STEM}): episode is 0, expected"),
    ("episodes", "shard", 1, 0, f"(row 1 of {STEM}): shard is 0, expected 1"),
    ("episodes", "num_steps", 0, plus_one, f"steps in {STEM}, the manifest says"),
    ("episodes", "num_steps", 0, -5, "num_steps is -5, expected 0"),
    ("episodes", "first_steps_row", 1, plus_one, f"(row 1 of {STEM}): first_steps_row is"),
    ("episodes", "num_records", 0, plus_one, f"records in {STEM}, the manifest says"),
    ("episodes", "first_record", 1, plus_one, f"(row 1 of {STEM}): first_record is"),
    ("episodes", "status", 0, "fine", f"(row 0 of {STEM}): status is 'fine'"),
    ("episodes", "status", 0, "unreadable", f"has 1 episodes of status unreadable in {STEM}, the manifest says 0"),
    ("episodes", "status", 0, "missing_feature", f"has 1 episodes of status missing_feature in {STEM}"),
    ("episodes", "source_file", 1, "x", f"(row 1 of {STEM}): episode_id is 'bridge"),
    ("episodes", "episode_id", 1, "x", f"(row 1 of {STEM}): episode_id is 'x'"),
    ("episodes", "source_position", 1, 0, f"(row 1 of {STEM}): source_position is 0 after 0"),
]
SCHEMA_EDITS: list[tuple[Change, str]] = [
    (renamed, "column 0 is "),
    (shortened, "rows, the manifest says"),
    (nullable, "column 1 is"),
    (reversed_rows, f"row 0 (row 0 of {OTHER}): "),
]


@pytest.mark.parametrize(("kind", "column", "row", "value", "text"), EDITS)
def test_a_table_that_tells_another_story_is_found_out(
    root: Path, folder: Path, kind: TableKind, column: str, row: int, value: Any, text: str
) -> None:
    change_value(folder, kind, column, row, value)
    report = verify(root, deep=False)
    assert text in problems(report)
    assert {problem.file for problem in report.problems} == {str(folder / "train" / table_file(kind))}


@pytest.mark.parametrize("kind", TABLE_KINDS)
@pytest.mark.parametrize(("edit", "text"), SCHEMA_EDITS)
def test_a_table_of_another_form_is_found_out(
    root: Path, folder: Path, kind: TableKind, edit: Change, text: str
) -> None:
    change_table(folder, "train", kind, edit)
    report = verify(root, deep=False)
    assert text in problems(report)
    assert {problem.file for problem in report.problems} == {str(folder / "train" / table_file(kind))}


def test_more_rows_that_are_wrong_are_counted(root: Path, folder: Path) -> None:
    def edit(table: pa.Table) -> pa.Table:
        path = table.schema.get_field_index("camera")
        return table.set_column(path, table.schema.field(path), pa.array([1] * table.num_rows, pa.int8()))

    change_table(folder, "train", "records", edit)
    (problem,) = verify(root).problems
    assert f"row 0 (row 0 of {OTHER}): camera is 1, expected 0 ({problem.count} of these)" in problem.to_text()
    assert problem.count > 20


@pytest.mark.parametrize("column", ["action", "state", "action_oxe", "state_eef"])
def test_a_derived_column_that_its_raw_columns_do_not_give_is_found_when_deep(
    root: Path, folder: Path, column: str
) -> None:
    change_value(folder, "steps", column, 1, lambda values: [*values[:-1], values[-1] + 0.5])
    assert verify(root, deep=False).ok
    report = verify(root)
    assert f"(row 1 of {STEM}): {column} " in problems(report) and "the raw columns give" in problems(report)
    assert {problem.file for problem in report.problems} == {str(folder / "train" / "steps.arrow")}


def test_a_derived_column_that_is_missing_is_found(root: Path, folder: Path) -> None:
    change_table(folder, "train", "steps", lambda table: table.drop_columns(["action"]))
    assert "column action: there is none, the manifest's registry entry says 7 values" in problems(
        verify(root, deep=False)
    )


def test_a_derived_column_of_another_registry_entry_is_found(root: Path, folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest["spec"]["action"].pop())
    assert "column action: it has 7 values of type <f4 a row, the manifest's registry entry says 6" in problems(
        verify(root, deep=False)
    )


@pytest.mark.parametrize("kind", TABLE_KINDS)
def test_a_column_with_another_checksum_than_the_manifest_says_is_found(
    root: Path, folder: Path, kind: TableKind
) -> None:
    def edit(manifest: Any) -> None:
        columns = manifest["splits"]["train"]["index"][kind]["columns"]
        columns["episode"] = "0123456789abcdef"

    edit_manifest(folder, edit)
    (problem,) = verify(root, deep=False).problems
    assert problem.text.startswith("column 'episode' has XXH3 ")
    assert problem.text.endswith(", expected 0123456789abcdef")


def test_columns_that_the_manifest_does_not_have_are_found(root: Path, folder: Path) -> None:
    def edit(manifest: Any) -> None:
        columns = manifest["splits"]["train"]["index"]["records"]["columns"]
        columns["colour"] = columns.pop("camera")

    edit_manifest(folder, edit)
    texts = [problem.text for problem in verify(root, deep=False).problems]
    assert texts == ["column 'camera' is not in the manifest", "column 'colour' is only in the manifest"]


def test_records_that_the_shard_does_not_have_are_found(root: Path, folder: Path) -> None:
    edit_manifest(folder, lambda manifest: entry_of(manifest).update(paired_episodes=1))
    assert f"episodes with records in {STEM}, the manifest says 1" in problems(verify(root, deep=False))


@pytest.mark.parametrize("kind", long_but(["records"], TABLE_KINDS))
def test_no_byte_of_a_table_can_raise(root: Path, folder: Path, kind: TableKind) -> None:
    path = folder / "train" / table_file(kind)
    complete_bytes, rng = path.read_bytes(), random.Random(kind)
    for _ in range(40):
        content = bytearray(complete_bytes)
        start = rng.randrange(len(content))
        content[start : start + rng.choice([1, 8, 200])] = rng.randbytes(1)
        path.write_bytes(content)
        admit_table(folder, "train", kind)
        verify(root, deep=True)


def test_a_table_in_two_batches_is_found_out(root: Path, folder: Path) -> None:
    path = folder / "train" / "records.arrow"
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    admit_table(folder, "train", "records")
    assert "record batches, expected one" in problems(verify(root))


def test_a_compressed_table_is_found_out(root: Path, folder: Path) -> None:
    path = folder / "train" / "steps.arrow"
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    admit_table(folder, "train", "steps")
    assert "it is compressed or damaged" in problems(verify(root))


def test_damage_of_the_index_is_not_blamed_on_the_shards(root: Path, folder: Path) -> None:
    (folder / "train" / "records.arrow").unlink()
    os.truncate(folder / "train" / shard_file(STEM), 100_000)
    files = [problem.file for problem in verify(root).problems]
    assert set(files) == {str(folder / "train" / name) for name in ("records.arrow", shard_file(STEM))}
