"""Normalisation of actions and states by the statistics of each dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import grain
import numpy as np

from stream.batch.affine import Affine, AffineMap
from stream.batch.spec import Batch
from stream.batch.vectors import Vector
from stream.loader.loader import Loader
from stream.loader.mixed import MixedData
from stream.storage.errors import ArgumentError

Method = Literal["mean_std", "q01_q99"]
_EPSILON = 1e-8


class Normalize(grain.transforms.Map):
    """Normalise ``action`` and ``state`` of batches, each row by the statistics of its dataset.

    As a transform of ``make_loader`` it works in the workers, on numpy arrays; ``stream.torch.Normalize`` and
    ``stream.jax.normalize`` take the same tables to a device. Where the mask is False, values stay 0.

    Args:
        data: Loader made without this transform, or its ``data``.
        method: ``mean_std`` gives mean 0 and standard deviation 1; ``q01_q99`` takes the 1st and 99th percentile to -1
            and 1 and cuts off beyond, as OpenVLA does.
        split: Split of the statistics; those of training belong to every split.
        keys: Vectors to normalise.

    Raises:
        ArgumentError: There are no statistics of that split, of summed actions, or of columns that a caller chose.
    """

    def __init__(
        self,
        data: Loader | MixedData,
        *,
        method: Method = "mean_std",
        split: str = "train",
        keys: Sequence[Literal["action", "state"]] = ("action", "state"),
    ) -> None:
        if isinstance(data, Loader):
            data = data.data
        if method not in ("mean_std", "q01_q99"):
            raise ArgumentError(f"method={method!r}; expected 'mean_std' or 'q01_q99'")
        if isinstance(keys, str) or not set(keys) <= {"action", "state"}:
            raise ArgumentError(f"keys={keys!r:.100}; expected a list of 'action', 'state' or both")
        if data.options.metadata != "full":
            raise ArgumentError(f"metadata={data.options.metadata!r} has no action and state; load with 'full'")
        if "action" in keys and data.options.action == "sum":
            raise ArgumentError(
                "actions with action='sum' have no statistics, which are of single steps; take 'window', 'mean' or "
                "'first', or normalise keys=('state',)"
            )
        spec = data.spec
        sizes = {"action": spec.action_size, "state": spec.state_size}
        vectors = {"action": spec.actions, "state": spec.states}
        self.method = method
        self.tables: dict[str, Affine] = {
            key: _tables(data, key, vectors[key], sizes[key], method, split) for key in keys
        }

    @property
    def in_worker(self) -> Any:
        """The same transform without Grain, which workers need not import; a subclass is its own."""
        return AffineMap(self.tables) if type(self) is Normalize else self

    def map(self, element: Batch) -> Batch:
        """Return the batch with normalised vectors, float32 as before."""
        return AffineMap(self.tables).map(element)

    def __repr__(self) -> str:
        return f"Normalize(method={self.method!r}, keys={tuple(self.tables)})"


def _tables(data: MixedData, key: str, vectors: Sequence[Vector], size: int, method: Method, split: str) -> Affine:
    shape = (len(vectors), size)
    affine = Affine(
        scale=np.ones(shape, np.float32),
        shift=np.zeros(shape, np.float32),
        low=np.full(shape, -np.inf, np.float32),
        high=np.full(shape, np.inf, np.float32),
    )
    for member, (dataset, vector) in enumerate(zip(data.datasets, vectors, strict=True)):
        if not vector.size:
            continue
        statistics: Any = dataset.manifest.statistics.get(split, {}).get(key)  # type: ignore[call-overload]
        if statistics is None:
            raise ArgumentError(
                f"dataset {dataset.name}: no statistics of {key} in split {split!r}; splits with statistics: "
                f"{', '.join(dataset.manifest.statistics)}"
            )
        if statistics.names != vector.names:
            raise ArgumentError(
                f"dataset {dataset.name}: {key} is {', '.join(vector.names)}, the manifest has statistics of "
                f"{', '.join(statistics.names)}; normalise chosen columns with a transform of your own"
            )
        for dim, mode in enumerate(vector.modes):
            if method == "mean_std":
                centre, half, bounded = statistics.mean[dim], statistics.std[dim], False
            else:
                low, high = statistics.q01[dim], statistics.q99[dim]
                centre, half = (None, None) if low is None else ((low + high) / 2, (high - low) / 2)
                bounded = True
            if mode == "flag" or centre is None or half is None or half < _EPSILON:
                continue
            affine.scale[member, dim] = 1 / half
            affine.shift[member, dim] = -centre / half
            if bounded:
                affine.low[member, dim], affine.high[member, dim] = -1, 1
    return affine
