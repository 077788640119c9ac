"""Permutations that shuffle an epoch: computed for any position, never stored."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import numpy as np

from stream.base.errors import ArgumentError

# With fewer rounds, domains of less than ten places are visibly uneven (chi-squared over 20,000 keys).
_ROUNDS = 12
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_C1 = np.uint64(0xBF58476D1CE4E5B9)
_C2 = np.uint64(0x94D049BB133111EB)
_SHUFFLE = re.compile(r"global|none|block:([1-9][0-9]{0,8})")


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
        key = _scramble(number.astype(np.uint64) + np.uint64(1), key)
    return key


def permute(index: np.ndarray, size: np.ndarray | int, key: np.ndarray | int) -> np.ndarray:
    """Return the place of each index in a pseudo-random permutation of [0, size).

    A Feistel network permutes a rectangle a x b of at least ``size`` places, and is applied again to places beyond
    ``size`` (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).

    Args:
        index: Numbers in [0, size), int64 [n].
        size: Number, or int64 [n], from 1 to 2^60.
        key: Number, or uint64 [n], see ``make_key``.

    Returns:
        Places, int64 [n]; for one size and key a bijection of [0, size).

    >>> sorted(permute(np.arange(5), 5, 7).tolist())
    [0, 1, 2, 3, 4]
    """
    index, size, key = np.broadcast_arrays(
        np.asarray(index, np.int64), np.asarray(size, np.int64), np.asarray(key, np.uint64)
    )
    # The square root need not be exact: any a >= 1 with b = ceil(size / a) gives a large enough rectangle.
    wide = np.maximum(np.sqrt(size.astype(np.float64)).astype(np.int64), 1)
    high = -(-size // wide)
    place = _feistel(index, wide, high, key)
    outside = np.flatnonzero(place >= size)
    while len(outside):
        place[outside] = _feistel(place[outside], wide[outside], high[outside], key[outside])
        outside = outside[place[outside] >= size[outside]]
    return place


@dataclass(frozen=True)
class Shuffle:
    """Order of an epoch.

    Attributes:
        block: 0 for storage order, 1 to shuffle single samples, N to shuffle blocks of N neighbours.
    """

    block: int

    @classmethod
    def parse(cls, text: str) -> Shuffle:
        """Read ``global``, ``none`` or ``block:N``; raise ArgumentError for anything else."""
        match = _SHUFFLE.fullmatch(text) if isinstance(text, str) else None
        if not match:
            raise ArgumentError(f"shuffle={text!r}; expected 'global', 'block:N' with N >= 1, or 'none'")
        return cls(int(match[1]) if match[1] else int(text == "global"))

    def place(self, position: np.ndarray, size: np.ndarray, key: np.ndarray) -> np.ndarray:
        """Return the place of each position of an epoch, int64 [n]; for one size and key a bijection.

        Both the order of blocks and the order in each block are random. An incomplete block comes last.
        """
        if self.block == 0:
            return position
        if self.block == 1:
            return permute(position, size, key)
        blocks = size // self.block
        block, inside = np.divmod(position, self.block)
        whole = block < blocks
        moved = np.where(whole, permute(np.where(whole, block, 0), np.maximum(blocks, 1), key), block)
        length = np.where(whole, self.block, np.maximum(size - blocks * self.block, 1))
        return moved * self.block + permute(inside, length, derive_keys(key, moved))


def _feistel(index: np.ndarray, wide: np.ndarray, high: np.ndarray, key: np.ndarray) -> np.ndarray:
    a, b = wide.astype(np.uint64), high.astype(np.uint64)
    right, left = np.divmod(index.astype(np.uint64), a)
    for turn in range(_ROUNDS):
        tweak = key + np.uint64((0x9E3779B97F4A7C15 * (turn + 1)) % 2**64)
        if turn % 2 == 0:
            left = (left + _scramble(right, tweak) % a) % a
        else:
            right = (right + _scramble(left, tweak) % b) % b
    return (right * a + left).astype(np.int64)


def _scramble(value: np.ndarray, tweak: np.ndarray) -> np.ndarray:
    """Hash value and tweak with the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    mixed = value * _GOLDEN + tweak
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _C1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _C2
    return mixed ^ (mixed >> np.uint64(31))
