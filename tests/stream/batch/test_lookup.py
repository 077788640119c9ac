"""Metadata of batches against a plain reference: row by row, value by value, from the tables as Arrow reads them."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stream.batch.lookup
from stream.base.errors import ArgumentError, FormatError
from stream.batch.frames import Frames
from stream.batch.lookup import Lookup
from stream.format.names import TABLE_KINDS
from stream.format.table import Table
from stream.loader.open_mixture import OpenMixture
from stream.order.rows import Rows
from tests.stream.index_root import change_table, open_data, read_table, with_values, write_dataset

KINDS = {
    "arm": ("displacement", "displacement", "flag"),
    "hand": ("velocity", "absolute", "displacement", "flag", "velocity"),
    "eye": (),
}
OFFSETS = {"arm": 2, "hand": 4, "eye": 1}
RATES = {"arm": None, "hand": 4.0, "eye": 10.0}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return three datasets of different vectors and offsets; tests must not write to them."""
    root = tmp_path_factory.mktemp("lookup")
    splits = {"train": [[5, 1, 4], [], [6, 9]], "test": [[7], [3, 8]]}
    for name, state in (("arm", 2), ("hand", 5), ("eye", 0)):
        more: dict[str, Any] = {"action": KINDS[name], "state": state, "rate": RATES[name]}
        write_dataset(root, name, splits, offset=OFFSETS[name], **more)
    return root


def look_up(data: OpenMixture, rows: Rows, *, lookup: Lookup | None = None) -> tuple[dict[str, Any], Frames, set[int]]:
    """Return the metadata of a batch, the locations of its records, and the rows that failed."""
    fields = data.spec.fields()
    not_metadata = {"frames", "frames_mask", "sample", "dataset"}
    metadata = {name: field for name, field in fields.items() if name not in not_metadata}
    out = {name: np.empty((len(rows), *shape), dtype) for name, (dtype, shape) in metadata.items()}
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


@functools.cache
def table_rows(folder: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the tables of a split."""
    path = Path(folder)
    return {kind: read_table(path.parent, kind, path.name).to_pylist() for kind in TABLE_KINDS}


def expected_row(data: OpenMixture, rows: Rows, row: int) -> dict[str, Any]:
    """Return the metadata of one row, without padding: vectors as lists with None for a missing value."""
    spec, split = data.spec, data.sample_index.splits[int(rows.split[row])]
    tables = table_rows(split.folder)
    record = tables["records"][int(rows.record[row])]
    episode = tables["episodes"][record["episode"]]
    length = record["offset"]
    if data.sample_spec.horizon is not None:
        length = min(spec.action_span.longest, episode["num_steps"] - record["step"])
    window = tables["steps"][record["steps_row"] : record["steps_row"] + length]
    assert [step["step"] for step in window] == list(range(record["step"], record["step"] + length))
    options = data.sample_spec
    expected: dict[str, Any] = {key: record[key] for key in ("episode", "step", "offset")}
    expected["language"] = window[0]["language"]
    action = (options.action_columns or {}).get(split.dataset)
    kinds = KINDS[split.dataset] if action is None else spec.actions[split.member].kinds
    steps = [vector_of(step, "action", action) for step in window]
    expected["action"] = reduced(steps, options.action, kinds, RATES[split.dataset])
    expected["state"] = vector_of(window[0], "state", (options.state_columns or {}).get(split.dataset))
    for column in spec.columns:
        row_by_table = {"steps": window[0], "episodes": episode, "records": record}
        kind = next((kind for kind in TABLE_KINDS if column.column in row_by_table[kind]), None)
        if "." in column.name:
            kind = column.name.partition(".")[0]  # type: ignore[assignment]
        expected[column.name] = row_by_table[kind].get(column.column) if kind else None
    return expected


def vector_of(step: Mapping[str, Any], name: str, columns: Any) -> list[float | None]:
    """Return the vector of a step: the derived one, or the chosen columns."""
    if columns is None:
        return list(step.get(name) or [])
    values: list[float | None] = []
    for column in columns:
        path, select = (column, None) if isinstance(column, str) else column
        stored = step["action_" if path == "action" else path]
        width = 3 if path == "three" else 5 if path == "bits" else len(stored) if isinstance(stored, list) else 1
        listed = [None] * width if stored is None else stored if isinstance(stored, list) else [stored]
        values += listed if select is None else [listed[i] for i in select]
    return values


def reduced(steps: list[list[Any]], how: str, kinds: tuple[str, ...], rate: float | None) -> list[Any]:
    """Return the window of some steps, or one action."""
    if how == "window":
        return steps
    actions: list[float | None] = []
    for values, kind in zip(zip(*steps, strict=True), kinds, strict=True):
        if how == "first":
            actions.append(values[0])
        elif None in values:
            actions.append(None)
        elif kind == "flag" or (how == "sum" and kind == "absolute"):
            actions.append(values[-1])
        elif how == "sum":
            actions.append(sum(values) / (rate or 1 if kind == "velocity" else 1))
        else:
            actions.append(sum(values) / len(values))
    return actions


def assert_row(batch: Mapping[str, Any], row: int, expected: Mapping[str, Any], *, exact: bool) -> None:
    """Compare a row of a batch with the expected one, padding included."""
    keys = {key for key in batch if not key.endswith("_mask")}
    assert keys == set(expected)
    for key, value in expected.items():
        if f"{key}_mask" not in batch:
            assert (value or "" if isinstance(batch[key], list) else value) == batch[key][row], key
            continue
        values, mask = padded(value, batch[key][row].shape, batch[key].dtype)
        np.testing.assert_array_equal(batch[f"{key}_mask"][row], mask, err_msg=key)
        if exact or key != "action":
            np.testing.assert_array_equal(batch[key][row], values, err_msg=key)
        else:
            np.testing.assert_allclose(batch[key][row], values, rtol=1e-5, atol=1e-5, err_msg=key)


def padded(value: Any, shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return a nested list in an array of zeros, and the mask of its values."""
    values, mask = np.zeros(shape, dtype), np.zeros(shape, bool)
    if not shape:
        exists = value is not None
        return np.array(value if exists else 0, dtype), np.array(exists)
    listed = value if isinstance(value, list) else [] if value is None else [value]
    for position, item in enumerate(listed):
        inner, inside = padded(item, shape[1:], dtype)
        values[position], mask[position] = inner, inside
    return values, mask


def assert_equal(data: OpenMixture, rows: Rows) -> None:
    batch, located, failed = look_up(data, rows)
    assert not failed
    exact = data.sample_spec.action in ("window", "first")
    for row in range(len(rows)):
        assert_row(batch, row, expected_row(data, rows, row), exact=exact)
    assert_located(data, rows, located)


def assert_located(data: OpenMixture, rows: Rows, located: Frames) -> None:
    for row in range(len(rows)):
        split = data.sample_index.splits[int(rows.split[row])]
        record = table_rows(split.folder)["records"][int(rows.record[row])]
        assert located.shards[row] == record["shard"]
        assert located.num_bytes[row] == record["num_bytes"]
        assert located.positions[row] == record["position"]
        assert located.xxh3_64[row] == record["xxh3_64"]


COLUMNS = (
    "reward",
    "is_last",
    "bits",
    "count",
    "three",
    "half",
    "note",
    "scene",
    "score",
    "success",
    "num_steps",
    "episodes.language",
    "steps.language",
    "steps.step",
    "records.camera",
    "observation/state",
)
CHOSEN = st.lists(
    st.sampled_from(
        [
            "action",
            "observation/state",
            "reward",
            "is_last",
            "half",
            "count",
            "three",
            ("bits", (4, 0, 0)),
            ("three", (1,)),
        ]
    ),
    max_size=4,
)
PER_DATASET = st.one_of(
    st.none(), st.dictionaries(st.sampled_from(["arm", "hand"]), CHOSEN.map(lambda columns: columns or ["reward"]))
)


@settings(max_examples=60)
@given(
    names=st.sets(st.sampled_from(["arm", "hand", "eye"]), min_size=1),
    split=st.sampled_from(["train", "test+train", "train[1:2]+test[1:]+train[3:]"]),
    horizon=st.one_of(st.none(), st.integers(1, 12)),
    action=st.sampled_from(["window", "first", "mean", "sum"]),
    action_columns=PER_DATASET,
    state_columns=PER_DATASET,
    columns=st.sets(st.sampled_from(COLUMNS)),
    step=st.integers(0, 1000),
)
def test_metadata_are_those_of_the_tables(
    root: Path,
    names: set[str],
    split: str,
    step: int,
    columns: set[str],
    action_columns: dict[str, Any] | None,
    state_columns: dict[str, Any] | None,
    **options: Any,
) -> None:
    for name, chosen in (("action_columns", action_columns), ("state_columns", state_columns)):
        options[name] = {key: value for key, value in (chosen or {}).items() if key in names} or None
    weights = dict.fromkeys(sorted(names), 1)
    data = open_data(root, weights, split=split, columns=tuple(sorted(columns)), **options)
    assert_equal(data, data.plan.rows(data.plan.batch_samples(step, 40)))


@pytest.mark.parametrize("split", ["train", "test", "train+test"])
@pytest.mark.parametrize("horizon", [None, 1, 4, 100])
def test_every_record_of_every_split_is_found(root: Path, split: str, horizon: int | None) -> None:
    data = open_data(root, {"arm": 1, "hand": 1, "eye": 1}, split=split, horizon=horizon)
    rows = all_rows(data)
    assert len(rows) == sum(data.sizes.values()) > 20
    assert_equal(data, rows)


def all_rows(data: OpenMixture) -> Rows:
    """Return each record of a mixture once, not in storage order."""
    parts = []
    for member, size in enumerate(data.sizes.values()):
        position = np.arange(size)[::-1]
        members, epochs = np.full(size, member), np.zeros(size, np.int64)
        split, record = data.sample_index.locate(members, epochs, position, seed=0, shuffle=False)
        parts.append(Rows.of(sample=position, member=members, epoch=epochs, split=split, record=record))
    return Rows(np.concatenate([part.table for part in parts]))


def test_columns_that_a_member_lacks_are_zero_and_not_there(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "arm", tmp_path / "arm")
    shutil.copytree(root / "hand", tmp_path / "hand")
    for split in ("train", "test"):
        change_table(
            tmp_path / "hand" / "1.0.0", "steps", lambda t: t.drop_columns(["reward", "note", "bits"]), split=split
        )
    data = open_data(tmp_path, {"arm": 1, "hand": 1}, columns=("reward", "note", "bits"))
    rows = all_rows(data)
    assert_equal(data, rows)
    result, _, _ = look_up(data, rows)
    lacking = rows.member == 1
    assert lacking.any() and not lacking.all()
    assert not result["reward"][lacking].any() and not result["reward_mask"][lacking].any()
    assert not result["bits_mask"][lacking].any()
    assert {result["note"][row] for row in np.flatnonzero(lacking)} == {""}


def test_numbers_of_members_meet_in_a_type_that_holds_all(root: Path, tmp_path: Path) -> None:
    for name in ("arm", "hand"):
        shutil.copytree(root / name, tmp_path / name)

    def widen(table: pa.Table) -> pa.Table:
        values = pa.array([None if value is None else [value, 0.5] for value in table["reward"].to_pylist()])
        fixed = pa.FixedSizeListArray.from_arrays(
            pa.array([n for v in values.to_pylist() for n in (v or [0, 0])], pa.float64()), 2, mask=values.is_null()
        )
        return table.set_column(table.column_names.index("reward"), "reward", fixed)

    change_table(tmp_path / "hand" / "1.0.0", "steps", widen)
    data = open_data(tmp_path, {"arm": 1, "hand": 1}, columns=("reward",))
    assert data.spec.fields()["reward"] == ("<f8", (2,))
    table_rows.cache_clear()
    assert_equal(data, all_rows(data))


@pytest.mark.parametrize("metadata", ["none", "dataset_only"])
def test_without_metadata_records_are_located_all_the_same(root: Path, metadata: Any) -> None:
    data = open_data(root, {"arm": 1, "hand": 1}, metadata=metadata)
    rows = all_rows(data)
    result, located, failed = look_up(data, rows)
    assert (result, failed) == ({}, set())
    assert_located(data, rows, located)


def test_threads_share_a_lookup(root: Path) -> None:
    data = open_data(root, {"arm": 1, "hand": 1, "eye": 1}, columns=("note", "reward"), horizon=3)
    rows, lookup = data.plan.rows(data.plan.batch_samples(0, 600)), Lookup(data.spec)
    parts = [rows.cut(start, start + 7) for start in range(0, 600 - 7, 7)] * 3
    with ThreadPoolExecutor(8) as pool:
        result = list(pool.map(lambda part: look_up(data, part, lookup=lookup)[0], parts))
    for part, values in zip(parts[:30], result, strict=False):
        for row in range(len(part)):
            assert_row(values, row, expected_row(data, part, row), exact=True)
    for first, repeated in zip(result[: len(parts) // 3], result[len(parts) // 3 :], strict=False):
        for name, values in first.items():
            np.testing.assert_array_equal(values, repeated[name])


def test_few_instructions_are_kept_decoded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream.batch.lookup, "_MOST_TEXTS", 2)
    data = open_data(root, {"arm": 1, "hand": 1})
    lookup, rows = Lookup(data.spec), all_rows(data)
    result, _, _ = look_up(data, rows, lookup=lookup)
    assert lookup._instruction.cache_info().currsize == 2
    assert result["language"] == [expected_row(data, rows, row)["language"] for row in range(len(rows))]


def test_a_batch_of_no_rows_has_arrays_of_no_rows(root: Path) -> None:
    data = open_data(root, {"arm": 1, "hand": 1}, columns=("reward", "note"), action="mean")
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


FULL: dict[str, Any] = {
    "columns": ("reward", "note", "num_steps", "scene"),
    "state_columns": {"arm": ["reward", "bits"]},
    "action_columns": {"arm": ["three"]},
}
OUTSIDE: list[dict[str, int]] = [
    {"steps_row": -1},
    {"steps_row": -(1 << 63)},
    {"steps_row": (1 << 63) - 1},
    {"steps_row": 1 << 40},
    {"steps_row": 24},
    {"episode": -1},
    {"episode": 5},
    {"episode": (1 << 31) - 1},
    {"episode": -(1 << 31)},
]


@pytest.mark.parametrize("change", OUTSIDE, ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"action": "sum", "horizon": None}, {"action": "mean", "horizon": 3}, FULL],
    ids=lambda o: str(len(o)),
)
def test_a_row_that_leads_outside_fails_and_no_other(
    root: Path, tmp_path: Path, change: dict[str, int], options: dict[str, Any]
) -> None:
    changed, row = edited(root, tmp_path, change, 3)
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
def test_a_step_behind_the_end_of_its_episode_fails_with_a_horizon(root: Path, tmp_path: Path, step: int) -> None:
    changed, row = edited(root, tmp_path, {"step": step}, 3)
    data = open_data(changed, {"arm": 1, "hand": 1}, horizon=3)
    rows = all_rows(data)
    _, _, failed = look_up(data, rows)
    assert failed == set(np.flatnonzero((rows.member == 0) & (rows.record == row)).tolist())


def test_velocities_without_a_rate_are_not_added_up(tmp_path: Path) -> None:
    write_dataset(tmp_path, "slow", {"train": [[5]]}, action=("displacement", "velocity"), rate=None)
    for action in ("window", "mean", "first"):
        data = open_data(tmp_path, {"slow": 1}, action=action)
        assert look_up(data, all_rows(data))[2] == set()
    with pytest.raises(ArgumentError, match=r"^dataset slow: action='sum' would add up velocities \(a1\)"):
        _ = open_data(tmp_path, {"slow": 1}, action="sum").spec


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
