"""Parts of batches by which workers of any speed end at the same time."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stream.source
from stream import digest, make_loader
from stream.pace import PACED, Pace, balance_shares, pace_shares
from stream.rows import Share, share_rows

SPEED = st.floats(1e-3, 1e9)
LEFT = st.floats(0, 1e6)


def sizes(shares: list[Share]) -> list[int]:
    return [stop - start for start, stop in shares]


@given(st.integers(8, 3000), st.lists(st.tuples(SPEED, LEFT), min_size=1, max_size=20))
def test_parts_cover_a_batch_and_none_is_empty(rows: int, workers: list[tuple[float, float]]) -> None:
    shares = share_rows(rows, len(workers))
    rates, left = zip(*workers[: len(shares)], strict=True)
    parts = balance_shares(shares, rates, left)
    assert [start for start, _ in parts] == [0, *accumulate(sizes(parts))][:-1]
    assert sum(sizes(parts)) == rows
    assert min(sizes(parts)) >= 1


@given(st.integers(8, 3000), st.integers(1, 20), SPEED, LEFT)
def test_workers_alike_have_equal_parts(rows: int, count: int, rate: float, left: float) -> None:
    shares = share_rows(rows, count)
    parts = balance_shares(shares, [rate] * len(shares), [left] * len(shares))
    assert max(abs(one - other) for one, other in zip(sizes(parts), sizes(shares), strict=True)) <= 1


def test_nothing_is_moved_before_all_are_known() -> None:
    for cut in (balance_shares, pace_shares):
        assert cut([(0, 9), (9, 18)], [5.0, 0.0], [1.0, 3.0]) == [(0, 9), (9, 18)]


def test_a_pace_is_that_of_the_last_parts_and_says_when_a_worker_is_done() -> None:
    pace = Pace()
    assert (pace.rate, pace.seconds_left([10], 5.0)) == (0.0, 0.0)
    pace.note(10, 2.0, ended=100.0)
    assert pace.rate == 5.0
    for _ in range(100):
        pace.note(10, 1.0, ended=200.0)
    assert pace.rate == pytest.approx(10.0, abs=1e-3)
    left = [pace.seconds_left(parts, now) for parts, now in (([], 200.5), ([10, 20], 200.5), ([10, 20], 900.0))]
    # Of the first part half is done, then all, and nothing of the second: that it was begun is not known.
    assert left == pytest.approx([0.0, 2.5, 2.0], abs=1e-2)


@pytest.mark.parametrize(("slower", "least"), [(1.0, 0.99), (1.02, 0.99), (1.5, 0.98), (2.0, 0.98)])
def test_a_slower_worker_is_not_waited_for(slower: float, least: float) -> None:
    """Two workers with three batches under way, simulated: equal parts would let the fast one sleep. The trainer waits
    for the first, and then for the other one in few batches."""
    shares, free, paces = share_rows(64, 2), [0.0, 0.0], (Pace(), Pace())
    speeds = (1.0 / slower, 1.0)
    parts: list[list[tuple[float, int]]] = []
    noted, busy, now = 0, 0.0, 0.0
    paced = shares
    for batch in range(500):
        if batch >= 3:
            now = max(end for end, _ in parts[batch - 3])
        done = sorted((end, worker, size) for part in parts for worker, (end, size) in enumerate(part) if end <= now)
        for end, worker, size in done[noted:]:
            paces[worker].note(size, size / speeds[worker], end)
        noted = len(done)
        if batch % PACED == 0:
            left = []
            for worker, pace in enumerate(paces):
                left.append(pace.seconds_left([part[worker][1] for part in parts if part[worker][0] > now], now))
            paced = pace_shares(shares, [pace.rate for pace in paces], left)
        chosen = []
        for worker, size in enumerate(sizes(paced)):
            free[worker] = max(free[worker], now) + size / speeds[worker]
            chosen.append((free[worker], size))
        parts.append(chosen)
        busy += sum(size / speeds[worker] for worker, (_, size) in enumerate(chosen))
    assert busy / (2 * max(free)) >= least
    if slower > 1.0:
        # Of workers quite alike no whole row is to be moved.
        last = parts[100:]
        assert sum(first > other for (first, _), (other, _) in last) / len(last) > 0.9


def test_batches_are_the_same_however_they_are_cut(oxe_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random, seen = Random(0), set()

    def cut(shares: list[Share], rates: list[float], left: list[float]) -> list[Share]:
        assert len(shares) == len(rates) == len(left) == 3
        first, second = sorted(random.sample(range(1, 48), 2))
        seen.add((first, second))
        return [(0, first), (first, second), (second, 48)]

    monkeypatch.setattr(stream.source, "pace_shares", cut)
    monkeypatch.setattr(stream.source, "PACED", 1)
    loader = make_loader(oxe_root, "oxe29", batch_size=48, num_workers=3, seed=8)
    iterator = iter(loader)
    found = [digest(next(iterator)) for _ in range(60)]
    iterator.close()
    assert len(seen) > 40
    assert found == [digest(loader.batch_at(step)) for step in range(60)]
