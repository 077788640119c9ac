"""Derived columns and statistics, computed again from the raw columns and the registry entry in the manifest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from convert.index.derived import derive_vector, find_fault, part_names
from convert.index.statistics import split_statistics
from convert.registry.dataset import Part
from convert.verify.rows import Comparison
from stream.format.manifest import SplitEntry, Statistics
from stream.format.names import DERIVED
from stream.format.table import Table
from stream.storage.errors import FormatError

_PARTS = TypeAdapter(tuple[Part, ...])
_TOLERANCE = 1e-6
"""Part of a value and of its dimension's spread: the last bits of sums depend on how a processor orders them."""
_PIECE = 1 << 18
"""Rows that are derived at once."""

Report = Callable[[str], None]


def spec_parts(spec: Mapping[str, Any], vector: str) -> tuple[Part, ...]:
    """Return the parts of ``action`` or ``state`` in the registry entry of a manifest.

    Raises:
        FormatError: The entry is of another form; names the field.
    """
    try:
        return _PARTS.validate_json(json.dumps(spec.get(vector) or []))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in ("spec", vector, *first["loc"]))
        raise FormatError(f"field {where}: {first['msg']} (found {first.get('input')!r:.80})") from None


def check_derived(
    steps: Table, split: SplitEntry, *, spec: Mapping[str, Any], deep: bool, report: Report, blame_manifest: Report
) -> bool:
    """Check that ``steps`` has the vectors of the registry entry.

    Args:
        steps: Steps of a split.
        split: Manifest's entry.
        spec: Registry entry in the manifest.
        deep: Compare every value with the raw columns.
        report: Called with each problem of the table.
        blame_manifest: Called with each problem of the registry entry.

    Returns:
        Whether nothing is wrong.
    """
    sound, comparison = True, Comparison("steps", split, report)
    for vector in DERIVED:
        try:
            parts = spec_parts(spec, vector)
        except FormatError as error:
            blame_manifest(str(error))
            sound = False
            continue
        size = sum(part.dims for part in parts)
        column = steps.columns.get(vector)
        found = None if column is None else (column.dtype, column.width, column.validity)
        expected = ("<f4", size, None) if parts else None
        if steps.rows and found != expected:
            shown = "there is none" if found is None else f"it has {found[1]} values of type {found[0]} a row"
            report(f"column {vector}: {shown}, the manifest's registry entry says {size} values of float32")
            sound = False
        elif deep and parts and steps.rows:
            sound &= _compare_vector(steps, vector, parts, comparison, report)
    return comparison.close() and sound


def check_statistics(
    folder: Path, spec: Mapping[str, Any], statistics: Mapping[str, Statistics], *, report: Report
) -> None:
    """Compute the statistics of a split again and compare them with the manifest's.

    Args:
        folder: Folder of the split; its ``steps`` passed ``check_derived``.
        spec: Registry entry in the manifest.
        statistics: Statistics of the split in the manifest.
        report: Called with each problem.
    """
    action, state = (spec_parts(spec, vector) for vector in DERIVED)
    again = split_statistics(folder, action=action, state=state)
    for vector in DERIVED:
        place = f"statistics of {folder.name} {vector}"
        found, expected = statistics.get(vector), again.get(vector)  # type: ignore[call-overload]
        if found is None or expected is None:
            if found is not expected:
                report(f"{place} are {'not ' if found is None else ''}there, the registry entry says otherwise")
            continue
        for text in _differences(found, expected):
            report(f"{place}: {text}")


def _compare_vector(steps: Table, vector: str, parts: Sequence[Part], comparison: Comparison, report: Report) -> bool:
    """Compare a derived column with the raw ones, a piece at a time; returns whether there are such raw columns."""
    raw, derived, names = steps.arrow(), steps.array(vector), part_names(parts)
    for part in parts:
        if fault := find_fault(raw.schema, part):
            report(f"{vector} takes {part.path}, but {fault}")
            return False
    for start in range(0, steps.rows, _PIECE):
        with np.errstate(over="ignore", invalid="ignore"):
            expected = derive_vector(raw.slice(start, _PIECE), parts)
        found = derived[start : start + _PIECE]
        differ = (found != expected) & ~(np.isnan(found) & np.isnan(expected))
        for row, dim in np.argwhere(differ)[:1].tolist():
            text = f"{vector} {names[dim]} is {found[row, dim]}, the raw columns give {expected[row, dim]}"
            comparison.note(vector, start + row, text, int(differ.any(axis=1).sum()))
    return True


def _differences(found: Statistics, expected: Statistics) -> Iterable[str]:
    if found.names != expected.names:
        yield f"is of {', '.join(found.names)}, expected of {', '.join(expected.names)}"
        return
    if found.count != expected.count:
        yield f"count is {found.count:,}, the steps give {expected.count:,}"
    for key in ("nonfinite", "mean", "std", "min", "max", "q01", "q99"):
        before, now = getattr(found, key), getattr(expected, key)
        for dim, name in enumerate(expected.names):
            spread = expected.std[dim] or 0.0
            if not _close(before[dim], now[dim], spread):
                yield f"{key} of {name} is {before[dim]}, the steps give {now[dim]}"


def _close(found: float | None, expected: float | None, spread: float) -> bool:
    if found is None or expected is None:
        return found is expected
    return bool(np.isclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE * spread))
