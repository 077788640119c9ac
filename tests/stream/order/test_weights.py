"""Draws by weight: each sample floor or ceil of its share, whatever the ranks, the step and the blocks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream import ArgumentError, Normalize, SampleSource, StateError, make_loader
from stream.order import weights as module
from stream.order.weights import SampleWeights
from tests.stream.index_root import change_table, write_dataset


def opened(values: Any, dtype: Any = np.float64, *, begin: int = 0) -> SampleWeights:
    """Return the weights of one member."""
    stored = np.array(values, dtype)

    def read(numbers: np.ndarray | range) -> tuple[np.ndarray, None]:
        return stored[np.asarray(numbers) - begin], None

    weights = SampleWeights(read)
    weights.add(0, "demo", "weight", first_sample=begin, num_samples=len(stored))
    return weights


def drawn(weights: SampleWeights, size: int, epoch: int, seed: int = 0) -> np.ndarray:
    zero = np.zeros(size, np.int64)
    return weights.draw(zero, zero + epoch, np.arange(size), seed=seed)


def check_counts(counts: Any, values: Sequence[Any]) -> None:
    """Each sample is drawn floor or ceil of N * w / sum(w) times, by exact fractions."""
    exact = [Fraction(value) for value in values]
    total = sum(exact)
    for number, weight in enumerate(exact):
        share = len(exact) * weight / total
        assert math.floor(share) <= counts[number] <= math.ceil(share), f"sample {number} of weight {float(weight)}"


NUMBERS = st.one_of(
    st.sampled_from([0.0, 1.0, 2.0, 0.5, 3.0, 1e-3]), st.floats(0, 1e6, width=32, allow_subnormal=False)
)


@settings(deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=200).filter(any), st.integers(0, 2**60), st.integers(0, 10**9))
def test_an_epoch_draws_every_sample_floor_or_ceil_of_its_share(values: list[float], seed: int, epoch: int) -> None:
    check_counts(Counter(drawn(opened(values, np.float32), len(values), epoch, seed).tolist()), values)


def test_equal_weights_of_any_type_draw_every_sample_once() -> None:
    for dtype in (np.float16, np.float32, np.float64, np.int32, np.uint8, np.int64):
        assert drawn(opened([7] * 1000, dtype), 1000, 5).tolist() == list(range(1000))


def test_a_point_between_two_samples_is_the_begin_of_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "make_key", lambda *parts: 0)
    assert drawn(opened([1] * 200), 200, 0).tolist() == list(range(200))
    assert drawn(opened([1, 0] * 100), 200, 0).tolist() == [2 * (n // 2) for n in range(200)]


@pytest.mark.parametrize("factor", [1e-300, 0.1, 1, 3e18, 1e300])
def test_the_unit_of_weights_does_not_matter(factor: float) -> None:
    values = [0, factor, 2 * factor] * 50
    counts = Counter(drawn(opened(values), 150, 0).tolist())
    assert [counts[number] for number in range(150)] == [0, 1, 2] * 50


def test_over_the_epochs_every_sample_comes_in_proportion_to_its_weight() -> None:
    values = np.random.default_rng(0).exponential(size=40)
    counts: Counter[int] = Counter(np.concatenate([drawn(opened(values), 40, epoch) for epoch in range(500)]).tolist())
    share = 40 * 500 * values / values.sum()
    assert all(abs(counts[number] - expected) < 5 * math.sqrt(500) for number, expected in enumerate(share.tolist()))


def test_a_draw_does_not_depend_on_the_others_nor_on_where_the_member_begins() -> None:
    values = np.random.default_rng(1).random(1000)
    together = drawn(opened(values), 1000, 3)
    zero, position = np.zeros(7, np.int64), np.array([999, 0, 500, 500, 3, 64, 63])
    for begin in (0, 12_345):
        numbers = opened(values, begin=begin).draw(zero, zero + 3, position, seed=0)
        assert numbers.tolist() == together[position].tolist()


def test_weights_of_a_wide_range_are_drawn_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 1 << 10)
    values = np.random.default_rng(2).lognormal(0, 3, 20_003).astype(np.float32)
    values[::5] = 0
    weights = opened(values, np.float32)
    counts = np.bincount(drawn(weights, len(values), 1), minlength=len(values))
    # Exact sums: the weights are whole multiples of 2^-60 of a number that float64 cannot add up.
    units = [int(np.ldexp(np.float64(value), 60)) for value in values]
    total = sum(units)
    for number in np.random.default_rng(3).integers(0, len(values), 500).tolist():
        assert len(values) * units[number] // total <= counts[number] <= -(-len(values) * units[number] // total)
    assert not counts[::5].any() and weights.zeros(0) == len(values[::5])


LENGTHS = {"train": [[7, 12, 3], [9, 20], [15]]}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets with weights a step, a column with gaps, and columns of weights that cannot be drawn by."""
    where = tmp_path_factory.mktemp("weights")
    for name in ("alpha", "beta"):
        folder = write_dataset(where, name, LENGTHS)

        def add(table: pa.Table, name: str = name) -> pa.Table:
            random = np.random.default_rng(len(name))
            weight = random.choice([0, 0.5, 1, 2, 7.25], len(table)).astype(np.float32)
            with_nan = np.where(np.arange(len(table)) % 9 == 3, np.nan, weight)
            for column, values in {
                "weight": weight,
                "holes": with_nan,
                "negative": -weight,
                "infinite": np.where(weight == 1, np.inf, weight),
                "nothing": 0 * weight,
                **({"only": weight} if name == "alpha" else {}),
            }.items():
                table = table.append_column(column, pa.array(values.astype(np.float32)))
            return table

        change_table(folder, "steps", add)
    return where


def test_a_weight_below_a_unit_is_rounded_up_to_one_and_never_to_zero() -> None:
    shares = opened([1.0, 2.0**-90, 0.0, 1.0]).shares(0)
    assert shares[0] == shares[3] and 0 < shares[1] < 2.0**-50 and shares[2] == 0


def test_a_state_is_bound_to_the_column_and_its_content(root: Path, tmp_path: Path) -> None:
    state = make_loader(root, "alpha", batch_size=4, sample_weights="weight").state_at(3)
    by_weight = "sample_weights: None was 'weight'|data of 'alpha', .* labelled again: other column of sample_weights="
    for column in (None, "count_of_all", "three_times"):
        folder = write_dataset(tmp_path / str(column), "alpha", LENGTHS)
        if column:
            change_table(folder, "steps", lambda table: table.append_column("weight", pa.array(np.ones(len(table)))))
        loader = make_loader(tmp_path / str(column), "alpha", batch_size=4, sample_weights="weight" if column else None)
        with pytest.raises(StateError, match=by_weight):
            loader.step_of(state)


def test_statistics_over_samples_count_by_weight(root: Path) -> None:
    loader = make_loader(root, "alpha", batch_size=4, sample_weights="weight")
    (statistics,) = Normalize(loader, over="samples", method="mean_std").statistics["state"].values()
    plain = make_loader(root, "alpha", batch_size=loader.sizes["alpha"], num_epochs=1, columns=["weight"]).batch_at(0)
    mean = np.average(plain["state"].astype(np.float64), weights=plain["weight"], axis=0)
    std = np.sqrt(np.average((plain["state"] - mean) ** 2, weights=plain["weight"], axis=0))
    np.testing.assert_allclose(statistics.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(statistics.std, std, rtol=1e-6)
    assert (statistics.min == plain["state"][plain["weight"] > 0].min(axis=0)).all()


@pytest.mark.parametrize(
    ("sample_weights", "message"),
    [
        ("holes", r"dataset alpha, column 'holes': of 54 samples \d have no weight .NaN or missing"),
        ("negative", r"of 54 samples 0 have no weight .*, \d+ a negative one, 0 an infinite one"),
        ("infinite", r"0 a negative one, \d+ an infinite one"),
        ("nothing", "all 54 samples have weight 0"),
        ("reward", r"of 54 samples \d+ have no weight"),
        ("three", "column 'three' is not one number a row"),
        ("note", "column 'note' is not one number a row"),
        ("wieght", "no column 'wieght' in alpha, beta; did you mean .weight."),
        ("only", r"no column 'only' in beta; give sample_weights by member, such as .*'only'"),
        ({"gamma": "weight"}, "no member 'gamma'"),
        (7, "expected a column, or a mapping of members to columns"),
        ({"alpha": ["weight"]}, "expected a column, or a mapping"),
    ],
)
def test_weights_that_cannot_be_drawn_by_are_refused_when_the_loader_is_made(
    root: Path, sample_weights: Any, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_loader(root, "alpha,beta", batch_size=4, sample_weights=sample_weights)


def test_other_rules_of_drawing_do_not_mix_with_weights(root: Path) -> None:
    assert make_loader(root, "alpha", batch_size=4, sample_weights="weight").describe()["alpha"]["weight_0"] > 0
    with pytest.raises(ArgumentError, match="samples_per_episode=2 with sample_weights"):
        make_loader(root, "alpha", batch_size=4, sample_weights="weight", samples_per_episode=2)
    with pytest.raises(ArgumentError, match="SampleSource has no sample_weights"):
        SampleSource(root, "alpha", sample_weights="weight")
