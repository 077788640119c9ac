"""Normalisation of actions and states by their exact statistics, and the way back. Files need only numpy."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from stream.base.errors import ArgumentError, closest
from stream.batch.spec import Batch, BatchSpec
from stream.batch.vectors import DatasetVector
from stream.format.names import VECTORS, VectorName
from stream.sample.relative import RelativeVector
from stream.sample.slots import Slots
from stream.statistics.affine import Affine, AffineMap, in_layout
from stream.statistics.chunks import Tails
from stream.statistics.files import decode_statistics, encode_statistics, write_json
from stream.statistics.groups import Per
from stream.statistics.methods import METHODS, MethodName
from stream.statistics.mixture import Mixture
from stream.statistics.trainer_files import FILES, export_file
from stream.statistics.transformed import TransformedVectors
from stream.statistics.vectors import (
    Over,
    Statistics,
    VectorStatistics,
    counts_chunks,
    measure,
    used_data,
    used_splits,
)

if TYPE_CHECKING:
    from typing import Self

SETTINGS = ("method", "per", "over", "split", "clip", "keys", "tails")


class Normalize:
    """Normalisation of ``action`` and ``state`` in batches, each row by the statistics of its dataset.

    ``make_loader(..., normalize="q01_q99")`` makes one as the last transform, which runs in the workers, on numpy
    arrays. ``stream.torch.Normalize`` and ``stream.jax.normalize`` apply the same tables on a device. Values stay 0
    where the mask is False.

    Args:
        data: Loader, or its ``data``.
        method: ``mean_std`` gives mean 0 and standard deviation 1. ``q01_q99`` maps the 1st and 99th percentile to -1
            and 1, ``min_max`` the least and the largest value. These keep the values of flags and of dimensions that do
            not vary. ``openpi_pi0``, ``openpi_pi05`` (also pi0-FAST), ``openvla``, ``octo``, ``gr00t`` (least and
            largest value) and ``umi`` (the same without clipping) are the formulas of these trainers, for all
            dimensions.
        per: ``dataset`` takes the statistics of each dataset. ``robot`` takes those of all datasets of a robot
            together, each step once; ``control`` those of a robot and a kind of control, such as joint positions, joint
            velocities, poses or changes of poses. A dataset without a robot's name is a separate group. ``mixture``
            takes those of all datasets together, by their weights or those of the last phase. Datasets that are taken
            together must have the same dimensions, or a layout with named slots, whose numbers are then taken together.
        over: ``dataset`` counts every converted step of ``split``, whatever the loader leaves out. ``samples`` counts
            the step t of each sample of the loader's first epoch, with its split and choices. Make
            it from the loader of training.
        leave: Dimensions that keep their values, by name or quantity; ``*`` matches any text. By default the gripper;
            with the methods of OpenVLA and Octo only the gripper of the action, rotations with UMI's, and none with
            those of openpi and GR00T.
        clip: Largest magnitude of a normalised value; by default 1 for ``q01_q99``, ``min_max``, ``openvla`` and
            ``gr00t``. False keeps all values.
        split: TFDS split of ``over="dataset"``. Use the statistics of training for every split.
        keys: Vectors to normalise, by default those that a dataset has.
        tails: Steps that count in the statistics: ``real``, those of all chunks of a relative vector that are inside
            the episode, and of any other vector each step of the data once; ``complete``, those of complete chunks;
            ``repeat``, all, with the last step of the chunk in the episode repeated.
        statistics: ``stored`` are those of the data. ``transformed`` are those of the loader's samples after
            ``transforms``, which run over batches without frames. ``make_loader(normalize={...})`` gives the transforms
            of the loader.
        transforms: Transforms for ``transformed``.

    Attributes:
        names: Names of the datasets.
        statistics: Statistics of each vector, by key and dataset.
        conversions: Conversion of each vector that is relative or has another form, by key and dataset.
        slots: Slots of each vector in a layout, by key and dataset.
        is_bound: True if rows of the tables are the datasets of a loader, False if they are those of a file.

    Raises:
        ArgumentError: An argument is wrong; no statistics exist, of this split or of summed actions; or datasets that
            are taken together have other dimensions.
    """

    is_normalization: ClassVar[bool] = True
    """True, so that states are dropped after it."""
    conversions: dict[VectorName, dict[str, RelativeVector]]
    slots: dict[VectorName, dict[str, Slots]]

    def __init__(
        self,
        data: Any,
        *,
        method: MethodName = "mean_std",
        per: Per = "dataset",
        over: Over = "dataset",
        leave: Sequence[str] | None = None,
        clip: float | bool | None = None,
        split: str = "train",
        keys: Sequence[VectorName] | None = None,
        tails: Tails = "real",
        statistics: Literal["stored", "transformed"] = "stored",
        transforms: Sequence[Any] = (),
    ) -> None:
        data = data_of(data)
        if statistics not in ("stored", "transformed"):
            raise ArgumentError(f"statistics={statistics!r:.100}; expected 'stored' or 'transformed'")
        transformed = TransformedVectors(data, tuple(transforms)) if statistics == "transformed" else None
        choices = (("method", method, METHODS), ("per", per, get_args(Per)), ("over", over, get_args(Over)))
        choices = (*choices, ("tails", tails, get_args(Tails)))  # type: ignore[assignment]
        for argument, value, available in choices:
            if not isinstance(value, str) or value not in available:
                hint = "; quantiles are 'q01_q99'" if "quantile" in str(value) else ""
                raise ArgumentError(f"{argument}={value!r:.100}; expected one of {', '.join(available)}{hint}")
        if keys is not None and (not _is_texts(keys) or not set(keys) <= set(VECTORS)):
            raise ArgumentError(f"keys={keys!r:.100}; expected a list of 'action', 'state' or both")
        if leave is not None and not _is_texts(leave):
            raise ArgumentError(f"leave={leave!r:.100}; expected a list of names of dimensions")
        if not isinstance(split, str):
            raise ArgumentError(f"split={split!r:.100}; expected the name of a split")
        keys = tuple(dict.fromkeys(data.spec.vector_names if keys is None else keys))
        _check_vectors(data, keys)
        numbers: dict[VectorName, dict[str, VectorStatistics]] = {}
        for vector_key in keys:
            by_dataset = numbers[vector_key] = measure(
                data, vector_key, per=per, over=over, split=split, tails=tails, transformed=transformed
            )
            kept_patterns = METHODS[method].kept_patterns(vector_key) if leave is None else leave
            for member, (name, vector) in enumerate(zip(data.names, data.spec.vectors(vector_key), strict=True)):
                if vector.size:
                    mask = METHODS[method].mask(
                        by_dataset[name],
                        kept_dims=np.array([_is_left(vector, dim, kept_patterns) for dim in range(vector.size)]),
                        flag_dims=np.array(vector.kinds) == "flag",
                    )
                    splits = used_splits(data, member, over=over, split=split)
                    has_steps = transformed is None and counts_chunks(data, vector_key, tails)
                    source = used_data(data, vector_key, member, splits, has_steps=has_steps)
                    by_dataset[name] = replace(by_dataset[name], mask=mask, source=source)
        clip = _bound(clip, method)
        self._set(numbers, method=method, per=per, over=over, split=split, clip=clip, keys=keys, tails=tails)
        self._convert(data.spec)
        self._fill(data.names)
        self.is_bound = True

    def _set(self, statistics: Statistics, **settings: Any) -> None:
        self.statistics, self.is_bound = statistics, False
        self.method, self.per, self.over, self.split, self.clip, self.keys, self.tails = (
            settings[name] for name in SETTINGS
        )
        self.conversions, self.slots = {}, {}
        self._fill(dict.fromkeys(name for by_dataset in statistics.values() for name in by_dataset))

    def _convert(self, spec: BatchSpec) -> None:
        """Take the conversions and the slots of the vectors that are normalised."""
        for key in self.keys:
            if key in spec.relative:
                self.conversions[key] = dict(zip(spec.datasets, spec.relative[key], strict=True))
        self._take_slots(spec)

    def _take_slots(self, spec: BatchSpec) -> None:
        self.slots = {
            key: dict(zip(spec.datasets, spec.slots[key], strict=True)) for key in self.keys if key in spec.slots
        }

    def _fill(self, dataset_names: Iterable[str]) -> None:
        """Make the tables of some datasets, in this order."""
        self.names = tuple(dataset_names)
        self._tables: dict[str, Affine] = {}
        for vector_key in self.keys:
            by_dataset = self.statistics[vector_key]
            shapes = [by_dataset[name].mean.shape for name in self.names if name in by_dataset]
            largest = [max(sizes) for sizes in zip(*shapes, strict=True)] or [0]
            slots = self.slots.get(vector_key, {})
            largest[-1:] = [max((slot.size for slot in slots.values()), default=largest[-1])]
            table = self._tables[vector_key] = Affine.identity(len(self.names), *largest)
            for dataset_row, dataset_name in enumerate(self.names):
                if dataset_name in by_dataset:
                    statistics = by_dataset[dataset_name]
                    METHODS[self.method].fill(
                        table, dataset_row, statistics, clip=self.clip, slots=slots.get(dataset_name)
                    )

    @property
    def tables(self) -> dict[str, Affine]:
        """Linear map of each vector, float64 [datasets, size], by key; row d belongs to ``batch["dataset"] == d``.

        Raises:
            ArgumentError: The normalisation is from a file, and no loader gave the numbers of its datasets.
        """
        if not self.is_bound:
            raise ArgumentError(
                "a normalisation of a file without a loader has no tables of batches; take load_normalize(path, loader)"
            )
        return self._tables

    @property
    def in_worker(self) -> Any:
        """The same transform without its statistics, for workers; a subclass is not changed."""
        return AffineMap(self.tables) if type(self) is Normalize else self

    def map(self, element: Batch) -> Batch:
        """Return the batch with normalised vectors, float32 as before."""
        return AffineMap(self.tables).map(element)

    def __repr__(self) -> str:
        return f"Normalize(method={self.method!r}, per={self.per!r}, over={self.over!r}, keys={self.keys})"

    def bind(self, data: Any, *, context: str = "") -> Self:
        """Return the same normalisation with tables for the datasets of a loader.

        Args:
            data: Loader, or its ``data``. It may have fewer datasets, other windows and other samples.
            context: Beginning of messages.

        Raises:
            ArgumentError: The loader has a dataset without statistics, or the statistics depend on other data; the
                message names the difference.
        """
        data = data_of(data)
        _check_vectors(data, self.keys)
        for vector_key in self.keys:
            for member, (name, vector) in enumerate(zip(data.names, data.spec.vectors(vector_key), strict=True)):
                if not vector.size:
                    continue
                by_dataset = self.statistics[vector_key]
                if name not in by_dataset:
                    hint = closest(name, by_dataset, noun="datasets")
                    raise ArgumentError(f"{context}no statistics of the {vector_key} of {name}; {hint}")
                saved = by_dataset[name].source
                splits = saved.get("content", ())
                current = used_data(data, vector_key, member, splits, has_steps="steps" in saved)
                # Statistics of absolute values have no conversion; files of trainers do not name their data.
                for field in (*saved, *(("conversion",) if "content" in saved else ())):
                    if saved.get(field) != current.get(field):
                        raise ArgumentError(
                            f"{context}the statistics belong to other data: {field} of the {vector_key} of {name} are "
                            f"{saved.get(field)!r:.150} in the statistics and {current.get(field)!r:.150} here. Make "
                            "Normalize from a loader like this one"
                        )
        bound = copy.copy(self)
        bound._take_slots(data.spec)
        bound._fill(data.names)
        bound.is_bound = True
        return bound

    def normalize(self, values: Any, key: VectorName | None = None, *, dataset: Any) -> Any:
        """Return values as ``map`` gives them, for inference; in a layout, they are put into it.

        Args:
            values: float [..., dims] of numpy, torch or jax, with at most as many dims as the vector; for a layout all
                dims of the dataset.
            key: Vector of the values; by default the state, or the action if no state is normalised.
            dataset: Name of the dataset, its number, or numbers of the shape of the leading dimensions. In a layout a
                name or a number.
        """
        key = key or ("state" if "state" in self.keys else "action")
        return self._apply(self._tables, values, key, dataset, direction="put")

    def denormalize(self, values: Any, key: VectorName = "action", *, dataset: Any, state: Any = None) -> Any:
        """Return values in the units of the data, the inverse of ``normalize`` for values that it did not clip.

        A relative action becomes an absolute one: the command for the robot. Of values in a layout, the dimensions of
        the dataset remain; those without a slot are NaN.

        Args:
            values: As for ``normalize``; of a relative action [..., W, dims], in a layout all its numbers.
            key: Vector of the values.
            dataset: As for ``normalize``; of a relative action a name or a number.
            state: State of the observation that the action was predicted from, as the dataset stores it,
                float [..., dims]; for a relative action.

        Raises:
            ArgumentError: The state of a relative action is missing, or another argument is wrong.
        """
        tables = {key: table.inverse() for key, table in self._tables.items()}
        absolute = self._apply(tables, values, key, dataset, direction="take")
        if key not in self.conversions:
            return absolute
        if not isinstance(dataset, str) and np.ndim(dataset):
            raise ArgumentError(
                f"dataset={dataset!r:.100}: a relative action is of one dataset; give its name or number"
            )
        name = dataset if isinstance(dataset, str) else self.names[int(dataset)]
        conversion = self.conversions[key][name]
        numbers = np.asarray(absolute, np.float64)[..., : len(conversion.names)]
        return conversion.backward(numbers, None if state is None else np.asarray(state)).astype(np.float32)

    def save(self, path: str | Path) -> None:
        """Write statistics, settings and fingerprint as JSON, for ``stream.load_normalize``."""
        write_json(path, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return statistics and settings as JSON."""
        content = encode_statistics(self.statistics, {name: getattr(self, name) for name in SETTINGS})
        if self.conversions:
            content["conversions"] = {
                key: {name: conversion.to_json() for name, conversion in by_dataset.items()}
                for key, by_dataset in self.conversions.items()
            }
        if self.slots:
            content["slots"] = {
                key: {name: slots.to_json() for name, slots in by_dataset.items()}
                for key, by_dataset in self.slots.items()
            }
        return content

    @classmethod
    def from_json(cls, content: Any, *, context: str | Path) -> Self:
        """Return the normalisation of ``to_json``, without tables; raise ArgumentError if it is something else."""
        statistics, settings = decode_statistics(content, context=context)
        normalize = cls.__new__(cls)
        try:
            settings |= {"keys": tuple(statistics), "clip": float(settings["clip"])}
            normalize._set(statistics, **settings)
            for key, by_dataset in content.get("conversions", {}).items():
                normalize.conversions[key] = {
                    name: RelativeVector.from_json(value) for name, value in by_dataset.items()
                }
            for key, by_dataset in content.get("slots", {}).items():
                normalize.slots[key] = {name: Slots.from_json(value) for name, value in by_dataset.items()}
            normalize._fill(normalize.names)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ArgumentError(f"{context}: field missing or of the wrong type ({error!r:.100})") from None
        return normalize

    def describe(self) -> str:
        """Return method, settings and a hash of the tables as one text; equal texts normalise alike."""
        table_hash = hashlib.sha256()
        for key in self.keys:
            for column in vars(self._tables[key]).values():
                table_hash.update(column.tobytes())
        description = type(self).__name__ if type(self) is not Normalize else self.method
        vectors = " and ".join(self.keys)
        return f"{description} of {vectors}, per={self.per}, over={self.over}, statistics {table_hash.hexdigest()[:12]}"

    def export(self, path: str | Path, *, format: Literal["openpi", "openvla", "octo"]) -> None:
        """Write the statistics as another trainer reads them: ``norm_stats.json`` or ``dataset_statistics.json``.

        The trainer's code takes values of this normalisation back, with deviations for ``mean_std`` (openpi's pi0,
        Octo) and with quantiles for ``q01_q99`` and ``min_max`` (openpi's pi0.5, OpenVLA). Dimensions that keep their
        values keep them there.

        Raises:
            ArgumentError: openpi takes one set of statistics, and each dataset has another; take ``per="mixture"``.
            OSError: The file cannot be written.
        """
        if format not in FILES:
            raise ArgumentError(f"format={format!r:.100}; expected one of {', '.join(FILES)}")
        export_file(path, self.statistics, method=METHODS[self.method], trainer=FILES[format])

    def _slots_of(self, key: VectorName, number: Any) -> Slots | None:
        """Return the slots of the dataset of a number, None if the vector is in no layout."""
        if key not in self.slots:
            return None
        is_number = np.ndim(number) == 0 and np.asarray(number).dtype.kind in "iu"
        if not is_number or not 0 <= int(number) < len(self.names):
            raise ArgumentError(
                f"dataset={number!r:.100}: the {key} is in a layout, and datasets have other dimensions; expected a "
                f"name or a number below {len(self.names)}"
            )
        return self.slots[key].get(self.names[int(number)])

    def _apply(
        self,
        tables: Mapping[str, Affine],
        values: Any,
        key: VectorName,
        dataset: Any,
        *,
        direction: Literal["put", "take"],
    ) -> Any:
        if key not in tables:
            raise ArgumentError(f"key={key!r:.100}; normalised are {', '.join(tables)}")
        if isinstance(dataset, str):
            if dataset not in self.names:
                raise ArgumentError(f"dataset={dataset!r}; expected one of {', '.join(self.names)}")
            dataset = self.names.index(dataset)
        table, shape = tables[key], tuple(getattr(values, "shape", ()))
        num_dims = table.centre.shape[-1]
        if (slots := self._slots_of(key, dataset)) is not None:
            table, values, num_dims = in_layout(table, values, slots, direction=direction)
            shape = tuple(values.shape)
        if not shape or shape[-1] > num_dims or "float" not in str(values.dtype):
            found_value = f"an array of shape {shape} and {values.dtype}" if shape else f"{values!r:.100}"
            raise ArgumentError(
                f"values: {found_value}; expected an array [..., dims] of floats, of at most {num_dims} dims"
            )
        table_rows = np.asarray(dataset)
        if (
            table_rows.dtype.kind not in "iu"
            or table_rows.min(initial=0) < 0
            or table_rows.max(initial=0) >= len(self.names)
        ):
            raise ArgumentError(f"dataset={dataset!r:.100}; expected names or numbers below {len(self.names)}")
        num_own = table.centre.ndim - 1
        table_rows = table_rows.reshape(table_rows.shape + (1,) * (len(shape) - num_own - table_rows.ndim))
        part = tuple(map(slice, shape[-num_own:]))
        columns = [column[table_rows][(..., *part)] for column in vars(table).values()]
        if hasattr(values, "new_tensor"):  # tensors of torch take no numpy arrays
            return Affine(*map(values.new_tensor, columns)).apply(values)
        return Affine(*columns).apply(values).astype(values.dtype)


def data_of(data: Any) -> Any:
    """Return the data of a loader."""
    loader_data = getattr(data, "data", data)
    if not isinstance(getattr(loader_data, "spec", None), BatchSpec):
        raise ArgumentError(f"data={data!r:.100}; expected a loader, or its `data`")
    return loader_data


def _is_left(vector: DatasetVector, dim: int, kept_patterns: Sequence[str]) -> bool:
    names = (vector.names[dim], *vector.quantities[dim : dim + 1])
    return any(fnmatchcase(dim_name, pattern) for dim_name in names for pattern in kept_patterns)


def _is_texts(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(text, str) for text in values)


def _check_vectors(data: Mixture, keys: Sequence[str]) -> None:
    """Raise ArgumentError if a loader's batches have no such vectors, or sums, which have no statistics."""
    if absent := [key for key in keys if not data.spec.vectors(key)]:  # type: ignore[arg-type]
        raise ArgumentError(f"keys={tuple(keys)}: batches have no {absent[0]}, as make_loader has {absent[0]}=None")
    if "action" in keys and data.spec.reduction == "sum":
        raise ArgumentError(
            "actions of Vector(reduce='sum') have no statistics, as statistics are of single steps; take reduce=None, "
            "'mean' or 'first', or normalise keys=('state',)"
        )


def _bound(clip_argument: float | bool | None, method: str) -> float:
    """Return the largest magnitude, 0 for none."""
    if clip_argument is None or clip_argument is True:
        return METHODS[method].clip if clip_argument is None else 1.0
    if not isinstance(clip_argument, int | float) or not clip_argument >= 0:
        raise ArgumentError(f"clip={clip_argument!r}; expected a number above 0, False, or None")
    return float(clip_argument)
