from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stream import ArgumentError, row_random


def drawn(samples: Any, **arguments: Any) -> np.ndarray:
    return row_random({"sample": np.asarray(samples)}, **arguments)


def test_numbers_are_those_of_any_version() -> None:
    hex_numbers = [[number.hex() for number in row] for row in drawn([0, 1, 10**12], seed=0, size=2).tolist()]
    assert hex_numbers == [
        ["0x1.da76d8552be20p-4", "0x1.1a51fead31659p-1"],
        ["0x1.bd20c84905ce8p-1", "0x1.047e465dee530p-1"],
        ["0x1.d9bf13aed78fdp-1", "0x1.5dab5991798dap-2"],
    ]
    assert drawn([5], seed=-3)[0, 0].hex() == "0x1.782bc8f3c40d6p-1"


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=20), st.integers(-(2**70), 2**70), st.integers(1, 5))
def test_a_number_depends_on_seed_and_sample_alone(samples: list[int], seed: int, size: int) -> None:
    together = drawn(samples, seed=seed, size=size)
    assert together.dtype == np.float64
    assert together.shape == (len(samples), size)
    assert ((together >= 0) & (together < 1)).all()
    for sample, row in zip(samples, together, strict=True):
        np.testing.assert_array_equal(drawn([sample], seed=seed, size=size)[0], row)
        np.testing.assert_array_equal(drawn(sample, seed=seed, size=size), row)
        np.testing.assert_array_equal(drawn([sample], seed=seed, size=size + 1)[0, :size], row)


def test_tensors_and_arrays_of_all_libraries_give_the_same() -> None:
    samples = [3, 4, 2**31 - 1]
    expected = drawn(samples, seed=1, size=3)
    for sample in (torch.tensor(samples), jnp.array(samples), np.array(samples, np.uint32)):
        np.testing.assert_array_equal(row_random({"sample": sample}, seed=1, size=3), expected)


@pytest.mark.parametrize("start", [0, 10**12])
def test_numbers_are_uniform(start: int) -> None:
    numbers = drawn(np.arange(start, start + 50_000), size=4)
    for column in numbers.T:
        counts = np.histogram(column, bins=100, range=(0, 1))[0]
        chi_squared = ((counts - 500.0) ** 2 / 500.0).sum()
        assert 50 < chi_squared < 170  # 99 degrees of freedom: beyond it once in 100,000


def test_numbers_of_neighbouring_samples_seeds_and_places_do_not_go_together() -> None:
    samples = np.arange(100_000)
    numbers = drawn(samples, seed=1, size=2)
    shifted_columns = {f"sample + {lag}": numbers[lag:, 0] for lag in (1, 2, 64)}
    shifted_columns |= {"place": numbers[:, 1], "place, one on": numbers[1:, 1], "seed": drawn(samples, seed=2)[:, 0]}
    for name, shifted in shifted_columns.items():
        correlation = np.corrcoef(numbers[: len(shifted), 0], shifted)[0, 1]
        assert abs(correlation) < 5 / np.sqrt(len(shifted)), name
    assert len(np.unique(numbers)) == numbers.size
    pairs = np.histogram2d(numbers[:-1, 0], numbers[1:, 0], bins=10)[0]
    assert ((pairs - 1000.0) ** 2 / 1000.0).sum() < 170


@pytest.mark.parametrize(
    ("batch", "arguments", "message"),
    [
        ({}, {}, "no whole numbers `sample`"),
        ({"sample": np.zeros(3)}, {}, "no whole numbers `sample`"),
        ({"sample": np.arange(3)}, {"seed": 0.5}, r"seed=0\.5; expected a whole number"),
        ({"sample": np.arange(3)}, {"size": 0}, "size=0; expected a whole number >= 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(batch: dict[str, Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        row_random(batch, **arguments)
