"""Tests of the rows of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.order.rows import ROW_NAMES, ROW_TYPE, Rows

KINDS: dict[str, Any] = {
    "sample": np.int64,
    "member": np.int16,
    "epoch": np.int64,
    "split": np.int16,
    "record": np.int64,
}


def some_rows(count: int, seed: int = 0) -> Rows:
    """Return rows of random numbers up to the limits of their types."""
    random = np.random.default_rng(seed)
    return Rows.of(**{name: random.integers(0, np.iinfo(kind).max, count, dtype=kind) for name, kind in KINDS.items()})


def columns_of(rows: Rows) -> dict[str, np.ndarray]:
    return {name: getattr(rows, name).copy() for name in ROW_NAMES}


def assert_equal(actual: Rows, expected: dict[str, Any]) -> None:
    for name in ROW_NAMES:
        np.testing.assert_array_equal(getattr(actual, name), expected[name])
        assert getattr(actual, name).dtype == KINDS[name]


@given(st.integers(0, 50), st.integers(0, 1 << 32))
def test_rows_of_columns_are_the_columns(count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    columns = {name: random.integers(0, np.iinfo(kind).max, count, dtype=kind) for name, kind in KINDS.items()}
    rows = Rows.of(**columns)
    assert len(rows) == count
    assert_equal(rows, columns)
    assert_equal(Rows(np.frombuffer(rows.table.tobytes(), ROW_TYPE)), columns)


def test_rows_follow_the_memory_of_their_table() -> None:
    memory = bytearray(ROW_TYPE.itemsize * 3)
    rows = Rows(np.frombuffer(memory, ROW_TYPE))
    np.frombuffer(memory, ROW_TYPE)[:] = some_rows(3).table
    assert_equal(rows, columns_of(some_rows(3)))


@given(st.integers(0, 20), st.integers(0, 20))
def test_a_cut_is_a_part_without_a_copy(start: int, stop: int) -> None:
    rows = some_rows(20)
    part = rows.cut(start, stop)
    assert_equal(part, {name: getattr(rows, name)[start:stop] for name in ROW_NAMES})
    assert not len(part) or np.may_share_memory(part.record, rows.record)


@given(st.sets(st.integers(0, 9)))
def test_replaced_rows_stand_at_their_places_and_the_others_stay(positions: set[int]) -> None:
    rows, new_rows = some_rows(10), some_rows(len(positions), seed=1)
    before = columns_of(rows)
    replaced = rows.replaced(np.array(sorted(positions), np.int64), new_rows)
    expected = columns_of(rows)
    for number, position in enumerate(sorted(positions)):
        for name in ROW_NAMES:
            expected[name][position] = getattr(new_rows, name)[number]
    assert_equal(replaced, expected)
    assert_equal(rows, before)


@pytest.mark.parametrize("name", ROW_NAMES)
def test_a_row_has_room_for_the_largest_number(name: str) -> None:
    assert ROW_TYPE[name] == KINDS[name]
