"""Normalisation of actions and states by their exact statistics, and the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stream.batch.affine import Affine, AffineMap
from stream.batch.spec import Batch
from stream.batch.vectors import Vector
from stream.format.names import VECTORS
from stream.loader.loader import Loader
from stream.loader.mixed import MixedData
from stream.loader.quiet_grain import grain
from stream.loader.state import first_difference
from stream.loader.statistics import Key, VectorStatistics, vector_statistics
from stream.loader.statistics_file import (
    export_openpi,
    export_openvla,
    import_openpi,
    import_openvla,
    read_statistics,
    write_statistics,
)
from stream.storage.errors import ArgumentError

Method = Literal["mean_std", "q01_q99", "min_max"]
METHODS: dict[str, tuple[str, str]] = {
    "mean_std": ("mean", "std"),
    "q01_q99": ("q01", "q99"),
    "min_max": ("min", "max"),
}
"""Numbers of the statistics that each method takes."""
Per = Literal["dataset", "robot", "mixture"]
PER: tuple[Per, ...] = ("dataset", "robot", "mixture")
_EPSILON = 1e-8


class Normalize(grain.transforms.Map):
    """Normalisation of ``action`` and ``state`` in batches, each row by the statistics of its dataset.

    As a transform of ``make_loader`` it runs in the workers, on numpy arrays. ``stream.torch.Normalize`` and
    ``stream.jax.normalize`` apply the same tables on a device. Values stay 0 where the mask is False. Dimensions that
    do not vary, flags, and those of ``leave`` keep their values.

    Args:
        data: Loader made without this transform, or its ``data``.
        method: ``mean_std`` gives mean 0 and standard deviation 1. ``q01_q99`` maps the 1st and 99th percentile to -1
            and 1, ``min_max`` the least and the largest value.
        per: ``dataset`` takes the statistics of each dataset, ``robot`` those of all datasets of a robot together,
            ``mixture`` those of all steps of all datasets together. The dimensions of these must be the same.
        leave: Dimensions to leave as they are, by name or quantity; ``*`` stands for any text.
        clip: Largest magnitude of a normalised value; by default 1 for ``q01_q99`` and ``min_max``, as OpenVLA does.
            False keeps all values.
        split: TFDS split of the statistics. Use the statistics of training for every split.
        keys: Vectors to normalise.
        statistics: Statistics by key and dataset, from a file; by default those of the data.

    Attributes:
        tables: Linear map of each vector, float32 [datasets, size], by key.
        statistics: Statistics of each vector, by key and dataset.
        fingerprint: Everything that the statistics belong to: data, split, spaces, dimensions, horizon.

    Raises:
        ArgumentError: An argument is wrong; no statistics exist, of this split or of summed actions; or datasets that
            are taken together have other dimensions.
    """

    def __init__(
        self,
        data: Loader | MixedData,
        *,
        method: Method = "mean_std",
        per: Per = "dataset",
        leave: Sequence[str] = ("gripper",),
        clip: float | bool | None = None,
        split: str = "train",
        keys: Sequence[Key] = ("action", "state"),
        statistics: Mapping[str, Mapping[str, VectorStatistics]] | None = None,
    ) -> None:
        data = _data_of(data)
        for name, value, choices in (("method", method, tuple(METHODS)), ("per", per, PER)):
            if value not in choices:
                raise ArgumentError(f"{name}={value!r}; expected one of {', '.join(choices)}")
        if not _is_texts(keys) or not set(keys) <= set(VECTORS):
            raise ArgumentError(f"keys={keys!r:.100}; expected a list of 'action', 'state' or both")
        if not _is_texts(leave):
            raise ArgumentError(f"leave={leave!r:.100}; expected a list of names of dimensions")
        if not isinstance(split, str):
            raise ArgumentError(f"split={split!r:.100}; expected the name of a split")
        _check_options(data, keys)
        self.method, self.per, self.leave, self.split = method, per, tuple(leave), split
        self.clip = _bound(clip, method)
        self.keys = tuple(keys)
        self._names = data.names
        self.fingerprint = fingerprint(data, split)
        self.statistics = statistics or {key: _statistics(data, key, per, split) for key in keys}
        # Mask of the dimensions that are normalised, by key and dataset.
        self._changed: dict[str, dict[str, list[bool]]] = {key: {} for key in keys}
        self.tables: dict[str, Affine] = {key: self._table(data, key) for key in keys}

    @property
    def in_worker(self) -> Any:
        """The same transform without Grain, so that workers need not import it; a subclass stays as it is."""
        return AffineMap(self.tables) if type(self) is Normalize else self

    def map(self, element: Batch) -> Batch:
        """Return the batch with normalised vectors, float32 as before."""
        return AffineMap(self.tables).map(element)

    def __repr__(self) -> str:
        return f"Normalize(method={self.method!r}, per={self.per!r}, keys={self.keys})"

    def check(self, data: MixedData) -> None:
        """Raise ArgumentError if a loader has other data, spaces or dimensions than these statistics; names them."""
        if data.names != self._names:
            raise ArgumentError(
                f"Normalize belongs to the datasets {', '.join(self._names)}, the loader has {', '.join(data.names)}; "
                "make it from a loader of the same mixture"
            )
        _check_options(data, self.keys)
        check_fingerprint(self.fingerprint, fingerprint(data, self.split))

    def normalize(self, values: Any, key: Key = "action", *, dataset: Any) -> Any:
        """Return values as ``map`` gives them, for inference.

        Args:
            values: float [..., dims] of numpy, torch or jax, dims at most the size of the vector.
            key: Vector that the values are of.
            dataset: Name of the dataset, its number, or numbers of the shape of the leading dimensions.
        """
        centre, scale, low, high = self._rows(key, dataset, values)
        return ((values - centre) * scale).clip(low, high)

    def denormalize(self, values: Any, key: Key = "action", *, dataset: Any) -> Any:
        """Return values in the units of the data, the inverse of ``normalize`` for values that it did not clip.

        Arguments are those of ``normalize``.
        """
        centre, scale, _, _ = self._rows(key, dataset, values)
        return values / scale + centre

    def save(self, path: str | Path) -> None:
        """Write statistics, settings and fingerprint as JSON, for ``stream.load_normalize``.

        Raises:
            OSError: The file cannot be written.
        """
        settings = {name: getattr(self, name) for name in ("method", "per", "leave", "clip", "split", "keys")}
        write_statistics(Path(path), self.statistics, settings=settings, fingerprint=self.fingerprint)

    def export(self, path: str | Path, *, format: Literal["openpi", "openvla"]) -> None:
        """Write the statistics as another trainer reads them: ``norm_stats.json`` or ``dataset_statistics.json``.

        Raises:
            ArgumentError: openpi takes one set of statistics, and datasets have their own; take ``per="mixture"``.
            OSError: The file cannot be written.
        """
        if format == "openpi":
            export_openpi(path, self.statistics)
        elif format == "openvla":
            export_openvla(path, self.statistics, masks=self._changed)
        else:
            raise ArgumentError(f"format={format!r}; expected 'openpi' or 'openvla'")

    def _rows(self, key: Key, dataset: Any, values: Any) -> list[Any]:
        if key not in self.tables:
            raise ArgumentError(f"key={key!r}; normalised are {', '.join(self.tables)}")
        if isinstance(dataset, str):
            if dataset not in self._names:
                raise ArgumentError(f"dataset={dataset!r}; expected one of {', '.join(self._names)}")
            dataset = self._names.index(dataset)
        table, shape = self.tables[key], getattr(values, "shape", ())
        if not shape or shape[-1] > table.centre.shape[1]:
            found = f"an array of shape {tuple(shape)}" if shape else f"{values!r:.100}"
            raise ArgumentError(
                f"values: {found}; expected an array [..., dims] of at most {table.centre.shape[1]} dims"
            )
        dims = int(shape[-1])
        rows = np.asarray(dataset)
        if rows.dtype.kind not in "iu" or rows.min(initial=0) < 0 or rows.max(initial=0) >= len(self._names):
            raise ArgumentError(f"dataset={dataset!r:.100}; expected names or numbers below {len(self._names)}")
        rows = rows.reshape(rows.shape + (1,) * (len(shape) - 1 - rows.ndim))
        parts = [part[rows][..., :dims] for part in vars(table).values()]
        # Tensors of torch take no numpy arrays.
        return [values.new_tensor(part) for part in parts] if hasattr(values, "new_tensor") else parts

    def _table(self, data: MixedData, key: Key) -> Affine:
        spec = data.spec
        vectors, size = (spec.actions, spec.action_size) if key == "action" else (spec.states, spec.state_size)
        shape = (len(vectors), size)
        affine = Affine(
            centre=np.zeros(shape, np.float32),
            scale=np.ones(shape, np.float32),
            low=np.full(shape, -np.inf, np.float32),
            high=np.full(shape, np.inf, np.float32),
        )
        for member, (name, vector) in enumerate(zip(data.names, vectors, strict=True)):
            if not vector.size:
                continue
            found = self.statistics.get(key, {}).get(name)
            if found is None:
                raise ArgumentError(f"the statistics have no {key} of {name}")
            centre, half = _centre(found, self.method)
            with np.errstate(invalid="ignore"):
                changes = np.isfinite(centre) & (half > _EPSILON)
            changes &= [not self._leaves(vector, dim) for dim in range(vector.size)]
            dims = np.flatnonzero(changes)
            self._changed[key][name] = changes.tolist()
            affine.scale[member, dims] = 1 / half[dims]
            affine.centre[member, dims] = centre[dims]
            if self.clip:
                affine.low[member, dims], affine.high[member, dims] = -self.clip, self.clip
        return affine

    def _leaves(self, vector: Vector, dim: int) -> bool:
        names = (vector.names[dim], *vector.quantities[dim : dim + 1])
        return vector.kinds[dim] == "flag" or any(fnmatchcase(name, left) for name in names for left in self.leave)


def load_normalize(
    path: str | Path,
    data: Loader | MixedData,
    *,
    format: Literal["stream", "openpi", "openvla"] = "stream",
    **settings: Any,
) -> Normalize:
    """Return the normalisation of a file for a loader.

    Args:
        path: File that ``Normalize.save`` wrote; or openpi's ``norm_stats.json``, OpenVLA's
            ``dataset_statistics.json``, which do not say what they belong to: only the count of dimensions is compared.
        data: Loader of the same data, spaces and horizon, or its ``data``. It may have fewer datasets.
        format: Kind of the file.
        settings: Arguments of ``Normalize``, for a file of another trainer.

    Raises:
        ArgumentError: The file is not one, or belongs to other data; the message names the difference.
    """
    data = _data_of(data)
    if format != "stream":
        if format not in ("openpi", "openvla"):
            raise ArgumentError(f"format={format!r}; expected 'stream', 'openpi' or 'openvla'")
        names: dict[str, dict[str, tuple[str, ...]]] = {
            key: {name: each.names for name, each in zip(data.names, data.spec.vectors(key), strict=True) if each.size}
            for key in VECTORS
        }
        read = import_openpi if format == "openpi" else import_openvla
        statistics = read(path, names, needed=METHODS.get(settings.get("method", "mean_std"), ()))
        return Normalize(data, statistics=statistics, **{"keys": tuple(statistics), **settings})
    if settings:
        raise ArgumentError(f"{', '.join(settings)}: the file has its own settings")
    saved = read_statistics(Path(path))
    here = fingerprint(data, saved.settings["split"])
    there = dict(saved.fingerprint)
    known = there.get("datasets", {})
    # A loader may have some of the datasets.
    there["datasets"] = {name: known[name] for name in here["datasets"] if name in known}
    check_fingerprint(there, here, where=f"{path}: ")
    return Normalize(data, statistics=saved.statistics, **saved.settings)


def _data_of(data: Any) -> MixedData:
    found = data.data if isinstance(data, Loader) else data
    if not isinstance(found, MixedData):
        raise ArgumentError(f"data={data!r:.100}; expected a loader, or its `data`")
    return found


def fingerprint(data: MixedData, split: str) -> dict[str, Any]:
    """Return everything that statistics of a mixture belong to, as a small JSON object."""
    options, spec = data.options, data.spec
    return {
        "split": split,
        "horizon": options.horizon,
        "columns": dict(spec.derived),
        "datasets": {
            name: {
                "data": dataset.manifest.checksum[:16],
                **{key: list(spec.vectors(key)[member].names) for key in VECTORS},
                **{
                    f"{key}_columns": [[column, list(indices)] for column, indices in chosen]
                    for key in VECTORS
                    if (chosen := spec.vectors(key)[member].chosen) is not None
                },
            }
            for member, (name, dataset) in enumerate(zip(data.names, data.datasets, strict=True))
        },
    }


def _is_texts(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(each, str) for each in values)


def _check_options(data: MixedData, keys: Sequence[str]) -> None:
    if data.options.metadata != "full":
        raise ArgumentError(f"metadata={data.options.metadata!r} has no action and state; load with 'full'")
    if "action" in keys and data.options.action == "sum":
        raise ArgumentError(
            "actions with action='sum' have no statistics, as statistics are of single steps; take 'window', 'mean' or "
            "'first', or normalise keys=('state',)"
        )


def check_fingerprint(saved: Mapping[str, Any], here: Mapping[str, Any], *, where: str = "") -> None:
    """Raise ArgumentError if statistics belong to something else; names the first difference."""
    difference = first_difference(saved, here).replace("in the state", "in the statistics")
    if difference:
        raise ArgumentError(
            f"{where}the statistics belong to other data: {difference}. Make Normalize from a loader like this one"
        )


def _statistics(data: MixedData, key: Key, per: Per, split: str) -> dict[str, VectorStatistics]:
    """Return the statistics of each dataset that has the vector, by name."""
    vectors = data.spec.vectors(key)
    groups: dict[Any, list[int]] = {}
    for member, vector in enumerate(vectors):
        if vector.size:
            groups.setdefault(_group(data, member, per), []).append(member)
    found: dict[str, VectorStatistics] = {}
    for members in groups.values():
        first = members[0]
        for member in members[1:]:
            if vectors[member].names != vectors[first].names:
                raise ArgumentError(
                    f"per={per!r}: {key} of {data.names[member]} is {', '.join(vectors[member].names)}, that of "
                    f"{data.names[first]} is {', '.join(vectors[first].names)}; take one {key}_space for all, or "
                    "per='dataset'"
                )
        statistics = vector_statistics(data, key, members, split=split)
        found |= {data.names[member]: statistics for member in members}
    return found


def _group(data: MixedData, member: int, per: Per) -> Any:
    if per == "robot":
        # A dataset whose episodes name several robots is a group of its own.
        return data.datasets[member].manifest.spec.get("robot") or member
    return member if per == "dataset" else ""


def _centre(found: VectorStatistics, method: Method) -> tuple[np.ndarray, np.ndarray]:
    """Return the values that become 0, and half of the range that becomes -1 to 1, float64 [dims]."""
    first, second = (getattr(found, name) for name in METHODS[method])
    return (first, second) if method == "mean_std" else ((first + second) / 2, (second - first) / 2)


def _bound(clip: float | bool | None, method: Method) -> float:
    """Return the largest magnitude, 0 for none."""
    if clip is None or clip is True:
        return 0.0 if method == "mean_std" and clip is None else 1.0
    if not isinstance(clip, int | float) or not clip >= 0:
        raise ArgumentError(f"clip={clip!r}; expected a number above 0, False, or None")
    return float(clip)
