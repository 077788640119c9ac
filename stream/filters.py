"""Filters: conditions on columns of the index that say which records of a dataset to keep."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from stream.errors import ArgumentError, closest
from stream.format import DERIVED, TABLE_KINDS, FormatError, TableKind
from stream.plain_values import Kind, Scalar, kind_of, plain_scalar, plain_values
from stream.schema import feature_column
from stream.table import Table

_COMPARE = {
    "==": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
OPERATORS = (*_COMPARE, "in", "not in")

_FAMILIES: dict[Kind, Callable[[pa.DataType], bool]] = {
    "a number": lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind),
    "a text": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    "true or false": pa.types.is_boolean,
}
"""Whether values of a kind can be compared with a column."""

Condition = tuple[str, str, Any]
"""Column, operator, and a scalar, or for ``in`` and ``not in`` a sorted list of scalars of one kind."""


class Index(Protocol):
    """The tables of one split. ``dataset`` is a name for messages."""

    @property
    def dataset(self) -> str: ...  # noqa: D102
    @property
    def episodes(self) -> Table: ...  # noqa: D102
    @property
    def steps(self) -> Table: ...  # noqa: D102
    @property
    def records(self) -> Table: ...  # noqa: D102


@dataclass(frozen=True)
class Filter:
    """Conditions that all have to hold, ``(column, operator, value)`` as pyarrow's ``filters=`` takes them.

    A column is looked for in ``episodes``, ``steps`` and ``records``, in this order; ``steps.language`` names the
    table. A record takes the row of its episode and of its step t. A missing value fulfils no condition. Numbers are
    compared in the type of the column: a value for a float32 column is rounded to float32 first.
    """

    conditions: tuple[Condition, ...]

    @property
    def fingerprint(self) -> str:
        """A hash of the conditions, the same for the same conditions in any program."""
        return hashlib.sha256(json.dumps(self.conditions).encode()).hexdigest()[:16]

    def used_columns(self, index: Index) -> Iterator[tuple[TableKind, str]]:
        """Yield the columns of an index that are compared, and those that lead to them."""
        for column, _, _ in self.conditions:
            kind, name = _find(index, column)
            yield kind, name
            if kind != "records":
                yield "records", "episode" if kind == "episodes" else "steps_row"

    def select(self, index: Index, rows: slice) -> np.ndarray:
        """Return which records of an index are kept.

        Args:
            index: Tables of a split.
            rows: Rows of ``records``, with a start and a stop.

        Returns:
            bool [rows.stop - rows.start].

        Raises:
            ArgumentError: There is no such column, or it cannot be compared with the value.
            FormatError: The tables do not belong together.
        """
        keep = np.ones(rows.stop - rows.start, bool)
        for condition in self.conditions:
            keep &= _evaluate(index, rows, condition)
        return keep


@dataclass(frozen=True)
class Filters:
    """The filter of each dataset, or the same for all (key ``""``)."""

    by_dataset: Mapping[str, Filter]

    def of(self, dataset: str) -> Filter | None:
        """Return the filter of a dataset, None if all its pairs are kept."""
        return self.by_dataset.get(dataset, self.by_dataset.get(""))


def canonical_filters(filters: Any) -> Any:
    """Return the ``filters`` argument as JSON holds it: None, a list of conditions, or a dict of such lists.

    Values become plain Python scalars, those of ``in`` and ``not in`` a sorted list without repeats. So filters that
    mean the same are the same, and a generator is read once.

    Raises:
        ArgumentError: It has another form, an unknown operator, or values of several kinds.

    >>> canonical_filters([("step", "in", range(3, 0, -1))])
    [['step', 'in', [1, 2, 3]]]
    """
    if filters is None:
        return None
    if isinstance(filters, Mapping):
        return {str(name): _conditions(conditions) for name, conditions in filters.items()} or None
    return _conditions(filters) or None


def parse_filters(filters: Any, datasets: Sequence[str]) -> Filters | None:
    """Return the filters of a mixture; None if there are none, be it by an empty list.

    Args:
        filters: None, a list of ``(column, operator, value)``, or a mapping of dataset names to such lists. Operators:
            == != < <= > >= in "not in".
        datasets: Names that may be used.

    Raises:
        ArgumentError: As ``canonical_filters``, or an unknown dataset.
    """
    canonical = canonical_filters(filters)
    if not isinstance(canonical, dict):
        canonical = {"": canonical}
    else:
        for name in canonical:
            if name not in datasets:
                raise ArgumentError(f"filters: no member {name!r}; {closest(name, datasets, noun='members')}")
    found = {
        name: Filter(tuple((column, operator, value) for column, operator, value in conditions))
        for name, conditions in canonical.items()
        if conditions
    }
    return Filters(found) if found else None


def _conditions(conditions: Any) -> list[list[Any]]:
    if not isinstance(conditions, Sequence) or isinstance(conditions, str):
        raise ArgumentError(f"filters: {conditions!r:.100}; expected a list of (column, operator, value)")
    return [_condition(condition) for condition in conditions]


def _condition(condition: Any) -> list[Any]:
    if not isinstance(condition, Sequence) or isinstance(condition, str) or len(condition) != 3:
        raise ArgumentError(f"filters: {condition!r:.100}; expected (column, operator, value)")
    column, operator, value = condition
    where = f"filters: {condition!r:.100}"
    if not isinstance(operator, str) or operator not in OPERATORS or not isinstance(column, str):
        raise ArgumentError(f"{where}; operators are {' '.join(OPERATORS)}")
    plain = plain_values if operator in ("in", "not in") else plain_scalar
    return [column, operator, plain(value, where=where)]


def _evaluate(index: Index, rows: slice, condition: Condition) -> np.ndarray:
    """Return for which records a condition holds; each row of ``episodes`` or ``steps`` is compared once."""
    column, operator, value = condition
    kind, name = _find(index, column)
    values = getattr(index, kind).arrow()[name].chunk(0)
    where = f"dataset {index.dataset}, filter on {column!r}"
    if kind == "records":
        return _holds(values.slice(rows.start, rows.stop - rows.start), operator, value, where=where)
    numbers = index.records.array("episode" if kind == "episodes" else "steps_row")[rows]
    if not len(numbers):
        return np.zeros(0, bool)
    first, last = int(numbers.min()), int(numbers.max())
    if first < 0 or last >= len(values):
        raise FormatError(
            f"{index.records.path}: names rows {first:,} to {last:,} of {kind}, which has {len(values):,}; the index "
            "is damaged, check it with `python -m convert.verify`"
        )
    return _holds(values.slice(first, last - first + 1), operator, value, where=where)[numbers - first]


def _find(index: Index, column: str) -> tuple[TableKind, str]:
    """Return the table of a column and its name there; a dataset's own feature goes before a derived vector."""
    first, _, rest = column.partition(".")
    for kind in TABLE_KINDS:
        if rest and first in TABLE_KINDS and first != kind:
            continue
        name = rest if first == kind and rest else column
        names = [name, feature_column(kind, name)]
        for candidate in reversed(names) if name in DERIVED else names:
            if candidate in getattr(index, kind).columns:
                return kind, candidate
    known = {name for kind in TABLE_KINDS for name in getattr(index, kind).columns}
    raise ArgumentError(
        f"filters: dataset {index.dataset} has no column {column!r}; {closest(rest or column, known, noun='columns')}"
    )


def _holds(values: pa.Array, operator: str, value: Any, *, where: str) -> np.ndarray:
    """Return for which values a condition holds, bool [values]; not for missing ones."""
    import pyarrow.compute as pc  # a quarter of the time of importing stream

    if pa.types.is_fixed_size_list(values.type) and values.type.list_size == 1:
        values = pc.list_element(values, 0)
    if pa.types.is_nested(values.type):
        raise ArgumentError(f"{where}: its values are vectors ({values.type}); filter on columns of one number or text")
    texts = values.dictionary if pa.types.is_dictionary(values.type) else values
    try:
        found = _compare(texts, operator, value)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise ArgumentError(
            f"{where}: cannot compare {texts.type} by {operator} with {value!r:.60} ({str(error).splitlines()[0]})"
        ) from None
    if texts is not values:
        try:
            found = pc.take(found, values.indices)
        except IndexError as error:
            raise FormatError(f"{where}: its texts are damaged ({error}); check with convert.verify") from None
    return found.fill_null(False).to_numpy(zero_copy_only=False).astype(bool, copy=False)


def _compare(values: pa.Array, operator: str, given: Scalar | list[Scalar]) -> pa.Array:
    """Compare values with those of a condition, in the type of the column; a missing value gives null or False."""
    import pyarrow.compute as pc

    listed = given if isinstance(given, list) else [given]
    for each in listed[:1]:
        if not _FAMILIES[kind_of(each)](values.type):
            raise TypeError(f"the value is {kind_of(each)}")
    if pa.types.is_floating(values.type):
        with np.errstate(over="ignore"):
            rounded = pa.array(np.asarray(listed, f"f{values.type.bit_width // 8}"))
        # Arrow does not compare 16-bit floats, but 32 bits hold them exactly.
        values, there = (
            each.cast(pa.float32()) if pa.types.is_float16(each.type) else each for each in (values, rounded)
        )
    elif pa.types.is_integer(values.type):
        there = _whole_numbers(listed, values.type, exact=given is listed)
    else:
        there = pa.array(listed, values.type)
    if given is not listed:
        return pc.call_function(_COMPARE[operator], [values, there[0]])
    found = pc.is_in(values, value_set=there)
    return pc.and_(found if operator == "in" else pc.invert(found), pc.is_valid(values))


def _whole_numbers(given: Sequence[Any], kind: pa.DataType, *, exact: bool) -> pa.Array:
    """Return numbers in the type of a column of whole numbers, or where ``exact`` is False in a wider one."""
    whole = [int(number) if isinstance(number, float) and number.is_integer() else number for number in given]
    if not any(isinstance(number, float) for number in whole):
        try:
            return pa.array(whole, kind)
        except (pa.ArrowInvalid, OverflowError):
            if exact:
                raise
    elif exact:
        raise ValueError("not all values are whole numbers")
    return pa.array(whole)
