"""Filters on sidecar columns: which pairs of a dataset to keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from stream.errors import ArgumentError, closest

OpenShard = Any

_COMPARE = {
    "==": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
OPERATORS = (*_COMPARE, "in", "not in")

Condition = tuple[str, str, Any]


@dataclass(frozen=True)
class Filter:
    """Conditions that all have to hold, ``(column, operator, value)`` as pyarrow's ``filters=`` takes them.

    A column is looked for in the ``episodes``, ``steps`` and ``records`` sidecars, in this order; ``steps.language``
    names the sidecar. Of ``steps`` the row of the pair's first step counts. Null fulfils no condition.
    """

    conditions: tuple[Condition, ...]

    def select(self, shard: OpenShard, first: int, count: int) -> np.ndarray:
        """Return which of ``count`` records from ``first`` on are kept, bool [count]."""
        keep = np.ones(count, bool)
        for column, operator, value in self.conditions:
            values = _values(shard, column, first, count)
            keep &= _holds(values, operator, value, where=f"dataset {shard.info.dataset}, filter on {column!r}")
        return keep


@dataclass(frozen=True)
class Filters:
    """The filter of each dataset, or the same for all (key ``""``)."""

    by_dataset: Mapping[str, Filter]

    def of(self, dataset: str) -> Filter | None:
        """The filter of a dataset, None if all its pairs are kept."""
        return self.by_dataset.get(dataset, self.by_dataset.get(""))


def parse_filters(filters: Any, datasets: Sequence[str]) -> Filters | None:
    """Check the ``filters`` argument.

    Args:
        filters: None, a list of ``(column, operator, value)``, or a mapping of dataset names to such lists. Operators:
            == != < <= > >= in "not in".
        datasets: the names that may be used.

    Raises:
        ArgumentError: another form, an unknown dataset or operator.
    """
    if not filters:
        return None
    if isinstance(filters, Mapping):
        for name in filters:
            if name not in datasets:
                raise ArgumentError(f"filters: no member {name!r}; {closest(str(name), datasets, noun='members')}")
        return Filters({name: _filter(conditions) for name, conditions in filters.items()})
    return Filters({"": _filter(filters)})


def _filter(conditions: Any) -> Filter:
    if not isinstance(conditions, Sequence) or isinstance(conditions, str):
        raise ArgumentError(f"filters: {conditions!r:.100}; expected a list of (column, operator, value)")
    parsed: list[Condition] = []
    for condition in conditions:
        if not isinstance(condition, Sequence) or isinstance(condition, str) or len(condition) != 3:
            raise ArgumentError(f"filters: {condition!r:.100}; expected (column, operator, value)")
        column, operator, value = condition
        if operator not in OPERATORS or not isinstance(column, str):
            raise ArgumentError(f"filters: {condition!r:.100}; operators are {' '.join(OPERATORS)}")
        if operator in ("in", "not in") and isinstance(value, str | bytes | Mapping):
            raise ArgumentError(f"filters: {condition!r:.100}; {operator!r} takes a list of values")
        if isinstance(value, set | tuple | frozenset):
            try:
                value = sorted(value)
            except TypeError:
                raise ArgumentError(f"filters: {condition!r:.100}; values of one type are expected") from None
        parsed.append((column, operator, value))
    return Filter(tuple(parsed))


def _values(shard: OpenShard, column: str, first: int, count: int) -> pa.Array:
    """The values of a column for some records of a shard."""
    records = {name: values[first : first + count] for name, values in shard.records.items()}
    first_part, _, rest = column.partition(".")
    kind, name = (first_part, rest) if first_part in ("episodes", "steps", "records") and rest else ("", column)
    rows = {"episodes": records["episode"], "steps": records["steps_row"]}
    for candidate in [kind] if kind else ("episodes", "steps", "records"):
        if candidate == "records":
            if name in records:
                return pa.array(records[name])
            continue
        table = shard.episodes if candidate == "episodes" else shard.steps
        if name in table.column_names:
            return table[name].take(pa.array(rows[candidate])).combine_chunks()
    known = {*shard.episodes.column_names, *shard.steps.column_names, *records}
    raise ArgumentError(
        f"filters: dataset {shard.info.dataset} has no column {column!r}; {closest(name, known, noun='columns')}"
    )


def _holds(values: pa.Array, operator: str, value: Any, *, where: str) -> np.ndarray:
    # A quarter of what importing stream would take.
    import pyarrow.compute as pc

    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values.type, pa.FixedSizeListType) and values.type.list_size == 1:
        values = values.flatten()
    if pa.types.is_nested(values.type):
        raise ArgumentError(f"{where}: its values are vectors ({values.type}); filter on columns of one number or text")
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    try:
        if operator in ("in", "not in"):
            found = pc.is_in(values, value_set=pa.array(value).cast(values.type))
            found = pc.and_(found if operator == "in" else pc.invert(found), pc.is_valid(values))
        else:
            found = pc.call_function(_COMPARE[operator], [values, pa.scalar(value)])
    except (pa.ArrowException, TypeError, OverflowError, NotImplementedError) as error:
        raise ArgumentError(
            f"{where}: cannot compare {values.type} by {operator} with {value!r:.60} ({str(error).splitlines()[0]})"
        ) from None
    return found.fill_null(False).to_numpy(zero_copy_only=False).astype(bool)
