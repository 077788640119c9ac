"""The order of samples, from a global sample number to a record, as pure index arithmetic.

    sample k -> (member, draw)        the mixing table of its phase, exact at every prefix, or complete passes
    draw d   -> (epoch, position)     divided by the size of the member's epoch
    position -> place                 a permutation for each dataset and epoch
    place    -> (split, record)       the member's view: split, filter, samples per episode

The result depends on the mixture, the seed and k alone, so any process can compute any step directly.
"""

from __future__ import annotations

import numpy as np

from stream.base.errors import ArgumentError
from stream.order.mix import MixSchedule, Passes
from stream.order.rows import Rows
from stream.order.sample_index import SampleIndex
from stream.order.shuffle import Shuffle, derive_keys, make_key

MAX_SAMPLE = 1 << 61
"""Samples of a mixture; sums of sample numbers stay within int64."""


class Plan:
    """The records of a mixture's samples.

    Args:
        mix: Mixing tables, or complete passes; member i is dataset i.
        views: Samples of each member; its name, seed and epoch make the key of a permutation.
        seed: Any integer.
        shuffle: Order of an epoch.
        num_samples: Samples of all passes together; None if the plan has no end.
    """

    def __init__(
        self,
        mix: MixSchedule | Passes,
        views: SampleIndex,
        *,
        seed: int,
        shuffle: Shuffle,
        num_samples: int | None = None,
    ) -> None:
        self.mix = mix
        self.views = views
        self.seed = seed
        self.shuffle = shuffle
        self.num_samples = num_samples
        self._sizes = views.sizes
        self._names = [member.dataset.name for member in views.members]

    def rows(self, samples: np.ndarray) -> Rows:
        """Return the records of samples.

        Args:
            samples: Global sample numbers from 0, int64 [n].
        """
        member, draw = self.mix.locate(samples)
        size = self._sizes[member]
        epoch, position = np.divmod(draw, size)
        if self.shuffle.block and not isinstance(self.mix, Passes):
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

        With an end, the last batch of one rank is smaller. Several ranks get as many rows as before, the ones that are
        too many beyond ``num_samples``.

        Rank r takes the r-th block of rows, so the batches of all ranks make the global batch:

            batch_size 6, world_size 3, step 0:  rank 0 -> 0 1   rank 1 -> 2 3   rank 2 -> 4 5
        """
        rows = batch_size // world_size
        first = step * batch_size + rank * rows
        if not 0 <= first < MAX_SAMPLE:
            raise ArgumentError(f"step {step}: expected 0 to {MAX_SAMPLE // batch_size - 1:,}")
        stop, last = first + rows, self.num_samples
        if last is not None and step * batch_size >= last:
            raise ArgumentError(f"step {step}: the passes end with step {-(-last // batch_size) - 1:,}")
        if last is not None and world_size == 1:
            stop = min(stop, last)
        return np.arange(first, stop, dtype=np.int64)

    def _keys(self, member: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        """Return the key of each sample's permutation, uint64 [n]."""
        pairs = list(zip(member.tolist(), epoch.tolist(), strict=True))
        keys = {(number, turn): make_key(self.seed, self._names[number], turn) for number, turn in set(pairs)}
        return np.array([keys[pair] for pair in pairs], np.uint64)

    def _rows(self, samples: np.ndarray, member: np.ndarray, epoch: np.ndarray, place: np.ndarray) -> Rows:
        split, record = self.views.locate(member, epoch, place, seed=self.seed, shuffle=self.shuffle.block > 0)
        return Rows.of(sample=samples, member=member, epoch=epoch, split=split, record=record)
