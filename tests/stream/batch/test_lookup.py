"""The index of batches: rows that lead outside of their tables, threads, and texts that are kept.

Their values are compared with loops over the source in ``tests/reference``.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import stream.batch.lookup
from stream.base.errors import FormatError
from stream.batch.frames import Frames
from stream.batch.lookup import Lookup
from stream.format.table import Table
from stream.loader.open_mixture import OpenMixture
from stream.order.rows import Rows
from stream.sample.vector import Vector
from tests.stream.index_root import change_table, open_data, with_values, write_dataset


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return three datasets of different vectors and offsets; tests must not write to them."""
    root = tmp_path_factory.mktemp("lookup")
    splits = {"train": [[5, 1, 4], [], [6, 9]], "test": [[7], [3, 8]]}
    write_dataset(root, "arm", splits, action=("displacement", "displacement", "flag"), rate=None)
    write_dataset(root, "hand", splits, offset=4, action=("velocity", "absolute", "flag"), state=5, rate=4.0)
    write_dataset(root, "eye", splits, offset=1, action=(), state=0)
    return root


def look_up(data: OpenMixture, rows: Rows, *, lookup: Lookup | None = None) -> tuple[dict[str, Any], Frames, set[int]]:
    """Return all of a batch but its frames, the locations of its records, and the rows that failed."""
    fields = data.spec.fields()
    filled = {
        name: field for name, field in fields.items() if name not in ("frames", "frames_mask", "sample", "dataset")
    }
    out = {name: np.empty((len(rows), *shape), dtype) for name, (dtype, shape) in filled.items()}
    for values in out.values():
        values[...] = 77
    failed: list[int] = []

    def fail(row: int, error: Exception) -> None:
        assert isinstance(error, FormatError)
        assert str(error).endswith(f"records.arrow: row {rows.record[row]} leads outside of its episodes or steps")
        failed.append(row)

    located, texts = (lookup or Lookup(data.spec)).look_up(rows, out, fail)
    assert len(failed) == len(set(failed))
    return {**out, **texts}, located, set(failed)


def all_rows(data: OpenMixture) -> Rows:
    """Return each record of a mixture once, not in storage order."""
    parts = []
    for member, size in enumerate(data.sizes.values()):
        position = np.arange(size)[::-1]
        members, epochs = np.full(size, member), np.zeros(size, np.int64)
        split, record = data.sample_index.locate(members, epochs, position, seed=0, shuffle=False)
        parts.append(Rows.of(sample=position, member=members, epoch=epochs, split=split, record=record))
    return Rows(np.concatenate([part.table for part in parts]))


def test_threads_share_a_lookup(root: Path) -> None:
    data = open_data(root, {"arm": 1, "hand": 1, "eye": 1}, columns=("note", "reward"), action=3)
    rows, lookup = data.plan.rows(data.plan.batch_samples(0, 600)), Lookup(data.spec)
    parts = [rows.cut(start, start + 7) for start in range(0, 600 - 7, 7)] * 3
    with ThreadPoolExecutor(8) as pool:
        result = list(pool.map(lambda part: look_up(data, part, lookup=lookup)[0], parts))
    for part, values in zip(parts, result, strict=True):
        for name, expected in look_up(data, part)[0].items():
            np.testing.assert_array_equal(values[name], expected, err_msg=name)


def test_few_instructions_are_kept_decoded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_data(root, {"arm": 1, "hand": 1})
    rows = all_rows(data)
    expected, _, _ = look_up(data, rows)
    monkeypatch.setattr(stream.batch.lookup, "_MOST_TEXTS", 2)
    lookup = Lookup(data.spec)
    result, _, _ = look_up(data, rows, lookup=lookup)
    assert lookup._instruction.cache_info().currsize == 2
    assert result["language"] == expected["language"]


def test_a_batch_of_no_rows_has_arrays_of_no_rows(root: Path) -> None:
    data = open_data(root, {"arm": 1, "hand": 1}, columns=("reward", "note"), action=Vector(reduce="mean"))
    result, located, failed = look_up(data, all_rows(data).cut(3, 3))
    assert (located.shards, failed, result["language"], result["note"]) == ([], set(), [], [])


def edited(root: Path, tmp_path: Path, change: Mapping[str, int], row: int) -> tuple[Path, int]:
    """Copy two datasets with a record of ``arm`` changed; return the root, and the row of the record."""
    for name in ("arm", "hand"):
        shutil.copytree(root / name, tmp_path / name)

    def edit(table: pa.Table) -> pa.Table:
        for name, value in change.items():
            values = table[name].to_pylist()
            values[row] = value
            table = with_values(table, name, values)
        return table

    change_table(tmp_path / "arm" / "1.0.0", "records", edit)
    return tmp_path, row


@pytest.mark.parametrize("value", [-1, -(1 << 31), (1 << 31) - 1, "end"])
@pytest.mark.parametrize("column", ["steps_row", "episode"])
@pytest.mark.parametrize(
    "options",
    [
        {"action": {"reduce": "sum"}},
        {"action": {"steps": 3, "reduce": "mean"}},
        {"columns": ("reward", "note", "num_steps", "scene"), "state": {"columns": {"arm": ["reward", "bits"]}}},
    ],
    ids=lambda options: "-".join(options),
)
def test_a_row_that_leads_outside_fails_and_no_other(
    root: Path, tmp_path: Path, column: str, value: Any, options: dict[str, Any]
) -> None:
    end = 25 if column == "steps_row" else 5
    changed, row = edited(root, tmp_path, {column: end if value == "end" else value}, 3)
    intact = open_data(root, {"arm": 1, "hand": 1}, **options)
    data = open_data(changed, {"arm": 1, "hand": 1}, **options)
    rows = all_rows(data)
    expected, _, _ = look_up(intact, rows)
    result, _, failed = look_up(data, rows)
    [bad] = np.flatnonzero((rows.member == 0) & (rows.record == row)).tolist()
    assert failed == {bad}
    other_rows = np.delete(np.arange(len(rows)), bad)
    for name, values in expected.items():
        if isinstance(values, list):
            assert [values[i] for i in other_rows] == [result[name][i] for i in other_rows]
        else:
            np.testing.assert_array_equal(result[name][other_rows], values[other_rows], err_msg=name)


@pytest.mark.parametrize("step", [100, (1 << 31) - 1])
def test_a_step_behind_the_end_of_its_episode_fails_with_a_window(root: Path, tmp_path: Path, step: int) -> None:
    changed, row = edited(root, tmp_path, {"step": step}, 3)
    data = open_data(changed, {"arm": 1, "hand": 1}, action=3)
    rows = all_rows(data)
    _, _, failed = look_up(data, rows)
    assert failed == set(np.flatnonzero((rows.member == 0) & (rows.record == row)).tolist())


@pytest.mark.parametrize(("kind", "name"), [("records", "step"), ("records", "position"), ("steps", "action")])
def test_a_column_that_begins_anywhere_is_refused(root: Path, kind: str, name: str) -> None:
    data = open_data(root, {"arm": 1})
    [split] = data.spec.splits
    table = getattr(split, kind)
    moved = replace(table.columns[name], data=table.columns[name].data + 2)
    changes: dict[str, Any] = {kind: Table(table.path, table.rows, {**table.columns, name: moved})}
    index = replace(split, **changes)
    with pytest.raises(FormatError, match=f"{kind}.arrow: column '{name}' does not start at a multiple of"):
        Lookup(replace(data.spec, splits=(index,)))
