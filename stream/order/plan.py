"""The order of samples, from a global sample number to a record, as pure index arithmetic.

    sample k -> (member, draw)        the mixing table of its phase, exact at every prefix, or complete passes
    draw d   -> (epoch, position)     divided by the size of the member's epoch
    position -> shuffled position     a permutation for each dataset and epoch
             -> (split, record)       the member's samples: split, filter, samples per episode

The result depends only on the mixture, the seed and k, so any process can compute any step directly.
"""

from __future__ import annotations

import numpy as np

from stream.base.errors import ArgumentError
from stream.base.random_numbers import derive_keys, make_key
from stream.order.mix import MixSchedule, Passes
from stream.order.rows import Rows
from stream.order.sample_index import SampleIndex
from stream.order.shuffle import Shuffle

MAX_SAMPLE = 1 << 61
"""Samples of a mixture; sums of sample numbers stay within int64."""


class Plan:
    """The records of a mixture's samples.

    Args:
        mix: Mixing tables, or complete passes; member i is dataset i.
        sample_index: Samples of each member; its name, seed and epoch make the key of a permutation.
        seed: Any integer.
        shuffle: Order of an epoch.
        num_samples: Count of the samples of all passes; None if the plan has no end.
    """

    def __init__(
        self,
        mix: MixSchedule | Passes,
        sample_index: SampleIndex,
        *,
        seed: int,
        shuffle: Shuffle,
        num_samples: int | None = None,
    ) -> None:
        self.mix = mix
        self.sample_index = sample_index
        self.seed = seed
        self.shuffle = shuffle
        self.num_samples = num_samples
        self._sizes = sample_index.sizes
        self._names = [member.dataset.name for member in sample_index.members]

    def rows(self, samples: np.ndarray) -> Rows:
        """Return the records of samples.

        Args:
            samples: Global sample numbers from 0, int64 [n].
        """
        members, draws = self.mix.locate(samples)
        epoch_sizes = self._sizes[members]
        epochs, positions = np.divmod(draws, epoch_sizes)
        if self.shuffle.block and not isinstance(self.mix, Passes):
            positions = self.shuffle.place(positions, epoch_sizes, self._keys(members, epochs))
        return self._rows(samples, members, epochs, positions)

    def replacements(self, samples: np.ndarray, attempt: int) -> Rows:
        """Return replacements for samples that cannot be read, from the same dataset and epoch.

        Args:
            samples: Global sample numbers, int64 [n].
            attempt: Number from 1; each attempt gives another choice.
        """
        members, draws = self.mix.locate(samples)
        epoch_sizes = self._sizes[members]
        epochs = draws // epoch_sizes
        keys = [make_key(self.seed, "replacement", self._names[member], attempt) for member in members]
        random_numbers = derive_keys(np.array(keys, np.uint64), samples)
        positions = (random_numbers % epoch_sizes.astype(np.uint64)).astype(np.int64)
        return self._rows(samples, members, epochs, positions)

    def batch_samples(self, step: int, batch_size: int, rank: int = 0, world_size: int = 1) -> np.ndarray:
        """Return the global sample numbers of a rank's rows of a batch, int64 [batch_size / world_size].

        With an end, the last batch of one rank is smaller. Several ranks get as many rows as before, the ones that are
        too many beyond ``num_samples``.

        Rank r takes the r-th block of rows, so the batches of all ranks make the global batch:

            batch_size 6, world_size 3, step 0:  rank 0 -> 0 1   rank 1 -> 2 3   rank 2 -> 4 5
        """
        rank_rows = batch_size // world_size
        first_sample = step * batch_size + rank * rank_rows
        if not 0 <= first_sample < MAX_SAMPLE:
            raise ArgumentError(f"step {step}: expected 0 to {MAX_SAMPLE // batch_size - 1:,}")
        stop_sample, num_samples = first_sample + rank_rows, self.num_samples
        if num_samples is not None and step * batch_size >= num_samples:
            raise ArgumentError(f"step {step}: the epochs end with step {-(-num_samples // batch_size) - 1:,}")
        if num_samples is not None and world_size == 1:
            stop_sample = min(stop_sample, num_samples)
        return np.arange(first_sample, stop_sample, dtype=np.int64)

    def _keys(self, members: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """Return the key of each sample's permutation, uint64 [n]."""
        member_epochs = list(zip(members.tolist(), epochs.tolist(), strict=True))
        keys = {pair: make_key(self.seed, self._names[pair[0]], pair[1]) for pair in set(member_epochs)}
        return np.array([keys[pair] for pair in member_epochs], np.uint64)

    def _rows(self, samples: np.ndarray, members: np.ndarray, epochs: np.ndarray, positions: np.ndarray) -> Rows:
        shuffle = self.shuffle.block > 0
        splits, records = self.sample_index.locate(members, epochs, positions, seed=self.seed, shuffle=shuffle)
        return Rows.of(sample=samples, member=members, epoch=epochs, split=splits, record=records)
