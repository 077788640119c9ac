"""Normalisation of actions and states by the statistics of each dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from stream.batch.affine import Affine, AffineMap
from stream.batch.spec import Batch
from stream.loader.loader import Loader
from stream.loader.mixed import MixedData
from stream.loader.quiet_grain import grain
from stream.storage.errors import ArgumentError

Method = Literal["mean_std", "q01_q99"]
_EPSILON = 1e-8


class Normalize(grain.transforms.Map):
    """Normalisation of ``action`` and ``state`` in batches, each row by the statistics of its dataset.

    As a transform of ``make_loader`` it runs in the workers, on numpy arrays. ``stream.torch.Normalize`` and
    ``stream.jax.normalize`` apply the same tables on a device. Values stay 0 where the mask is False. Dimensions that
    do not vary, and flags, keep their values.

    Args:
        data: Loader made without this transform, or its ``data``.
        method: ``mean_std`` gives mean 0 and standard deviation 1. ``q01_q99`` maps the 1st and 99th percentile to -1
            and 1, and clips values beyond, as OpenVLA does.
        split: Split of the statistics. Use the statistics of training for every split.
        keys: Vectors to normalise.

    Attributes:
        tables: Linear map of each vector, float32 [datasets, size], by key.

    Raises:
        ArgumentError: An argument is wrong, or no statistics exist: of this split, of summed actions, or of chosen
            columns.
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
                "actions with action='sum' have no statistics, as statistics are of single steps; take 'window', "
                "'mean' or 'first', or normalise keys=('state',)"
            )
        self.method = method
        self.tables: dict[str, Affine] = {key: _table(data, key, method, split) for key in keys}

    @property
    def in_worker(self) -> Any:
        """The same transform without Grain, so that workers need not import it; a subclass stays as it is."""
        return AffineMap(self.tables) if type(self) is Normalize else self

    def map(self, element: Batch) -> Batch:
        """Return the batch with normalised vectors, float32 as before."""
        return AffineMap(self.tables).map(element)

    def __repr__(self) -> str:
        return f"Normalize(method={self.method!r}, keys={tuple(self.tables)})"


def _table(data: MixedData, key: str, method: Method, split: str) -> Affine:
    spec = data.spec
    vectors, size = (spec.actions, spec.action_size) if key == "action" else (spec.states, spec.state_size)
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
            low, high = statistics.q01[dim], statistics.q99[dim]
            if method == "mean_std":
                centre, half = statistics.mean[dim], statistics.std[dim]
            else:
                centre, half = (None, None) if low is None else ((low + high) / 2, (high - low) / 2)
            if mode == "flag" or centre is None or half is None or half < _EPSILON:
                continue
            affine.scale[member, dim] = 1 / half
            affine.shift[member, dim] = -centre / half
            if method == "q01_q99":
                affine.low[member, dim], affine.high[member, dim] = -1, 1
    return affine
