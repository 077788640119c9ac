"""How the rows of a batch are shared out to workers."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stream.rows import ROW_NAMES, ROW_TYPE, Rows, Share, share_rows


def sizes(shares: list[Share]) -> list[int]:
    return [stop - start for start, stop in shares]


@given(st.integers(1, 3000), st.integers(1, 20))
def test_parts_cover_a_batch_and_are_about_equal(rows: int, shares: int) -> None:
    parts = share_rows(rows, shares)
    assert [start for start, _ in parts] == [0, *accumulate(sizes(parts))][:-1]
    assert sum(sizes(parts)) == rows
    assert max(sizes(parts)) - min(sizes(parts)) <= 1
    assert len(parts) == 1 or min(sizes(parts)) >= 8


def test_packed_rows_are_the_rows() -> None:
    generator = np.random.default_rng(0)
    kinds = (np.int64, np.int16, np.int64, np.int32, np.int64)
    rows = Rows(*(generator.integers(0, 1000, 7).astype(kind) for kind in kinds))
    again = Rows.unpacked(np.frombuffer(rows.packed(), ROW_TYPE))
    for name in ROW_NAMES:
        np.testing.assert_array_equal(getattr(again, name), getattr(rows, name))
        assert getattr(again, name).dtype == getattr(rows, name).dtype
