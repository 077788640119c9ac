from __future__ import annotations

import json
import operator as operators
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stream import Select, load_loader, make_loader
from stream.base.errors import ArgumentError, FormatError, StateError
from stream.format.index import SplitIndex
from stream.format.names import TableKind
from stream.format.schema import FIRST_FIELDS
from stream.sample.filters import _MATCH, Filter, canonical_conditions, parse_conditions
from tests.stream.index_root import change_table, open_split, read_table, with_values, write_dataset

GRIP = np.array([-0.34516162, 0.1, np.nan, 2.0] * 6, np.float32)[:18]


EPISODES, STEPS, RECORDS = 3, 6, 4
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[SplitIndex, Rows]:
    """An index of three episodes of six steps, four records each; and each record's values by ``table.column``."""
    lengths = {"train": [[STEPS, STEPS], [STEPS]]}
    folder = write_dataset(tmp_path_factory.mktemp("small"), "bridge", lengths, size=(8, 8))
    single, masked = pa.array(range(18), pa.int32()), pa.array([i == 1 for i in range(18)])
    numbers = [x for i in range(18) for x in (i, (1.0, np.nan, np.inf, -np.inf)[i % 4])]
    first, nothing = pa.array([i == 0 for i in range(18)]), pa.array([True] * 18)
    columns: dict[TableKind, dict[str, Any]] = {
        "episodes": {
            "episode_id": ["e0", "e1", "e2"],
            "language": ["", "pick", "place"],
            "robot": ["arm", "arm", "hand"],
            "success": pa.array([True, False, True]),
            "score": pa.array([1.0, float("nan"), None], pa.float64()),
        },
        "steps": {
            "language": ["pick", "place", "wait"] * 6,
            "grip": pa.array(GRIP),
            "half": pa.array(GRIP.astype(np.float16)),
            "gap": pa.array([None if i % 3 == 0 else float(i) for i in range(18)], pa.float64()),
            "is_first": pa.array([i % 6 == 0 for i in range(18)]),
            "v1.0.step": pa.array(range(18), pa.int64()),
            "single": pa.FixedSizeListArray.from_arrays(single, 1),
            "missing single": pa.FixedSizeListArray.from_arrays(single, 1, mask=masked),
            "observation/state": pa.FixedSizeListArray.from_arrays(pa.array(range(54), pa.int32()), 3),
            "note": pa.array([None, "a", "b"] * 6, pa.large_string()).dictionary_encode(),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(numbers, pa.float32()), 2, mask=first),
            "empty": pa.nulls(18, pa.float32()),
            "empty vector": pa.FixedSizeListArray.from_arrays(pa.array([0.0] * 36, pa.float32()), 2, mask=nothing),
            "plain note": pa.array([None, "a", "b"] * 6, pa.large_string()),
            "step_": pa.array(range(100, 118), pa.int32()),
            "action": pa.FixedSizeListArray.from_arrays(pa.array(GRIP), 1),
            "action_": single,
        },
        "records": {"xxh3_64": np.uint64(2**64 - 1) - np.arange(EPISODES * RECORDS, dtype=np.uint64)},
    }
    tables = {}
    for kind, values_by_name in columns.items():

        def change(table: pa.Table, kind: TableKind = kind, values_by_name: Any = values_by_name) -> pa.Table:
            table = table.select([field.name for field in FIRST_FIELDS[kind]])
            for name, values in values_by_name.items():
                known = name in table.column_names
                table = with_values(table, name, values) if known else table.append_column(name, values)
            return table

        change_table(folder, kind, change)
        tables[kind] = read_table(folder, kind).to_pylist()
    rows = []
    for record in tables["records"]:
        step, episode = tables["steps"][record["steps_row"]], tables["episodes"][record["episode"]]
        named: list[tuple[str, dict[str, Any]]] = [("records", record), ("steps", step), ("episodes", episode)]
        rows.append({f"{kind}.{key}": value for kind, values in named for key, value in values.items()})
    return open_split(folder), rows


@pytest.fixture
def index(small: tuple[SplitIndex, Rows]) -> SplitIndex:
    return small[0]


@pytest.fixture
def rows(small: tuple[SplitIndex, Rows]) -> Rows:
    return small[1]


def selected(index: SplitIndex, *conditions: tuple[str, str, Any]) -> list[int]:
    kept = [chosen(condition).select(index, slice(0, len(index.records))) for condition in conditions]
    return np.flatnonzero(np.logical_and.reduce(kept)).tolist()


def chosen(condition: tuple[str, str, Any]) -> Filter:
    (chosen_filter,) = parse_conditions([condition], ["bridge"])["bridge"]
    return chosen_filter


COMPARED: dict[str, Any] = {
    **{"==": operators.eq, "!=": operators.ne, "<": operators.lt, "<=": operators.le},
    **{">": operators.gt, ">=": operators.ge},
    "in": lambda value, operand: value in operand,
    "not in": lambda value, operand: value not in operand,
}


@pytest.mark.parametrize("column", ["note", "plain note"])
def test_a_text_is_found_by_a_part_or_an_expression(index: SplitIndex, column: str) -> None:
    searches = (("contains", "b", ["b"]), ("matches", "^[ab]$", ["a", "b"]), ("matches", "c|^b", ["b"]))
    for how, operand, texts in searches:
        assert selected(index, (column, how, operand)) == selected(index, (column, "in", texts)) != []


@pytest.mark.parametrize("operator", COMPARED)
@pytest.mark.parametrize(
    ("column", "full_name", "value"),
    [
        ("step", "steps.step", 2),
        ("records.step", "records.step", 3),
        ("episode", "episodes.episode", 1),
        ("language", "steps.language", "place"),
        ("episodes.language", "episodes.language", "place"),
        ("source_position", "episodes.source_position", 0),
        ("episodes.num_steps", "episodes.num_steps", 6),
        ("xxh3_64", "records.xxh3_64", 2**64 - 3),
        ("grip", "steps.grip", 2.0),
        ("half", "steps.half", 2),
        ("is_first", "steps.is_first", True),
        ("success", "episodes.success", False),
        ("robot", "episodes.robot", "arm"),
        ("episode_id", "episodes.episode_id", "e1"),
        ("gap", "steps.gap", 5.0),
        ("note", "steps.note", "a"),
        ("plain note", "steps.plain note", "a"),
    ],
)
def test_an_operator_selects_what_python_selects_and_nothing_of_null_and_nan(
    index: SplitIndex, rows: Rows, column: str, full_name: str, value: Any, operator: str
) -> None:
    operand = [value] if "in" in operator else value
    column_values = [(i, row[full_name]) for i, row in enumerate(rows)]
    real = [(i, number) for i, number in column_values if number is not None and number == number]
    expected = [i for i, number in real if COMPARED[operator](number, operand)]
    assert selected(index, (column, operator, operand)) == expected


@pytest.mark.parametrize("value", [-0.34516162, -0.34516161680221558, np.float32(-0.34516162)])
@pytest.mark.parametrize("column", ["grip", "half"])
def test_a_float_column_is_compared_in_its_own_type(index: SplitIndex, rows: Rows, column: str, value: Any) -> None:
    near = [i for i, row in enumerate(rows) if abs(row["steps.grip"] + 0.345) < 0.01]
    assert near
    assert selected(index, (column, "==", value)) == near
    assert selected(index, (column, "in", [value, 7.0])) == near
    assert selected(index, (column, "<=", value)) == near
    assert selected(index, (column, "<", value)) == []


def test_a_value_beyond_the_type_of_a_float_column_is_beyond_its_values(index: SplitIndex, rows: Rows) -> None:
    present = [i for i, row in enumerate(rows) if not np.isnan(row["steps.half"])]
    assert selected(index, ("half", "<", 1e9)) == present
    assert selected(index, ("grip", "<", 1e300)) == present


def test_whole_numbers_compare_with_fractions_and_beyond_their_type(index: SplitIndex) -> None:
    assert selected(index, ("step", "<", 2.5)) == selected(index, ("step", "<=", 2.0)) != []
    assert selected(index, ("step", "in", [0.0, 2.0])) == selected(index, ("step", "in", [0, 2])) != []
    for large in (2**40, 2**70):
        assert len(selected(index, ("step", "<", large))) == len(index.records)
        assert selected(index, ("step", "in", [2, large])) == selected(index, ("step", "in", [2, 2.5])) != []


@pytest.mark.parametrize("column", ["vector", "grip", "half", "action", "gap", "score", "step", "is_first", "single"])
def test_is_finite_holds_for_numbers_and_vectors_of_which_every_number_is(
    index: SplitIndex, rows: Rows, column: str
) -> None:
    kind = "episodes" if column == "score" else "steps"
    name = "action_" if column == "action" else column  # the dataset's own feature
    values = [row[f"{kind}.{name}"] for row in rows]
    finite = {row: bool(np.isfinite(value).all()) for row, value in enumerate(values) if value is not None}
    kept = selected(index, (column, "is_finite", True))
    assert kept == [row for row, holds in finite.items() if holds]
    assert selected(index, (column, "is_finite", False)) == [row for row, holds in finite.items() if not holds]
    assert selected(index, (column, "is_finite")) == kept  # type: ignore[arg-type]
    assert selected(index, (f"{kind}.{name}", "is_finite", np.True_)) == kept


@pytest.mark.parametrize(
    "condition",
    [
        ("empty", "<", 1),
        ("empty", "in", [1]),
        *((name, "is_finite", how) for name in ("empty", "empty vector") for how in (True, False)),
    ],
)
def test_no_condition_holds_where_every_value_of_a_column_is_missing(index: SplitIndex, condition: Any) -> None:
    assert selected(index, condition) == []
    assert chosen(condition).select(index, slice(0, 0)).tolist() == []


@pytest.mark.parametrize("samples", ["records", "steps"])
def test_language_is_that_of_the_step_and_not_the_first_one_of_the_episode(index: SplitIndex, samples: Any) -> None:
    rows = slice(0, len(index.table(samples)))
    kept = chosen(("language", "contains", "pick")).select(index, rows, samples)
    at = index.records.array("steps_row") if samples == "records" else np.arange(len(index.steps))
    assert kept.tolist() == ["pick" in text for text in index.steps.take_texts("language", at)]
    first = chosen(("episodes.language", "contains", "pick")).select(index, rows, samples)
    assert first.any() and (first != kept).any()


def test_the_distinct_texts_of_a_dictionary_are_compared_once(
    index: SplitIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def contains(text: str, operand: str) -> bool:
        seen.append(text)
        return operand in text

    monkeypatch.setitem(_MATCH, "contains", contains)
    assert selected(index, ("language", "contains", "wait"))
    assert sorted(seen) == ["pick", "place", "wait"]


def test_a_vector_of_one_number_counts_as_a_number(index: SplitIndex) -> None:
    assert selected(index, ("single", "<", 3)) == selected(index, ("steps.v1.0.step", "<", 3)) == [0, 1, 2]
    assert 1 not in selected(index, ("missing single", "<", 3))


def test_a_name_with_dots_is_a_name_of_its_own(index: SplitIndex) -> None:
    assert selected(index, ("v1.0.step", "<", 3)) == [0, 1, 2]
    with pytest.raises(ArgumentError, match=r"no column 'records\.observation\.step'"):
        selected(index, ("records.observation.step", "==", 1))


def test_a_feature_of_the_dataset_goes_before_a_derived_vector_and_behind_the_formats_own_column(
    index: SplitIndex,
) -> None:
    assert selected(index, ("action", "==", 7)) == selected(index, ("steps.action", "==", 7)) == [RECORDS + 1]
    assert selected(index, ("steps.step", "==", 1), ("episode", "==", 0)) == [1]
    assert selected(index, ("step_", "==", 101)) == [1]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (("stepp", "==", 1), "dataset bridge, split train has no column 'stepp'"),
        (("records.language", "==", "a"), "no column 'records.language'"),
        (("episodes.step", "==", 1), "no column 'episodes.step'"),
        (("observation/state", "==", 1), "its values are vectors"),
        (("note", "matches", "("), "the regular expression has an error: missing"),
        (("note", "contains", 3), "contains takes a text"),
        (("step", "contains", "3"), "cannot compare int32 by contains with '3'"),
        (("note", "is_finite", True), "its values are texts or lists; is_finite is for columns of numbers and vectors"),
        (("grip", "is_finite", 1), "is_finite takes True, or False for what is not finite"),
        (("vector", ">", 1), "filter on columns of one number or text, or vectors by is_finite"),
        (("grip", ">"), "expected (column, operator, value)"),
        ("note", "expected (column, operator, value); where is a list of them"),
        (("robot", "<", 5), "cannot compare texts by < with 5"),
        (("episode_id", "in", [5]), "cannot compare texts by in with"),
        (("step", "==", "five"), "cannot compare int32 by == with 'five'"),
        (("step", "==", True), "cannot compare int32 by == with True"),
        (("grip", "in", ["2"]), "cannot compare float32 by in with"),
        (("is_first", "==", 1), "cannot compare bool by == with 1"),
    ],
)
def test_a_condition_that_cannot_be_asked_is_refused(
    index: SplitIndex, condition: tuple[str, str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        selected(index, condition)


@pytest.mark.parametrize("row", [-1, 18, 2**40])
def test_a_record_outside_of_its_tables_is_damage(index: SplitIndex, row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(index.records.__dict__, "content", index.records.content.copy())
    index.records.array("steps_row")[3] = row
    with pytest.raises(FormatError, match=r"records\.arrow: names rows .* of steps, which has 18"):
        selected(index, ("is_first", "==", True))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (5, "expected a list of"),
        ("step > 1", "expected a list of"),
        ([("step", ">")], r"expected \(column, operator, value\)"),
        ([("step", "=", 1)], "operators are == != < <= > >= in not in"),
        ([("step", ["=="], 1)], "operators are"),
        ([(3, "==", 1)], "operators are"),
        ([("robot", "in", "widowx")], "expected a list of values"),
        ([("step", "in", 5)], "expected a list of values"),
        ([("step", "in", {1, "a"})], "a number and a text in one list"),
        ([("step", "in", [1, True])], "a number and true or false in one list"),
        ([("step", "==", [1])], "expected a number, a text"),
        ([("step", "==", None)], "expected a number, a text"),
        ([("step", "==", object())], "expected a number, a text"),
        ([("step", "==", np.arange(2))], "expected a number, a text"),
        ([("step", "==", float("nan"))], "NaN equals nothing"),
        ({"brigde": []}, "no member 'brigde'; did you mean 'bridge'"),
        ({"bridge": [("step", "=", 1)]}, "operators are"),
    ],
)
def test_conditions_of_another_form_are_refused(where: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=f"where: .*{message}"):
        parse_conditions(where, ["bridge", "kuka"])


SAME_VALUES = {
    "list": [3, 1],
    "tuple": (1, 3),
    "set": {3, 1},
    "frozenset": frozenset({1, 3}),
    "range": range(3, 0, -2),
    "numpy": np.array([3, 1, 1]),
    "list of numpy": [np.int64(3), np.uint8(1)],
    "arrow": pa.array([1, 3]),
    "dict keys": {1: "a", 3: "b"}.keys(),
}


@pytest.mark.parametrize("name", [*SAME_VALUES, "generator"])
def test_the_same_values_in_any_collection_are_the_same_condition(name: str) -> None:
    values = SAME_VALUES.get(name, iter((3, 1)))
    canonical = canonical_conditions([("step", "in", values)])
    assert canonical == json.loads(json.dumps(canonical)) == [["step", "in", [1, 3]]]
    assert parse_conditions(canonical, ["bridge"]) == {"bridge": [chosen(("step", "in", [1, 3]))]}


def test_different_conditions_have_different_fingerprints_and_the_same_the_same() -> None:
    long, long_too = np.arange(5000), np.arange(5000)
    long_too[2500] = 9999
    assert chosen(("step", "in", long)).fingerprint != chosen(("step", "in", long_too)).fingerprint
    assert chosen(("step", "in", long)).fingerprint == chosen(("step", "in", range(5000))).fingerprint
    assert chosen(("step", "<", np.int32(3))).fingerprint == chosen(("step", "<", 3)).fingerprint


def test_conditions_may_differ_by_dataset_or_hold_for_all() -> None:
    condition = ("step", ">", 1)
    kept = [Filter(*condition)]
    assert parse_conditions({"bridge": [condition]}, ["bridge", "kuka"]) == {"bridge": kept}
    assert parse_conditions([condition], ["bridge", "kuka"]) == {"bridge": kept, "kuka": kept}


@pytest.mark.parametrize("where", [None, [], {}, (), {"bridge": []}, {"bridge": [], "kuka": ()}])
def test_no_condition_keeps_everything(where: Any) -> None:
    assert parse_conditions(where, ["bridge", "kuka"]) == {}


def test_a_loader_with_a_collection_that_is_read_once_is_saved_and_goes_on(oxe_root: Path, tmp_path: Path) -> None:
    loader = make_loader(oxe_root, {"bridge": 1}, batch_size=4, select=Select(where=[("step", "in", iter([3, 1, 2]))]))
    plain = make_loader(oxe_root, {"bridge": 1}, batch_size=4, select=Select(where=[("step", "in", [1, 2, 3])]))
    assert loader.sizes == plain.sizes
    assert plain.step_of(loader.state_at(7)) == 7
    loader.save(tmp_path / "loader.json")
    reloaded = load_loader(tmp_path / "loader.json")
    assert reloaded.sizes == loader.sizes
    assert reloaded.step_of(loader.state_at(7)) == 7


def test_a_state_of_another_condition_is_refused_and_an_empty_one_is_none(oxe_root: Path) -> None:
    long, changed = np.arange(5000), np.arange(5000)
    changed[2500] = 9999
    values: list[Any] = [[("step", "in", long)], [("step", "in", changed)], None, {"bridge": []}]
    loaders = [make_loader(oxe_root, {"bridge": 1}, batch_size=4, select=Select(where=where)) for where in values]
    with pytest.raises(StateError, match=r"where: \[\"\('step', 'in', .* \(\w{16}\)\"\] was \[\"\('step', 'in', "):
        loaders[1].step_of(loaders[0].state_at(3))
    assert loaders[2].step_of(loaders[3].state_at(3)) == 3


def test_columns_of_records_are_those_of_a_pairs_root_alone(oxe_root: Path, frames_root: Path) -> None:
    kept = make_loader(oxe_root, "bridge", batch_size=4, select=Select(where=[("num_bytes", ">", 0)]))
    assert kept.sizes == make_loader(oxe_root, "bridge", batch_size=4).sizes
    with pytest.raises(ArgumentError, match="no column 'num_bytes' in bridge"):
        make_loader(frames_root, "bridge", batch_size=4, select=Select(where=[("num_bytes", ">", 0)]))
