"""Files of statistics of other trainers: openpi's ``norm_stats.json``, ``dataset_statistics.json`` of OpenVLA and Octo.

Sources: openpi, ``src/openpi/shared/normalize.py``; OpenVLA, ``prismatic/vla/datasets/rlds/utils/data_utils.py``; Octo,
``octo/data/utils/data_utils.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stream.base.errors import ArgumentError
from stream.format.names import VectorName
from stream.format.statistics import NUMBERS
from stream.statistics.files import from_json, plain_numbers, read_json, write_json
from stream.statistics.methods import METHODS, Method
from stream.statistics.vectors import Statistics, VectorStatistics

Names = Mapping[VectorName, Mapping[str, tuple[str, ...]]]
"""Names of dimensions by vector and dataset."""


@dataclass(frozen=True)
class TrainerFile:
    """A kind of file.

    Attributes:
        title: Trainer and name of the file.
        epsilon: Number that the trainer adds to its divisors.
        vectors: Name of each vector.
        by_dataset: True if the file has statistics and masks of each dataset, False for one set for all data.
        numbers: Names of numbers that differ from ours.
    """

    title: str
    epsilon: float
    vectors: Mapping[VectorName, str]
    by_dataset: bool = True
    numbers: Mapping[str, str] = field(default_factory=dict)


_PROPRIO: dict[VectorName, str] = {"action": "action", "state": "proprio"}
FILES = {
    "openpi": TrainerFile("openpi's norm_stats.json", 1e-6, {"action": "actions", "state": "state"}, by_dataset=False),
    "openvla": TrainerFile("OpenVLA's dataset_statistics.json", 1e-8, _PROPRIO),
    "octo": TrainerFile("Octo's dataset_statistics.json", 1e-8, _PROPRIO, numbers={"q01": "p01", "q99": "p99"}),
}


def export_file(path: str | Path, statistics: Statistics, *, method: Method, kind: TrainerFile) -> None:
    """Write statistics with which the trainer's own code takes a normalised value back exactly.

    Args:
        path: File.
        statistics: Statistics.
        method: Method of the normalisation.
        kind: Kind of the file.

    Raises:
        ArgumentError: Datasets have statistics of their own, and the file has one set; take ``per="mixture"``.
    """
    content: dict[str, Any] = {}
    for key, each in statistics.items():
        sets = {name: _numbers(one, method, kind) for name, one in each.items()}
        for name, one in sets.items():
            if kind.by_dataset:
                entry = content.setdefault(name, {"num_transitions": each[name].count})
                entry[kind.vectors[key]] = {**one, "mask": each[name].mask.tolist()}
            elif content.setdefault(kind.vectors[key], one) != one:
                raise ArgumentError(
                    f"openpi takes one set of statistics of {key}, here are those of {', '.join(sets)}; take "
                    "per='mixture', or load one dataset"
                )
    write_json(path, content if kind.by_dataset else {"norm_stats": content})


def _numbers(found: VectorStatistics, method: Method, kind: TrainerFile) -> dict[str, Any]:
    low, high = ("q01", "q99") if method.is_range else ("mean", "std")
    shown = {name: getattr(found, name) for name in NUMBERS}
    # The trainer adds its epsilon to the difference, so the file has the number without it.
    first, second = method.pair(found)
    shown |= {low: first, high: second + (method.epsilon - kind.epsilon)}
    kept = {"mean": 0, "std": 1 - kind.epsilon, "q01": -1, "q99": 1 - kind.epsilon, "min": -1, "max": 1}
    return {
        kind.numbers.get(name, name): plain_numbers(np.where(found.mask, values, kept[name]))
        for name, values in shown.items()
        if kind.by_dataset or name not in ("min", "max")
    }


def import_file(path: str | Path, names: Names, *, method: str) -> dict[VectorName, dict[str, VectorStatistics]]:
    """Return the statistics of a trainer's file for each dataset.

    Args:
        path: File.
        names: Names of the dimensions of the data.
        method: Method of the trainer.

    Raises:
        ArgumentError: The file is not one, lacks a dataset or a number, or has another count of dimensions.
    """
    kind, needed = FILES[method.partition("_")[0]], METHODS[method].numbers
    content = read_json(path)
    if not kind.by_dataset:
        content = dict.fromkeys({name for each in names.values() for name in each}, content.get("norm_stats"))
    statistics: dict[VectorName, dict[str, VectorStatistics]] = {}
    for key, each in names.items():
        for dataset, dims in each.items():
            where = f"{path}: {kind.vectors[key]} of {dataset}"
            if not isinstance(entry := content.get(dataset), dict):
                raise ArgumentError(f"{where}: none in {kind.title}; datasets there: {', '.join(content)}")
            if (own := entry.get(kind.vectors[key])) is None:
                continue
            if not isinstance(own, dict):
                raise ArgumentError(f"{where}: {own!r:.100}; expected a set of statistics")
            own |= {ours: own.get(theirs) for ours, theirs in kind.numbers.items()}
            if missing := [name for name in needed if own.get(name) is None]:
                raise ArgumentError(f"{where}: no {' and no '.join(missing)}, which {method} takes")
            statistics.setdefault(key, {})[dataset] = from_json(own, dims, where)
    for key, found in statistics.items():
        if lacking := names[key].keys() - found.keys():
            raise ArgumentError(f"{path}: no {kind.vectors[key]} of {', '.join(lacking)}, as {next(iter(found))} has")
    if not statistics:
        raise ArgumentError(f"{path}: not {kind.title}: it has no {' and no '.join(kind.vectors.values())}")
    return statistics
