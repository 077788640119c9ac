import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.base.configs import CONFIGS
from stream.format.mixture_file import SizePower
from stream.order.mix import PERIOD, MixSchedule, MixTable, Passes, build_mix
from stream.order.shuffle import Shuffle

MILLION, BILLION = 10**6, 10**9


def draws_before(table: MixTable, sample: int) -> np.ndarray:
    """Return the count of samples of each member before a sample."""
    period, position = divmod(sample, PERIOD)
    return period * table.counts + np.bincount(table.members[:position], minlength=len(table.counts))


def deviation(table: MixTable, start: int, stop: int, *, weights: np.ndarray | None = None) -> float:
    """Return the largest distance of any member's count from n * w, over every n in [start, stop].

    Between two samples of a member its count is constant while n * w rises, so the distance is largest just before or
    just after a sample, or at an end.
    """
    weights = table.weights if weights is None else weights
    members, _ = table.locate(np.arange(start, stop))
    order = np.argsort(members, kind="stable")
    member, number = members[order], order + start
    drawn = np.bincount(members, minlength=len(weights))
    before = draws_before(table, start)
    count = before[member] + np.arange(len(order)) - np.repeat(np.cumsum(drawn) - drawn, drawn)
    weight = weights[member]
    distances = (
        count - number * weight,
        count + 1 - (number + 1) * weight,
        before - start * weights,
        before + drawn - stop * weights,
    )
    return max(float(np.abs(distance).max()) for distance in distances)


def magic_soup(seed: int) -> list[float]:
    """Return OpenVLA's factors times invented sizes, from ten thousand to thirty million pairs."""
    text = CONFIGS.joinpath("mixtures", "openvla_magic_soup.yaml").read_text()
    weights = [SizePower.model_validate(entry["weight"]) for entry in yaml.safe_load(text)["members"].values()]
    sizes = 10 ** np.random.default_rng(seed).uniform(4, 7.5, len(weights))
    return [weight.factor * size**weight.size_power for weight, size in zip(weights, sizes, strict=True)]


def shares(weights: list[float]) -> np.ndarray:
    return np.array(weights) / sum(weights)


SPREAD = st.lists(st.floats(0, 3).map(lambda power: 10**power), min_size=2, max_size=29)
"""Weights of 2 to 29 members, the largest at most a thousand times the smallest."""


@pytest.mark.parametrize("seed", range(3))
def test_magic_soup_is_within_two_after_every_sample(seed: int) -> None:
    weights = magic_soup(seed)
    table = build_mix(weights)
    assert max(weights) / min(weights) > 100
    assert deviation(table, 0, MILLION) < 2
    assert deviation(table, 0, MILLION, weights=shares(weights)) < 2
    assert deviation(table, BILLION - 5_000, BILLION + 5_000) < 2


@pytest.mark.long
@settings(max_examples=8, deadline=None)
@given(SPREAD)
def test_weights_of_one_to_a_thousand_are_within_two_after_every_sample(weights: list[float]) -> None:
    table = build_mix(weights)
    assert deviation(table, 0, MILLION) < 2
    assert deviation(table, 0, MILLION, weights=shares(weights)) < 2
    assert deviation(table, BILLION - 5_000, BILLION + 5_000) < 2
    assert deviation(table, PERIOD - 1_000, PERIOD + 1_000) < 2


@pytest.mark.parametrize("rare", [1, 2, 28])
def test_many_frequent_members_beside_rare_ones_are_within_two(rare: int) -> None:
    weights = [1.0] * rare + [1000.0] * (29 - rare)
    assert deviation(build_mix(weights), 0, MILLION, weights=shares(weights)) < 2


@settings(max_examples=10, deadline=None)
@given(SPREAD)
def test_the_weights_used_are_the_wanted_ones_rounded_to_the_period(weights: list[float]) -> None:
    table = build_mix(weights)
    assert np.abs(table.weights - shares(weights)).max() < 1 / PERIOD
    assert table.counts.sum() == PERIOD


def test_one_member_gives_all_samples() -> None:
    members, draws = build_mix([0.3]).locate(np.array([0, 1, PERIOD, 10**15]))
    assert members.tolist() == [0, 0, 0, 0]
    assert draws.tolist() == [0, 1, PERIOD, 10**15]


def test_each_member_is_drawn_in_order_without_gaps() -> None:
    table = build_mix([5, 0, 1, 3])
    members, draws = table.locate(np.arange(3 * PERIOD))
    for member in (0, 2, 3):
        mine = draws[members == member]
        assert np.array_equal(mine, np.arange(len(mine)))
    assert 1 not in members


@pytest.mark.parametrize("weights", [[], [0, 0], [1, -1], [1, float("nan")], [1, float("inf")], [1e-9, 1]])
def test_weights_that_cannot_be_mixed_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weight"):
        build_mix(weights)


@given(
    phases=st.lists(
        st.tuples(st.integers(1, 3000), st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any)),
        min_size=1,
        max_size=5,
    )
)
@settings(max_examples=30, deadline=None)
def test_a_schedule_is_exact_in_each_phase_and_draws_go_on(phases: list[tuple[int, list[int]]]) -> None:
    lengths = [length for length, _ in phases]
    ends = np.cumsum(lengths)[:-1].tolist()
    schedule = MixSchedule([build_mix(weights) for _, weights in phases], ends)
    members, draws = schedule.locate(np.arange(sum(lengths)))
    for member in range(3):
        # Every draw of a member comes once, in order, across all borders.
        assert draws[members == member].tolist() == list(range((members == member).sum()))
        start = 0
        for length, weights in phases:
            counts = np.cumsum(members[start : start + length] == member)
            exact = np.arange(1, length + 1) * weights[member] / sum(weights)
            assert np.abs(counts - exact).max() < 2
            start += length
    # Any sample is found alone.
    subset = np.array([0, sum(lengths) // 2, sum(lengths) - 1])
    assert [column[subset].tolist() for column in (members, draws)] == [
        column.tolist() for column in schedule.locate(subset)
    ]


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
    assert all(first != second for number, first in enumerate(orders) for second in orders[number + 1 :])
    assert order(0, 1) == orders[1]
    assert 5 < sum(member for member, _ in orders[0][:30]) < 25


def test_a_block_of_a_pass_stays_together() -> None:
    members, draws = Passes([64, 64], seed=3, shuffle=Shuffle(8)).locate(np.arange(128))
    positions = (members * 64 + draws).reshape(16, 8)
    assert (positions // 8 == positions[:, :1] // 8).all()
    assert (positions[:, 0] // 8 != np.arange(16)).any()
