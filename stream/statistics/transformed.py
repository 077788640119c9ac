"""Vectors after the caller's transforms: whether these change them, and their chunks for statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stream.base.errors import ArgumentError
from stream.batch.maker import BatchMaker, Setup
from stream.batch.spec import BatchSpec
from stream.format.names import VECTORS, VectorName
from stream.order.rows import Rows
from stream.statistics.chunks import Chunks
from stream.statistics.mixture import Mixture

_ROWS = 4096
"""Samples that are transformed at once."""
_PROBED = 2
"""Samples of each dataset that show whether transforms change a vector."""


@dataclass(frozen=True)
class TransformedVectors:
    """Vectors of a mixture after transforms, which run over batches without frames.

    Attributes:
        data: Mixture.
        transforms: Transforms in front of the normalisation.
    """

    data: Mixture
    transforms: tuple[Any, ...]

    def chunks(self, vector_key: VectorName, member: int) -> Callable[[], Chunks]:
        """Return a function that yields the chunks of all samples of a member, float32 [n, W, D] with their mask.

        Raises:
            ArgumentError: From the function, a transform needs frames, or gives another count of dimensions.
        """
        vector_slots = self.data.spec.slots.get(vector_key)
        slots = vector_slots[member] if vector_slots else None
        size = slots.size if slots else self.data.spec.vectors(vector_key)[member].size

        def yield_chunks() -> Chunks:
            maker = _maker(_without_frames(self.data.spec), self.transforms)
            num_samples = int(self.data.sample_index.sizes[member])
            for first in range(0, num_samples, _ROWS):
                rows = _rows(self.data, member, np.arange(first, min(first + _ROWS, num_samples)))
                try:
                    batch = maker.make(0, rows).batch
                except KeyError as error:
                    raise ArgumentError(
                        f"statistics='transformed': a transform needs {error}, and the statistics are of batches "
                        "without frames; make the transform change action and state without them"
                    ) from None
                keys = (vector_key, f"{vector_key}_mask")
                if absent := [key for key in keys if key not in batch]:
                    raise ArgumentError(
                        f"statistics='transformed': the transforms return no {absent[0]}; keep {' and '.join(keys)}"
                    )
                # One step, several, or those of the intervals between frames.
                values, mask = (np.asarray(batch[key]).reshape(len(rows), -1, batch[key].shape[-1]) for key in keys)
                if values.shape[-1] < size:
                    raise ArgumentError(
                        f"statistics='transformed': the {vector_key} has {values.shape[-1]} dimensions after the "
                        f"transforms, {self.data.names[member]} has {size}; keep their count"
                    )
                values, mask = values[..., :size].astype(np.float32), mask[..., :size]
                yield (slots.take(values), slots.take(mask)) if slots else (values, mask)

        return yield_chunks


def check_unchanged(data: Mixture, transforms: Sequence[Any], keys: Sequence[str]) -> None:
    """Raise ArgumentError if transforms change a vector whose statistics are of the data as stored."""
    plain = _maker(_without_frames(data.spec), ())
    changed = _maker(replace(data.spec, state_dropout=None), tuple(transforms))
    for member in range(len(data.names)):
        positions = np.arange(min(_PROBED, int(data.sample_index.sizes[member])))
        rows = _rows(data, member, positions)
        before, after = plain.make(0, rows).batch, changed.make(0, rows).batch
        for key in (key for key in VECTORS if key in keys and key in before):
            if not np.array_equal(np.asarray(after.get(key)), before[key], equal_nan=True):
                names = ", ".join(type(transform).__name__ for transform in transforms)
                raise ArgumentError(
                    f"transforms: {names} changes the {key} in front of its normalisation, whose statistics are of the "
                    "data as stored; give normalize={'method': ..., 'statistics': 'transformed'}, statistics of your "
                    "own, or a relative vector by Vector(relative_to=...)"
                )


def _without_frames(spec: BatchSpec) -> BatchSpec:
    # Statistics count every state.
    return replace(spec, cameras=(), chooses_frames=False, history_dropout=None, state_dropout=None)


def _maker(spec: BatchSpec, transforms: tuple[Any, ...]) -> BatchMaker:
    return BatchMaker(Setup(spec=spec, transforms=transforms, seed=spec.seed, rank=0, rows=_ROWS, threads=1))


def _rows(data: Mixture, member: int, positions: np.ndarray) -> Rows:
    """Return rows of a member by the position of their samples in storage order."""
    zeros = np.zeros(len(positions), np.int64)
    split, record = data.sample_index.locate(zeros + member, zeros, positions, seed=0, shuffle=False)
    return Rows.of(sample=positions, member=zeros + member, epoch=zeros, split=split, record=record)
