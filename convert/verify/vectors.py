"""Derived columns and statistics, computed again from the raw columns and the registry entry in the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from convert.index.derived import Vector, derive_vector, find_fault, part_names, vector_inputs
from convert.index.statistics import split_statistics
from convert.registry.dataset import Part
from convert.registry.space import MappedVector, Space
from convert.verify.rows import Report, RowChecks
from convert.verify.split_shard import SplitShard
from stream.format.manifest import Statistics
from stream.format.names import DERIVED, VECTORS, DerivedName
from stream.format.spaces import SpaceName
from stream.format.table import Table
from stream.storage.errors import FormatError

_PARTS = TypeAdapter(tuple[Part, ...])
_SPACES = TypeAdapter(dict[SpaceName, Space])
_TOLERANCE = 1e-6
"""Relative to a value and to the standard deviation: the order of sums, and so their last bits, depend on the CPU."""


def spec_parts(spec: Mapping[str, Any], vector: str) -> tuple[Part, ...]:
    """Return the parts of ``action`` or ``state`` in the registry entry of a manifest.

    Raises:
        FormatError: The entry has another form; names the field.
    """
    try:
        return _PARTS.validate_json(json.dumps(spec.get(vector) or []))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in ("spec", vector, *first["loc"]))
        raise FormatError(f"field {where}: {first['msg']} (found {first.get('input')!r:.80})") from None


def spec_mapped(spec: Mapping[str, Any]) -> dict[DerivedName, MappedVector]:
    """Return the columns in canonical spaces of the registry entry of a manifest; raise FormatError if it is wrong."""
    found: dict[DerivedName, MappedVector] = {}
    try:
        for name, space in _SPACES.validate_json(json.dumps(spec.get("spaces") or {})).items():
            found |= space.vectors(name, spec.get("control_frequency"))
    except ValueError as error:
        raise FormatError(f"field spec.spaces: {' '.join(str(error).split())[:300]}") from None
    return found


def check_derived(
    steps: Table, shards: Sequence[SplitShard], spec: Mapping[str, Any], *, deep: bool, report: Report
) -> bool:
    """Check that ``steps`` has the vectors of the registry entry; return whether it has.

    Args:
        steps: Steps of a split.
        shards: Shards of the split.
        spec: Registry entry in the manifest.
        deep: Compare every value with the raw columns.
        report: Called with each problem.

    Raises:
        FormatError: As ``spec_parts`` and ``spec_mapped`` do.
    """
    sound, checks = True, RowChecks("steps", report)
    vectors: dict[DerivedName, Vector] = {name: spec_parts(spec, name) for name in VECTORS}
    vectors.update(spec_mapped(spec))
    for name in DERIVED:
        vector = vectors.get(name, ())
        size = len(part_names(vector))
        column = steps.columns.get(name)
        found = None if column is None else (column.dtype, column.width, column.validity)
        if steps.rows and found != (("<f4", size, None) if vector else None):
            shown = "there is none" if found is None else f"it has {found[1]} values of type {found[0]} a row"
            report(f"column {name}: {shown}, the manifest's registry entry says {size} values of float32")
            sound = False
        elif deep and vector and steps.rows:
            raw = steps.arrow()
            faults = [
                f"{name} takes {part.path}, but {fault}"
                for part in vector_inputs(vector)
                if (fault := find_fault(raw.schema, part))
            ]
            for text in faults:
                report(text)
            sound &= not faults
            for shard in shards if not faults else ():
                _compare_rows(name, vector, raw, steps.array(name)[shard.rows("steps")], shard, checks)
    return checks.close() and sound


def compute_statistics(folder: Path, spec: Mapping[str, Any]) -> Mapping[Any, Statistics]:
    """Return the statistics of the vectors of ``spec`` in the folder of a split; raises FormatError."""
    action, state = (spec_parts(spec, vector) for vector in VECTORS)
    return split_statistics(folder, action=action, state=state, mapped=spec_mapped(spec))


def differing_statistics(
    statistics: Mapping[Any, Statistics], computed: Mapping[Any, Statistics]
) -> Iterator[tuple[str, str, str]]:
    """Yield each difference between statistics in the manifest and computed ones as (vector, dimension, sentence)."""
    for vector, expected in computed.items():
        found = statistics.get(vector)
        if found is None or found.names != expected.names:
            names = ", ".join(found.names) if found else "nothing"
            yield vector, "", f"has statistics of {names}, expected of {', '.join(expected.names)}"
            continue
        if found.count != expected.count:
            yield vector, "", f"count is {found.count:,}, the steps give {expected.count:,}"
        for key in ("nonfinite", "mean", "std", "min", "max", "q01", "q99"):
            for dim, name in enumerate(expected.names):
                before, now = getattr(found, key)[dim], getattr(expected, key)[dim]
                if not _is_close(before, now, expected.std[dim] or 0.0):
                    yield vector, name, f"{key} of {name} is {before}, the steps give {now}"
    for other in sorted(set(statistics) - set(computed)):
        yield other, "", "has statistics, the registry entry has no such vector"


def _compare_rows(
    name: str, vector: Vector, raw: pa.Table, found: np.ndarray, shard: SplitShard, checks: RowChecks
) -> None:
    rows, names = shard.rows("steps"), part_names(vector)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = derive_vector(raw[rows.start : rows.stop], vector)
    # The last bit of an angle depends on the CPU.
    tolerance = _TOLERANCE if isinstance(vector, MappedVector) else 0
    wrong = ~np.isclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)

    def describe(row: int) -> str:
        dim = int(wrong[row].argmax())
        return f"{name} {names[dim]} is {found[row, dim]}, the raw columns give {expected[row, dim]}"

    checks.check(name, shard, np.any(wrong, axis=1), describe)


def _is_close(found: float | None, expected: float | None, spread: float) -> bool:
    if found is None or expected is None:
        return found is expected
    return bool(np.isclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE * spread))
