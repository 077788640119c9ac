"""Complete passes: each sample of each member once, in an order of the seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.order.passes import Passes
from stream.order.shuffle import Shuffle


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.sampled_from(["global", "none", "block:3", "block:64"]),
    st.integers(0, 3),
)
def test_each_pass_has_each_draw_of_each_member_once(sizes: list[int], shuffle: str, turn: int) -> None:
    passes = Passes(sizes, seed=5, shuffle=Shuffle.parse(shuffle))
    members, draws = passes.locate(np.arange(turn * sum(sizes), (turn + 1) * sum(sizes)))
    expected = {(m, turn * size + position) for m, size in enumerate(sizes) for position in range(size)}
    assert set(zip(members.tolist(), draws.tolist(), strict=True)) == expected


def test_passes_and_seeds_have_orders_of_their_own_and_mix_the_members() -> None:
    def order(seed: int, turn: int) -> list[tuple[int, int]]:
        members, draws = Passes([30, 30], seed=seed, shuffle=Shuffle(1)).locate(np.arange(60) + 60 * turn)
        return list(zip(members.tolist(), (draws - 30 * turn).tolist(), strict=True))

    orders = [order(0, 0), order(0, 1), order(1, 0)]
    assert all(one != other for number, one in enumerate(orders) for other in orders[number + 1 :])
    assert order(0, 1) == orders[1]
    assert 5 < sum(member for member, _ in orders[0][:30]) < 25


def test_a_block_of_a_pass_stays_together() -> None:
    members, draws = Passes([64, 64], seed=3, shuffle=Shuffle(8)).locate(np.arange(128))
    places = (members * 64 + draws).reshape(16, 8)
    assert (places // 8 == places[:, :1] // 8).all()
    assert (places[:, 0] // 8 != np.arange(16)).any()


@pytest.mark.parametrize("sample", [0, 1, 10**15])
def test_any_sample_is_found_alone(sample: int) -> None:
    passes = Passes([3, 4], seed=1, shuffle=Shuffle(1))
    together = passes.locate(np.arange(sample, sample + 5))
    for offset in range(5):
        alone = passes.locate(np.array([sample + offset]))
        assert [column.tolist() for column in alone] == [column[offset : offset + 1].tolist() for column in together]
