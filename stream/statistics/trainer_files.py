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


def export_file(json_path: str | Path, statistics: Statistics, *, method: Method, trainer: TrainerFile) -> None:
    """Write statistics with which the trainer's code restores a normalised value exactly.

    Raises:
        ArgumentError: Datasets have different statistics, and the file has one set; take ``per="mixture"``.
    """
    content: dict[str, Any] = {}
    for vector_name, by_dataset in statistics.items():
        field = trainer.vectors[vector_name]
        for dataset_name, vector_statistics in by_dataset.items():
            numbers = _numbers(vector_statistics, method, trainer)
            if trainer.by_dataset:
                dataset_entry = content.setdefault(dataset_name, {"num_transitions": vector_statistics.count})
                dataset_entry[field] = {**numbers, "mask": vector_statistics.mask.tolist()}
            elif content.setdefault(field, numbers) != numbers:
                raise ArgumentError(
                    f"openpi takes one set of statistics of {vector_name}, here are those of {', '.join(by_dataset)}; "
                    "take per='mixture', or load one dataset"
                )
    write_json(json_path, content if trainer.by_dataset else {"norm_stats": content})


def _numbers(statistics: VectorStatistics, method: Method, trainer: TrainerFile) -> dict[str, Any]:
    first_name, second_name = ("q01", "q99") if method.is_range else ("mean", "std")
    numbers_by_name = {name: getattr(statistics, name) for name in NUMBERS}
    # The trainer adds its epsilon to the difference, so the file has the number without it.
    first, second = method.pair(statistics)
    numbers_by_name |= {first_name: first, second_name: second + (method.epsilon - trainer.epsilon)}
    # A dimension that keeps its values has statistics with which the trainer keeps them too.
    kept = {"mean": 0, "std": 1 - trainer.epsilon, "q01": -1, "q99": 1 - trainer.epsilon, "min": -1, "max": 1}
    return {
        trainer.numbers.get(name, name): plain_numbers(np.where(statistics.mask, values, kept[name]))
        for name, values in numbers_by_name.items()
        if trainer.by_dataset or name not in ("min", "max")
    }


def import_file(json_path: str | Path, names: Names, *, method: str) -> dict[VectorName, dict[str, VectorStatistics]]:
    """Return the statistics of a trainer's file for each dataset.

    Raises:
        ArgumentError: It is not such a file, lacks a dataset or a number, or has another count of dimensions.
    """
    trainer, needed = FILES[method.partition("_")[0]], METHODS[method].numbers
    content = read_json(json_path)
    if not trainer.by_dataset:
        content = dict.fromkeys(set().union(*names.values()), content.get("norm_stats"))
    statistics: dict[VectorName, dict[str, VectorStatistics]] = {}
    for vector_name, names_by_dataset in names.items():
        field = trainer.vectors[vector_name]
        for dataset_name, dim_names in names_by_dataset.items():
            context = f"{json_path}: {field} of {dataset_name}"
            if not isinstance(dataset_entry := content.get(dataset_name), dict):
                raise ArgumentError(f"{context}: none in {trainer.title}; datasets there: {', '.join(content)}")
            if (numbers := dataset_entry.get(field)) is None:
                continue
            if not isinstance(numbers, dict):
                raise ArgumentError(f"{context}: {numbers!r:.100}; expected a set of statistics")
            numbers |= {name: numbers.get(trainer_name) for name, trainer_name in trainer.numbers.items()}
            if missing := [name for name in needed if numbers.get(name) is None]:
                raise ArgumentError(f"{context}: no {' and no '.join(missing)}, which {method} takes")
            statistics.setdefault(vector_name, {})[dataset_name] = from_json(numbers, dim_names, context)
    for vector_name, by_dataset in statistics.items():
        if lacking := names[vector_name].keys() - by_dataset.keys():
            field, complete = trainer.vectors[vector_name], next(iter(by_dataset))
            raise ArgumentError(f"{json_path}: no {field} of {', '.join(lacking)}, as {complete} has")
    if not statistics:
        raise ArgumentError(f"{json_path}: not {trainer.title}: it has no {' and no '.join(trainer.vectors.values())}")
    return statistics
