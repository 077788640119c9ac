"""Files of statistics: our own JSON, openpi's ``norm_stats.json`` and OpenVLA's ``dataset_statistics.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stream.format.statistics import NUMBERS
from stream.loader.state import write_json
from stream.loader.statistics import VectorStatistics
from stream.storage.errors import ArgumentError
from stream.storage.files import FileTooLarge, read_whole

_MAX_BYTES = 50_000_000
_FORMAT, _VERSION = "stream-normalize", 1
_SETTINGS = ("method", "per", "leave", "clip", "split", "keys")
_OPENPI = {"action": "actions", "state": "state"}
_OPENVLA = {"action": "action", "state": "proprio"}

Names = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Names of dimensions by key (``action``, ``state``) and dataset."""
Statistics = Mapping[str, Mapping[str, VectorStatistics]]
"""Statistics by key (``action``, ``state``) and dataset."""


class SavedStatistics(NamedTuple):
    """Content of a file of ``Normalize.save``."""

    settings: dict[str, Any]
    fingerprint: dict[str, Any]
    statistics: dict[str, dict[str, VectorStatistics]]


def write_statistics(
    path: Path, statistics: Statistics, *, settings: Mapping[str, Any], fingerprint: Mapping[str, Any]
) -> None:
    """Write statistics with what they belong to, atomically."""
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "settings": dict(settings),
        "fingerprint": dict(fingerprint),
        "statistics": {
            key: {name: _to_json(found) for name, found in each.items()} for key, each in statistics.items()
        },
    }
    write_json(path, content)


def read_statistics(path: Path) -> SavedStatistics:
    """Read a file of ``Normalize.save``; raises ArgumentError if it is missing or something else."""
    content = _read(path)
    if content.get("format") != _FORMAT or content.get("version") != _VERSION:
        raise ArgumentError(f"{path}: not a file of Normalize.save of version {_VERSION}")
    try:
        settings = {name: content["settings"][name] for name in _SETTINGS}
        statistics = {
            key: {name: _from_json(found) for name, found in each.items()}
            for key, each in content["statistics"].items()
        }
        return SavedStatistics(settings, dict(content["fingerprint"]), statistics)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"{path}: field missing or of the wrong type ({error!r:.100})") from None


def export_openpi(path: str | Path, statistics: Statistics) -> None:
    """Write openpi's ``norm_stats.json``: one set for all data, so the statistics of all datasets must be the same.

    Source of the format: openpi, src/openpi/shared/normalize.py.

    Raises:
        ArgumentError: Datasets have statistics of their own; take ``per="mixture"``.
    """
    found: dict[str, Any] = {}
    for key, each in statistics.items():
        sets = {id(one): one for one in each.values()}
        if len(sets) != 1:
            raise ArgumentError(
                f"openpi takes one set of statistics of {key}, here are {len(sets)}; take per='mixture', or load one "
                "dataset"
            )
        (one,) = sets.values()
        found[_OPENPI[key]] = {name: _numbers(getattr(one, name)) for name in ("mean", "std", "q01", "q99")}
    write_json(Path(path), {"norm_stats": found})


def export_openvla(path: str | Path, statistics: Statistics, *, masks: Mapping[str, Mapping[str, list[bool]]]) -> None:
    """Write OpenVLA's ``dataset_statistics.json``.

    Source of the format: OpenVLA, prismatic/vla/datasets/rlds/utils/data_utils.py.

    Args:
        path: File.
        statistics: Statistics.
        masks: Mask of the dimensions that are normalised, by key and dataset.
    """
    content: dict[str, Any] = {}
    for key, each in statistics.items():
        for name, one in each.items():
            entry = content.setdefault(name, {"num_transitions": one.count})
            entry[_OPENVLA[key]] = {number: _numbers(getattr(one, number)) for number in NUMBERS}
            entry[_OPENVLA[key]]["mask"] = masks[key][name]
    write_json(Path(path), content)


def import_openpi(path: str | Path, names: Names, *, needed: Sequence[str]) -> dict[str, Any]:
    """Return the statistics of openpi's ``norm_stats.json`` for every dataset.

    Args:
        path: File.
        names: Names of the dimensions, by key and dataset.
        needed: Numbers that the file must have, such as ``q01``.

    Raises:
        ArgumentError: The file is not one, or lacks a number.
    """
    content = _read(Path(path)).get("norm_stats")
    content = content if isinstance(content, dict) else {}
    found = _OPENPI.values() & content.keys()
    if not found:
        raise ArgumentError(
            f"{path}: not a norm_stats.json of openpi, which has `norm_stats` with `actions` or `state`"
        )
    return {
        key: {dataset: _foreign(content[name], dims, f"{path}: {name}", needed) for dataset, dims in names[key].items()}
        for key, name in _OPENPI.items()
        if name in found
    }


def import_openvla(path: str | Path, names: Names, *, needed: Sequence[str]) -> dict[str, Any]:
    """Return the statistics of OpenVLA's ``dataset_statistics.json``; arguments and errors as of ``import_openpi``."""
    content = _read(Path(path))
    found: dict[str, Any] = {}
    for key, each in names.items():
        for dataset, dims in each.items():
            if not isinstance(content.get(dataset), dict):
                raise ArgumentError(f"{path}: no statistics of {dataset}; datasets there: {', '.join(content)}")
            if _OPENVLA[key] in content[dataset]:
                one = _foreign(content[dataset][_OPENVLA[key]], dims, f"{path}: {dataset}: {key}", needed)
                found.setdefault(key, {})[dataset] = one
    if not found:
        raise ArgumentError(f"{path}: not a dataset_statistics.json of OpenVLA: no dataset has `action` or `proprio`")
    for key, each in found.items():
        if lacking := names[key].keys() - each.keys():
            raise ArgumentError(
                f"{path}: {', '.join(sorted(lacking))} has no {_OPENVLA[key]}, as {next(iter(each))} has"
            )
    return found


def _foreign(content: Any, names: tuple[str, ...], where: str, needed: Sequence[str] = ()) -> VectorStatistics:
    if not isinstance(content, dict):
        raise ArgumentError(f"{where}: {content!r:.100}; expected a set of statistics")
    if missing := [name for name in needed if content.get(name) is None]:
        raise ArgumentError(f"{where}: no {' and no '.join(missing)}, which this method takes; take another method")
    try:
        numbers = {name: np.array(content.get(name) or [math.nan] * len(names), np.float64) for name in NUMBERS}
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{where}: not a set of statistics ({error!r:.100})") from None
    for name, values in numbers.items():
        if values.shape != (len(names),):
            raise ArgumentError(f"{where}: {name} has {values.size} numbers, expected {len(names)}: {', '.join(names)}")
    return VectorStatistics(names=names, count=0, nonfinite=np.zeros(len(names), np.int64), **numbers)


def _to_json(found: VectorStatistics) -> dict[str, Any]:
    numbers = {name: _numbers(getattr(found, name)) for name in NUMBERS}
    return {"names": found.names, "count": found.count, "nonfinite": found.nonfinite.tolist(), **numbers}


def _from_json(content: Mapping[str, Any]) -> VectorStatistics:
    names = tuple(map(str, content["names"]))
    one = _foreign(content, names, "statistics")
    return VectorStatistics(
        names=names,
        count=int(content["count"]),
        nonfinite=np.array(content["nonfinite"], np.int64),
        **{name: getattr(one, name) for name in NUMBERS},
    )


def _numbers(values: np.ndarray) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_whole(path, _MAX_BYTES))
    except (FileTooLarge, ValueError, RecursionError) as error:
        raise ArgumentError(f"{path}: not a JSON file of statistics ({error!s:.100})") from None
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be read ({error.strerror})") from None
    if not isinstance(content, dict):
        raise ArgumentError(f"{path}: not a JSON file of statistics")
    return content
