"""Tests of the rows of a batch, in columns and packed."""

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
    return Rows(**{name: random.integers(0, np.iinfo(kind).max, count, dtype=kind) for name, kind in KINDS.items()})


def assert_equal(found: Rows, expected: dict[str, Any]) -> None:
    for name in ROW_NAMES:
        np.testing.assert_array_equal(getattr(found, name), expected[name])
        assert getattr(found, name).dtype == KINDS[name]


@given(st.integers(0, 50), st.integers(0, 1 << 32))
def test_packed_rows_are_the_rows(count: int, seed: int) -> None:
    rows = some_rows(count, seed)
    packed = rows.packed()
    assert len(packed) == len(rows) == count
    again = Rows.unpacked(np.frombuffer(packed.tobytes(), ROW_TYPE))
    assert_equal(again, vars(rows))


def test_unpacked_rows_follow_the_memory_that_they_are_in() -> None:
    memory = bytearray(ROW_TYPE.itemsize * 3)
    rows = Rows.unpacked(np.frombuffer(memory, ROW_TYPE))
    np.frombuffer(memory, ROW_TYPE)[:] = some_rows(3).packed()
    assert_equal(rows, vars(some_rows(3)))


@given(st.integers(0, 20), st.integers(0, 20))
def test_a_cut_is_a_part_without_a_copy(start: int, stop: int) -> None:
    rows = some_rows(20)
    part = rows.cut(start, stop)
    assert_equal(part, {name: getattr(rows, name)[start:stop] for name in ROW_NAMES})
    assert not len(part) or np.may_share_memory(part.record, rows.record)


@given(st.sets(st.integers(0, 9)))
def test_replaced_rows_stand_at_their_places_and_the_others_stay(places: set[int]) -> None:
    rows, others = some_rows(10), some_rows(len(places), seed=1)
    before = {name: values.copy() for name, values in vars(rows).items()}
    found = rows.replaced(np.array(sorted(places), np.int64), others)
    expected = {name: values.copy() for name, values in before.items()}
    for number, place in enumerate(sorted(places)):
        for name in ROW_NAMES:
            expected[name][place] = getattr(others, name)[number]
    assert_equal(found, expected)
    assert_equal(rows, before)


@pytest.mark.parametrize("name", ROW_NAMES)
def test_a_packed_row_has_room_for_the_largest_number(name: str) -> None:
    assert ROW_TYPE[name] == KINDS[name]
