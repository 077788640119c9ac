"""Random numbers for augmentations, which depend on the sample and not on ranks, workers or batches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_C1 = np.uint64(0xBF58476D1CE4E5B9)
_C2 = np.uint64(0x94D049BB133111EB)
_MANTISSA = 53
"""Bits of a float64."""


def make_key(*parts: int | str) -> int:
    """Return a 64-bit key that hashes its parts; keys of different parts are independent.

    >>> make_key(0, "bridge", 0) == make_key(0, "bridge", 0), make_key(0, "bridge", 1) == make_key(1, "bridge", 0)
    (True, False)
    """
    text = "\0".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def derive_keys(key: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
    """Return a new key for each key, uint64 [n], and its numbers, int64 [n] each."""
    for number in numbers:
        key = scramble(number.astype(np.uint64) + np.uint64(1), key)
    return key


def uniform(key: int, samples: np.ndarray) -> np.ndarray:
    """Return a number for each sample, uniform in [0, 1), float64 [n]; the key is of ``make_key``."""
    random_bits = derive_keys(np.full(len(samples), key, np.uint64), samples)
    return np.asarray((random_bits >> np.uint64(64 - _MANTISSA)).astype(np.float64) * 2.0**-_MANTISSA)


def row_random(batch: Mapping[str, Any], seed: int = 0, size: int = 1) -> np.ndarray:
    """Return random numbers for each row of a batch, which depend only on seed and sample.

    A sample gets the same numbers in any batch: for any number of ranks and workers, any batch size, after any resume,
    in ``batch_at``, in ``pairstream replay`` and in ``stream.samples``. Each epoch has its own sample numbers, except
    in ``stream.SampleSource``. Give each transform its own ``seed``; two transforms with the same seed get the same
    numbers.

    Args:
        batch: Batch with ``samples``, an int64 [b] array of numpy, torch or jax; or one element with a single number.
        seed: Whole number.
        size: Count of numbers for each row.

    Returns:
        float64 [b, size], uniform in [0, 1); [size] for one element. A larger ``size`` appends numbers.

    Raises:
        ArgumentError: The batch has no ``samples``, or an argument is not a whole number.

    >>> row_random({"sample": np.array([7, 8])}, seed=1, size=2).round(3)
    array([[0.178, 0.448],
           [0.409, 0.387]])
    """
    seed, size = check_whole_number("seed", seed, least=None), check_whole_number("size", size, least=1)
    samples: Any = batch.get("sample")
    if hasattr(samples, "cpu"):  # numpy cannot read a tensor on another device
        samples = samples.cpu()
    samples = np.asarray(samples)
    if samples.dtype.kind not in "iu":
        raise ArgumentError("row_random: the batch has no whole numbers `sample`; give a batch as the loader made it")
    row_keys = derive_keys(np.full(samples.size, make_key("row_random", seed), np.uint64), samples.reshape(-1))
    random_bits = derive_keys(row_keys[:, None], np.arange(size))
    return ((random_bits >> np.uint64(64 - _MANTISSA)) * 2.0**-_MANTISSA).reshape(*samples.shape, size)


def scramble(values: np.ndarray, tweaks: np.ndarray) -> np.ndarray:
    """Hash value and tweak with the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    mixed = values * _GOLDEN + tweaks
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _C1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _C2
    return mixed ^ (mixed >> np.uint64(31))
