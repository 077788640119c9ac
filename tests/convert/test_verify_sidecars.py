"""Sidecars whose bytes are as the manifest says and whose content is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from convert.sidecars import write_sidecar
from stream.format import open_sidecar, shard_file
from tests.conversion_damage import (
    STEM,
    admit,
    problems,
    verify,
)


def rewrite(folder: Path, kind: str, edit: Callable[[pa.Table], pa.Table]) -> None:
    path = folder / "train" / shard_file(STEM, kind)
    table = edit(open_sidecar(path))
    path.unlink()
    write_sidecar(path, table)
    admit(folder, kind)


def changed(column: str, row: int, value: Any) -> Callable[[pa.Table], pa.Table]:
    def edit(table: pa.Table) -> pa.Table:
        values = table.column(column).to_pylist()
        values[row] = value if not callable(value) else value(values[row])
        index = table.schema.get_field_index(column)
        field = table.schema.field(index)
        return table.set_column(index, field, pa.array(values, field.type))

    return edit


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


SIDECAR_EDITS: list[tuple[str, Callable[[pa.Table], pa.Table], str]] = [
    ("records", changed("episode", -1, plus_one), "episode is"),
    ("records", changed("episode", 0, -1), "row 0: episode is -1"),
    ("records", changed("step", 0, -1), "is outside its episode"),
    ("records", changed("step", -1, 2**31 - 1), "is outside its episode"),
    ("records", changed("step", 1, 0), "row 1: step is 0 after 0 of the same episode"),
    ("records", changed("offset", 2, 4), "row 2: offset is 4, expected 3"),
    ("records", changed("steps_row", 0, plus_one), "row 0: steps_row is"),
    ("records", changed("num_frames", 0, 2), "row 0: num_frames is 2, expected 4"),
    ("records", reversed_rows, "row 0: episode is"),
    ("steps", changed("step", 2, 5), "row 2: step is 5, expected 2"),
    ("steps", changed("episode", 0, 1), "row 0: episode is 1, expected 0"),
    ("episodes", changed("num_steps", 0, plus_one), "num_steps adds up to"),
    ("episodes", changed("num_steps", 0, -5), "num_steps is -5, expected 0"),
    ("episodes", changed("first_steps_row", 1, plus_one), "row 1: first_steps_row is"),
    ("episodes", changed("num_records", 0, plus_one), "num_records adds up to"),
    ("episodes", changed("first_record", 1, plus_one), "row 1: first_record is"),
    ("episodes", changed("status", 0, "fine"), "row 0: status is 'fine'"),
    ("episodes", changed("status", 0, "unreadable"), "episodes of status unreadable, the manifest left out 0"),
    ("episodes", changed("source_file", 1, "x"), "row 1: source_file is 'x'"),
    ("episodes", changed("episode_id", 1, "x"), "row 1: episode_id is 'x'"),
    ("episodes", changed("source_position", 1, 0), "row 1: source_position is 0 after 0"),
    *((kind, renamed, "column 0 is other") for kind in ("records", "steps", "episodes")),
    *((kind, shortened, "rows, the manifest says") for kind in ("records", "steps", "episodes")),
    *((kind, nullable, "column 1 is") for kind in ("records", "steps", "episodes")),
]


@pytest.mark.parametrize(("kind", "edit", "text"), SIDECAR_EDITS)
def test_a_sidecar_that_tells_another_story_is_found_out(
    root: Path, folder: Path, kind: str, edit: Callable[[pa.Table], pa.Table], text: str
) -> None:
    rewrite(folder, kind, edit)
    report = verify(root, deep=False)
    assert text in problems(report)
    assert {problem.file for problem in report.problems} == {str(folder / "train" / shard_file(STEM, kind))}


@pytest.mark.parametrize("kind", ["records", "steps", "episodes"])
def test_no_byte_of_a_sidecar_can_raise(root: Path, folder: Path, kind: str) -> None:
    path = folder / "train" / shard_file(STEM, kind)
    whole, rng = path.read_bytes(), random.Random(kind)
    for _ in range(40):
        content = bytearray(whole)
        start = rng.randrange(len(content))
        content[start : start + rng.choice([1, 8, 200])] = rng.randbytes(1)
        path.write_bytes(content)
        admit(folder, kind)
        verify(root, deep=True)


def test_a_sidecar_in_two_batches_is_found_out(root: Path, folder: Path) -> None:
    path = folder / "train" / shard_file(STEM, "records")
    table = open_sidecar(path)
    path.unlink()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    admit(folder, "records")
    assert "record batches, expected one" in problems(verify(root))
