"""The statistics in the manifest, computed again from the steps sidecars."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError

from convert.registry import Part
from convert.statistics import vector_statistics
from convert.verify_frames import first_line
from convert.verify_report import Finding, Findings
from stream.format import MANIFEST_NAME, shard_file
from stream.manifest import Statistics

_PARTS = TypeAdapter(tuple[Part, ...])
_TOLERANCE = 1e-6
"""Of a value, and of its dimension's spread: sums depend in their last bits on how a processor orders them."""


@dataclass(frozen=True, kw_only=True)
class StatisticsTask:
    """The statistics of one split to compute again. spec: of the manifest."""

    folder: str
    split: str
    shards: tuple[str, ...]
    spec: dict[str, Any]
    statistics: dict[Literal["action", "state"], Statistics]


def check_statistics(task: StatisticsTask) -> tuple[Finding, ...]:
    """Compute the statistics of a split again and compare; never raises, whatever is in the files."""
    findings = Findings()
    sidecars = [Path(task.folder, task.split, shard_file(name, "steps")) for name in task.shards]
    vectors: tuple[Literal["action", "state"], ...] = ("action", "state")
    for vector in vectors:
        place = f"statistics of {task.split} {vector}"
        try:
            parts = _PARTS.validate_json(json.dumps(task.spec.get(vector, [])))
            expected = vector_statistics(sidecars, parts) if parts else None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in ("spec", vector, *first["loc"]))
            findings.add(MANIFEST_NAME, f"field {where}: {first['msg']} (found {first.get('input')!r:.80})")
            continue
        except Exception as error:
            findings.add(
                MANIFEST_NAME, f"{place} cannot be computed again: {type(error).__name__}: {first_line(error)}"
            )
            continue
        found = task.statistics.get(vector)
        if found is None or expected is None:
            if found is not expected:
                there = "are not there" if found is None else "are there"
                findings.add(MANIFEST_NAME, f"{place} {there}, its spec has {len(parts)} parts of {vector}")
            continue
        for text in _differences(found, expected):
            findings.add(MANIFEST_NAME, f"{place}: {text}")
    return findings.close()


def _differences(found: Statistics, expected: Statistics) -> Iterable[str]:
    if found.names != expected.names:
        yield f"is of {', '.join(found.names)}, expected of {', '.join(expected.names)}"
        return
    if found.count != expected.count:
        yield f"count is {found.count:,}, the steps files give {expected.count:,}"
    for key in ("nonfinite", "mean", "std", "min", "max", "q01", "q99"):
        before, now = getattr(found, key), getattr(expected, key)
        for dim, name in enumerate(expected.names):
            spread = expected.std[dim] or 0.0
            if not _close(before[dim], now[dim], spread):
                yield f"{key} of {name} is {before[dim]}, the steps files give {now[dim]}"


def _close(found: float | None, expected: float | None, spread: float) -> bool:
    if found is None or expected is None:
        return found is expected
    return bool(np.isclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE * spread))
