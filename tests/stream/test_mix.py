import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.mix import PERIOD, MixTable, build_mix

# Published sampling weights of OpenVLA's magic soup, in the unit of its configuration.
MAGIC_SOUP = [0.54, 0.83, 1.0, 2.0, 1.0, 0.2, 1.0, 2.0, 1.0, 2.0, 1.0, 1.0, 2.0, 2.0, 0.1, 2.0, 1.0, 2.0, 2.0, 0.1, 1.0]


def deviation(table: MixTable, start: int, stop: int) -> float:
    """The largest distance of any member's count from n * w, over all n in [start, stop)."""
    before = table.draws_before(start)
    members, _ = table.locate(np.arange(start, stop))
    number = np.arange(start + 1, stop + 1)
    return max(
        float(np.abs(before[member] + np.cumsum(members == member) - number * weight).max())
        for member, weight in enumerate(table.weights)
    )


def test_magic_soup_is_within_two_after_every_sample() -> None:
    table = build_mix(MAGIC_SOUP)
    assert deviation(table, 0, 1_000_000) < 2
    assert deviation(table, 10**9 - 50_000, 10**9 + 50_000) < 2


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(1, 1000), min_size=1, max_size=40))
def test_any_weights_of_one_to_a_thousand_are_within_two_after_every_sample(weights: list[float]) -> None:
    table = build_mix(weights)
    assert deviation(table, 0, PERIOD) < 2
    assert np.abs(table.weights - np.array(weights) / sum(weights)).max() < 1 / PERIOD


def test_each_member_is_drawn_in_order_without_gaps() -> None:
    table = build_mix([5, 0, 1, 3])
    members, draws = table.locate(np.arange(3 * PERIOD))
    for member in (0, 2, 3):
        mine = draws[members == member]
        assert np.array_equal(mine, np.arange(len(mine)))
    assert 1 not in members


def test_draws_before_a_sample_agree_with_counting() -> None:
    table = build_mix([1, 2, 0.5])
    for sample in (0, 1, 1000, PERIOD, PERIOD + 12345):
        members, _ = table.locate(np.arange(sample))
        assert table.draws_before(sample).tolist() == np.bincount(members, minlength=3).tolist()


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -1], [1, float("nan")], [1, float("inf")], [1e-9, 1]])
def test_weights_that_cannot_be_mixed_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weight"):
        build_mix(weights)
