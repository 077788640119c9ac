"""Permutations that shuffle an epoch: computed for any position, never stored."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stream.base.errors import ArgumentError
from stream.base.random_numbers import derive_keys, scramble

# With fewer rounds, domains of less than ten places are visibly uneven (chi-squared over 20,000 keys).
_ROUNDS = 12
_SHUFFLE = re.compile(r"global|none|block:([1-9][0-9]{0,8})")


def permute(index: np.ndarray, size: np.ndarray | int, key: np.ndarray | int) -> np.ndarray:
    """Return the position of each index in a pseudo-random permutation of [0, size).

    A Feistel network permutes a rectangle of at least ``size`` positions, and is applied again to positions beyond
    ``size`` (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).

    Args:
        index: Numbers in [0, size), int64 [n].
        size: Number, or int64 [n], from 1 to 2^60.
        key: Number, or uint64 [n], see ``stream.base.random_numbers``.

    Returns:
        Positions, int64 [n]; for one size and key a bijection of [0, size).

    >>> sorted(permute(np.arange(5), 5, 7).tolist())
    [0, 1, 2, 3, 4]
    """
    index, size, key = np.broadcast_arrays(
        np.asarray(index, np.int64), np.asarray(size, np.int64), np.asarray(key, np.uint64)
    )
    # The square root need not be exact: any width >= 1 with ceil(size / width) rows is a large enough rectangle.
    width = np.maximum(np.sqrt(size.astype(np.float64)).astype(np.int64), 1)
    height = -(-size // width)
    positions = _feistel(index, width, height, key)
    outside = np.flatnonzero(positions >= size)
    while len(outside):
        positions[outside] = _feistel(positions[outside], width[outside], height[outside], key[outside])
        outside = outside[positions[outside] >= size[outside]]
    return positions


@dataclass(frozen=True)
class Shuffle:
    """Order of an epoch.

    Attributes:
        block: 0 for storage order, 1 to shuffle single samples, N to shuffle blocks of N neighbours.
    """

    block: int

    @classmethod
    def parse(cls, argument: str) -> Shuffle:
        """Read ``global``, ``none`` or ``block:N``; raise ArgumentError for anything else."""
        match = _SHUFFLE.fullmatch(argument) if isinstance(argument, str) else None
        if not match:
            raise ArgumentError(f"shuffle={argument!r}; expected 'global', 'block:N' with N >= 1, or 'none'")
        return cls(int(match[1]) if match[1] else int(argument == "global"))

    def place(self, positions: np.ndarray, sizes: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return the shuffled position of each position of an epoch, int64 [n]; for one size and key a bijection.

        Both the order of blocks and the order in each block are random. An incomplete block comes last.
        """
        if self.block == 0:
            return positions
        if self.block == 1:
            return permute(positions, sizes, keys)
        num_blocks = sizes // self.block
        block_numbers, within_block = np.divmod(positions, self.block)
        # Complete blocks change places among themselves; a last block with fewer positions stays last.
        is_complete = block_numbers < num_blocks
        permuted_blocks = permute(np.where(is_complete, block_numbers, 0), np.maximum(num_blocks, 1), keys)
        shuffled_blocks = np.where(is_complete, permuted_blocks, block_numbers)
        block_lengths = np.where(is_complete, self.block, np.maximum(sizes - num_blocks * self.block, 1))
        return shuffled_blocks * self.block + permute(within_block, block_lengths, derive_keys(keys, shuffled_blocks))


def _feistel(indices: np.ndarray, widths: np.ndarray, heights: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Permute the rectangle of each index by rounds that change its row and its column in turn."""
    width, height = widths.astype(np.uint64), heights.astype(np.uint64)
    right, left = np.divmod(indices.astype(np.uint64), width)
    for round_number in range(_ROUNDS):
        tweak = keys + np.uint64((0x9E3779B97F4A7C15 * (round_number + 1)) % 2**64)
        if round_number % 2 == 0:
            left = (left + scramble(right, tweak) % width) % width
        else:
            right = (right + scramble(left, tweak) % height) % height
    return (right * width + left).astype(np.int64)
