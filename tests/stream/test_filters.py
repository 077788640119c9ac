from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stream.catalog import Catalog, Dataset
from stream.errors import ArgumentError
from stream.filters import Filter, Filters, parse_filters
from stream.format import open_sidecar
from stream.mixture import Member
from stream.shards import OpenShard
from stream.views import Views


@pytest.fixture
def dataset(oxe_root: Path) -> Dataset:
    return Catalog(oxe_root).open("bridge")


@pytest.fixture
def shard(dataset: Dataset) -> OpenShard:
    views = Views([Member("bridge", "train", 1.0)], [dataset])
    return next(views.cache[i] for i, info in enumerate(views.shards) if info.split == "train")


def rows(shard: OpenShard) -> list[dict[str, Any]]:
    """Of each record of a shard what its three sidecars say, by ``sidecar.column``."""
    tables = {kind: open_sidecar(shard.info.path(kind)).to_pylist() for kind in ("records", "steps", "episodes")}
    return [
        {f"records.{key}": value for key, value in record.items()}
        | {f"steps.{key}": value for key, value in tables["steps"][record["steps_row"]].items()}
        | {f"episodes.{key}": value for key, value in tables["episodes"][record["episode"]].items()}
        for record in tables["records"]
    ]


def selected(shard: OpenShard, *conditions: tuple[str, str, Any]) -> list[int]:
    filters = parse_filters(list(conditions), ["bridge"])
    assert filters is not None
    chosen = filters.of("bridge")
    assert chosen is not None
    return np.flatnonzero(chosen.select(shard, 0, shard.info.records)).tolist()


COMPARED: dict[str, Any] = {
    "==": lambda value, given: value == given,
    "!=": lambda value, given: value != given,
    "<": lambda value, given: value < given,
    "<=": lambda value, given: value <= given,
    ">": lambda value, given: value > given,
    ">=": lambda value, given: value >= given,
    "in": lambda value, given: value in given,
    "not in": lambda value, given: value not in given,
}


@pytest.mark.parametrize("operator", COMPARED)
@pytest.mark.parametrize(
    ("column", "full_name", "value"),
    [
        ("step", "steps.step", 2),
        ("records.step", "records.step", 3),
        ("episode", "steps.episode", 1),
        ("source_position", "episodes.source_position", 0),
        ("episodes.num_steps", "episodes.num_steps", 10),
        ("action/terminate_episode", "steps.action/terminate_episode", 0.0),
        ("is_first", "steps.is_first", True),
        ("robot", "episodes.robot", "widowx"),
        ("observation/natural_language_instruction", "steps.observation/natural_language_instruction", "a"),
    ],
)
def test_an_operator_selects_what_python_selects(
    shard: OpenShard, column: str, full_name: str, value: Any, operator: str
) -> None:
    given = [value] if "in" in operator else value
    expected = [i for i, row in enumerate(rows(shard)) if COMPARED[operator](row[full_name], given)]
    assert selected(shard, (column, operator, given)) == expected


def test_conditions_all_have_to_hold(shard: OpenShard) -> None:
    found = selected(shard, ("step", ">", 0), ("step", "<=", 3), ("records.episode", "==", 1))
    wanted = [i for i, r in enumerate(rows(shard)) if 0 < r["steps.step"] <= 3 and r["records.episode"] == 1]
    assert found == wanted != []


@pytest.mark.parametrize("values", [[1, 3], (3, 1), {1, 3}, frozenset({1, 3}), np.array([1, 3])])
def test_in_takes_any_collection(shard: OpenShard, values: Any) -> None:
    assert selected(shard, ("step", "in", values)) == selected(shard, ("step", "in", [1, 3])) != []


def test_a_text_of_each_step_is_compared_at_the_first_step_of_the_pair(shard: OpenShard) -> None:
    text = rows(shard)[7]["steps.language"]
    expected = [i for i, row in enumerate(rows(shard)) if row["steps.language"] == text]
    assert selected(shard, ("steps.language", "==", text)) == expected


def test_part_of_a_shard_is_selected_in_place(shard: OpenShard) -> None:
    chosen = Filter((("records.step", "<", 2),))
    whole = chosen.select(shard, 0, shard.info.records)
    assert chosen.select(shard, 3, 5).tolist() == whole[3:8].tolist()


@pytest.fixture
def odd(shard: OpenShard) -> OpenShard:
    """The shard with columns that the sample has not: nulls, NaN, and a dot in the name."""
    view = OpenShard(shard.info)
    length = len(shard.steps)
    values = [None if i % 3 == 0 else float(i) for i in range(length)]
    steps = shard.steps.append_column("gap", pa.array(values, pa.float64()))
    steps = steps.append_column("single", pa.FixedSizeListArray.from_arrays(pa.array(range(length)), 1))
    view.__dict__["steps"] = steps.append_column("v1.0.step", pa.array(range(length)))
    return view


@pytest.mark.parametrize(("operator", "value"), [("==", 5.0), ("!=", 5.0), (">", -1.0), ("not in", [5.0])])
def test_null_fulfils_no_condition(odd: OpenShard, operator: str, value: Any) -> None:
    found = selected(odd, ("gap", operator, value))
    given = {i: odd.steps["gap"][int(row)].as_py() for i, row in enumerate(odd.records["steps_row"])}
    assert found == [i for i, v in given.items() if v is not None and COMPARED[operator](v, value)]


def test_a_vector_of_one_number_counts_as_a_number(odd: OpenShard) -> None:
    assert selected(odd, ("single", "<", 3)) == selected(odd, ("steps.v1.0.step", "<", 3)) != []


def test_a_name_with_dots_is_a_name_of_its_own(odd: OpenShard) -> None:
    assert selected(odd, ("v1.0.step", "<", 3)) == np.flatnonzero(odd.records["steps_row"] < 3).tolist()
    with pytest.raises(ArgumentError, match=r"no column 'records\.observation\.step'"):
        selected(odd, ("records.observation.step", "==", 1))


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (("stepp", "==", 1), "dataset bridge has no column 'stepp'; did you mean .*'step'"),
        (("records.language", "==", "a"), "no column 'records.language'"),
        (("episodes.step", "==", 1), "no column 'episodes.step'"),
        (("observation/state", "==", 1), "its values are vectors"),
        (("robot", "<", 5), "cannot compare string by < with 5"),
        (("step", "==", "five"), "cannot compare int32 by == with 'five'"),
        (("step", "<", 2**70), "cannot compare int32 by <"),
        (("step", "in", [2**70]), "cannot compare int32 by in"),
        (("step", "in", [0.5]), "cannot compare int32 by in"),
        (("step", "in", ["a"]), "cannot compare int32 by in"),
        (("step", "in", 5), "cannot compare int32 by in with 5"),
        (("step", "==", object()), "cannot compare int32 by =="),
        (("step", ">", datetime.date(2024, 1, 1)), "cannot compare int32 by >"),
    ],
)
def test_a_condition_that_cannot_be_asked_is_refused(
    shard: OpenShard, condition: tuple[str, str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        selected(shard, condition)


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (5, "expected a list of"),
        ("step > 1", "expected a list of"),
        (["step > 1"], r"expected \(column, operator, value\)"),
        ([("step", ">")], r"expected \(column, operator, value\)"),
        ([("step", "=", 1)], "operators are == != < <= > >= in not in"),
        ([("step", "~", 1)], "operators are"),
        ([(3, "==", 1)], "operators are"),
        ([("robot", "in", "widowx")], "'in' takes a list of values"),
        ([("robot", "not in", "widowx")], "'not in' takes a list of values"),
        ([("step", "in", {1, "a"})], "values of one type"),
        ({"brigde": []}, "no member 'brigde'; did you mean 'bridge'"),
        ({"bridge": "step > 1"}, "expected a list of"),
        ({"bridge": [("step", "=", 1)]}, "operators are"),
    ],
)
def test_filters_of_another_form_are_refused(filters: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=f"filters: .*{message}"):
        parse_filters(filters, ["bridge", "kuka"])


def test_filters_may_differ_by_dataset_or_hold_for_all() -> None:
    condition = ("step", ">", 1)
    some = parse_filters({"bridge": [condition]}, ["bridge", "kuka"])
    assert some is not None
    assert some.of("bridge") == Filter((condition,))
    assert some.of("kuka") is None
    every = parse_filters([condition], ["bridge", "kuka"])
    assert every is not None
    assert every.of("bridge") == every.of("kuka") == Filter((condition,))


@pytest.mark.parametrize("filters", [None, [], {}])
def test_no_filter_keeps_everything(filters: Any) -> None:
    assert parse_filters(filters, ["bridge"]) is None
    assert Filters({}).of("bridge") is None
