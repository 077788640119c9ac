"""The order of samples, from a global sample number to a record, as pure index arithmetic.

    sample k -> (member, draw)        the mixing table of its phase: exact at every prefix
    draw d   -> (epoch, position)     divided by the size of the member's epoch
    position -> place                 a permutation for each dataset and epoch
    place    -> (split, record)       the member's view: split, filter, samples per episode

The result depends on the mixture, the seed and k alone, so any process can compute any step directly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream.order.mix import MixSchedule
from stream.order.rows import Rows
from stream.order.shuffle import derive_keys, make_key, permute
from stream.order.views import Views
from stream.storage.errors import ArgumentError

MAX_SAMPLE = 1 << 61
"""Samples of a mixture; sums of sample numbers stay within int64."""
_SHUFFLE = re.compile(r"global|none|block:([1-9][0-9]{0,8})")


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


class Plan:
    """The records of a mixture's samples.

    Args:
        mix: Mixing tables; member i is dataset i.
        views: Samples of each member.
        names: Names of the datasets; name, seed and epoch make the key of a permutation.
        seed: Any integer.
        shuffle: Order of an epoch.
    """

    def __init__(self, mix: MixSchedule, views: Views, *, names: Sequence[str], seed: int, shuffle: Shuffle) -> None:
        self.mix = mix
        self.views = views
        self.seed = seed
        self.shuffle = shuffle
        self._sizes = views.sizes
        self._names = list(names)

    def rows(self, samples: np.ndarray) -> Rows:
        """Return the records of samples.

        Args:
            samples: Global sample numbers from 0, int64 [n].
        """
        member, draw = self.mix.locate(samples)
        size = self._sizes[member]
        epoch, position = np.divmod(draw, size)
        if self.shuffle.block:
            position = self.shuffle.place(position, size, self._keys(member, epoch))
        return self._rows(samples, member, epoch, position)

    def replacements(self, samples: np.ndarray, attempt: int) -> Rows:
        """Return replacements for samples that cannot be read, from the same dataset and epoch.

        Args:
            samples: Global sample numbers, int64 [n].
            attempt: Number from 1; each attempt gives another choice.
        """
        member, draw = self.mix.locate(samples)
        size = self._sizes[member]
        epoch = draw // size
        key = np.array([make_key(self.seed, "replacement", self._names[m], attempt) for m in member], np.uint64)
        place = (derive_keys(key, samples) % size.astype(np.uint64)).astype(np.int64)
        return self._rows(samples, member, epoch, place)

    def batch_samples(self, step: int, batch_size: int, rank: int = 0, world_size: int = 1) -> np.ndarray:
        """Return the global sample numbers of a rank's rows of a batch, int64 [batch_size / world_size].

        Rank r takes the r-th block of rows, so the batches of all ranks make the global batch:

            batch_size 6, world_size 3, step 0:  rank 0 -> 0 1   rank 1 -> 2 3   rank 2 -> 4 5
        """
        rows = batch_size // world_size
        first = step * batch_size + rank * rows
        if not 0 <= first < MAX_SAMPLE:
            raise ArgumentError(f"step {step}: expected 0 to {MAX_SAMPLE // batch_size - 1:,}")
        return np.arange(first, first + rows, dtype=np.int64)

    def _keys(self, member: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        """Return the key of each sample's permutation, uint64 [n]."""
        pairs = list(zip(member.tolist(), epoch.tolist(), strict=True))
        keys = {(number, turn): make_key(self.seed, self._names[number], turn) for number, turn in set(pairs)}
        return np.array([keys[pair] for pair in pairs], np.uint64)

    def _rows(self, samples: np.ndarray, member: np.ndarray, epoch: np.ndarray, place: np.ndarray) -> Rows:
        split, record = self.views.locate(member, epoch, place, seed=self.seed, shuffle=self.shuffle.block > 0)
        return Rows.of(sample=samples, member=member, epoch=epoch, split=split, record=record)
