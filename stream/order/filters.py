"""Filters: conditions on columns of the index that select records of a dataset."""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from stream.base.errors import ArgumentError, FormatError, closest
from stream.base.plain_values import kind_of, plain_scalar, plain_values
from stream.format.names import DERIVED, SEARCHED, TableKind, tables_of
from stream.order.choices import Choice, Samples, hash_content

if TYPE_CHECKING:
    from stream.format.catalog import Dataset
    from stream.format.index import SplitIndex
    from stream.format.table import Table

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MATCH: dict[str, Callable[[str, str], bool]] = {
    "contains": lambda text, given: given in text,
    "matches": lambda text, given: re.search(given, text) is not None,
}
_log = logging.getLogger("stream")
_LINKS: dict[TableKind, str] = {"episodes": "episode", "steps": "steps_row"}
"""Column of a sample's table with its row in another table."""
IS_FINITE = "is_finite"
OPERATORS = (*_COMPARE, "in", "not in", *_MATCH, IS_FINITE)

Missing = Literal["error", "keep", "drop"]
MISSING: tuple[Missing, ...] = get_args(Missing)


@dataclass(frozen=True)
class Filter(Choice):
    """A condition on a column, as in pyarrow's ``filters=``; all filters of a dataset must hold.

    A column is looked up in ``steps``, ``episodes`` and ``records``, in this order, so ``language`` is that of the
    sample's step t, as in its batch; ``episodes.language`` names another table. ``contains`` and ``matches`` (a regular
    expression, found anywhere) compare texts. ``is_finite`` with True holds where a number, or every number of a
    vector, is neither NaN nor infinite, and with False where one is. A missing value fulfils no condition, ``!=`` and
    ``not in`` included, and NaN none but ``is_finite``. Numbers are compared in the type of the column: a value for a
    float32 column is rounded to float32 first.

    Attributes:
        column: Column.
        how: Operator.
        value: A scalar, or for ``in`` and ``not in`` a sorted list of scalars of one kind.
    """

    column: str
    how: str
    value: Any
    reason = "filters"

    @property
    def label(self) -> str:
        """Name in the counts by condition."""
        return f"filters: {self.column} {self.how} {self.value!r:.60}"

    @property
    def fingerprint(self) -> str:
        """The condition as a text, of a long one its begin and a hash."""
        text = repr((self.column, self.how, self.value))
        return text if len(text) <= 80 else f"{text[:60]}... ({hash_content(text)})"

    def used_columns(self, index: SplitIndex, samples: Samples = "records") -> Iterator[tuple[TableKind, str]]:
        """Yield the columns that ``select`` reads of an index."""
        yield from used_by(index, self.column, samples, what=self.reason)

    def select(self, index: SplitIndex, rows: slice, samples: Samples = "records") -> np.ndarray:
        """Return which samples of an index are kept, bool [rows.stop - rows.start].

        Raises:
            ArgumentError: The column does not exist, or cannot be compared with the value.
            FormatError: A record names rows beyond the other tables.
        """
        kind, name = find_values(index, self.column, samples, what=self.reason)
        numbers = np.arange(rows.start, rows.stop)
        if kind != samples:
            numbers = index.table(samples).array(_LINKS[kind])[rows]
            _check_rows(index, kind, samples, numbers)
        if not len(numbers):
            return np.zeros(0, bool)
        first = int(numbers.min())
        where = f"dataset {index.dataset}, filter on {self.column!r}"
        near = np.arange(first, int(numbers.max()) + 1)
        return _holds(index.table(kind), name, near, self.how, self.value, where=where)[numbers - first]


def canonical_filters(filters: Any) -> Any:
    """Return the ``filters`` argument in its JSON form: None, a list of conditions, or a dict of such lists.

    Values become Python scalars; those of ``in`` and ``not in`` become a sorted list of distinct values. So filters of
    equal meaning are equal, and a generator is read once.

    Raises:
        ArgumentError: The argument has another form, an unknown operator, or values of several kinds.

    >>> canonical_filters([("step", "in", range(3, 0, -1))])
    [['step', 'in', [1, 2, 3]]]
    """
    if filters is None:
        return None
    if isinstance(filters, Mapping):
        return {str(name): _conditions(conditions) for name, conditions in filters.items()} or None
    return _conditions(filters) or None


def parse_filters(filters: Any, datasets: Sequence[str]) -> dict[str, list[Filter]]:
    """Return the filters of a mixture, by dataset; datasets without conditions are left out.

    Args:
        filters: None, a list of ``(column, operator, value)`` for all datasets, or a mapping of dataset names to such
            lists. Operators: == != < <= > >= in "not in" contains matches is_finite.
        datasets: Names of the datasets.

    Raises:
        ArgumentError: The argument is malformed, see ``canonical_filters``, or names an unknown dataset.
    """
    canonical = canonical_filters(filters)
    if not isinstance(canonical, dict):
        canonical = dict.fromkeys(datasets, canonical)
    for name in canonical:
        if name not in datasets:
            raise ArgumentError(f"filters: no member {name!r}; {closest(name, datasets, noun='members')}")
    return {name: [Filter(*each) for each in conditions] for name, conditions in canonical.items() if conditions}


def settle_missing(
    choices: Mapping[str, Sequence[Choice]], datasets: Sequence[Dataset], missing: Missing
) -> tuple[dict[str, list[Choice]], list[bool]]:
    """Return the choices without conditions on columns that a dataset lacks, and which datasets stay in the mixture.

    Args:
        choices: Choices by dataset.
        datasets: Open datasets.
        missing: ``keep`` all samples of a dataset that lacks a column, or ``drop`` the dataset.

    Raises:
        ArgumentError: A dataset lacks a column, and ``missing`` is ``error``; or all of them do, or none stays.
    """
    lacking: dict[str, list[str]] = {}
    known: set[str] = set()
    having: set[str | None] = set()
    settled: dict[str, list[Choice]] = {}
    for dataset in datasets:
        known |= _stored(dataset)
        for choice in choices.get(dataset.name, ()):
            wanted = choice.column if isinstance(choice, Filter) else None
            if wanted is not None and not _stores(dataset, wanted):
                lacking.setdefault(wanted, []).append(dataset.name)
            else:
                having.add(wanted)
                settled.setdefault(dataset.name, []).append(choice)
    for column, names in lacking.items():
        if column not in having or missing == "error":
            ways = "missing='keep' keeps all samples of a dataset that lacks a column, 'drop' leaves it out"
            hint = ways if column in having else closest(column.rpartition(".")[2], known, noun="columns")
            raise ArgumentError(f"filters: no column {column!r} in {', '.join(names)}; {hint}")
    dropped = {name for names in lacking.values() for name in names} if missing == "drop" else set()
    if dropped and len(dropped) == len(datasets):
        raise ArgumentError(f"missing='drop' leaves no dataset: each lacks one of the columns {', '.join(lacking)}")
    if dropped:
        _log.info("without the datasets that lack a column of filters: %s", ", ".join(sorted(dropped)))
    return settled, [dataset.name not in dropped for dataset in datasets]


def check_stored(what: str, columns: Mapping[str, str], datasets: Sequence[Dataset]) -> None:
    """Raise ArgumentError if a dataset lacks its column of an argument ``what``; names all of these datasets."""
    lacking = [each for each in datasets if each.name in columns and not _stores(each, columns[each.name])]
    if lacking:
        column, known = columns[lacking[0].name], set().union(*map(_stored, datasets))
        short = column.rpartition(".")[2]
        other = f"give {what} by member, such as {{'name': {column!r}}}, for those that have it"
        raise ArgumentError(
            f"{what}: no column {column!r} in {', '.join(each.name for each in lacking)}; "
            f"{other if short in known else closest(short, known, noun='columns')}"
        )


def _stores(dataset: Dataset, column: str) -> bool:
    samples: Samples = "records" if dataset.fields.layout == "pairs" else "steps"
    return any(name in _stored(dataset, kind) for kind, name in _candidates(column, samples))


def _stored(dataset: Dataset, kind: TableKind | None = None) -> set[str]:
    """Return the names of the columns of a dataset, of all tables or of one."""
    entries = dataset.manifest.splits.values()
    return {name for entry in entries for each in SEARCHED if kind in (None, each) for name in entry.columns(each)}


def _conditions(conditions: Any) -> list[list[Any]]:
    if not isinstance(conditions, list | tuple):
        raise ArgumentError(f"filters: {conditions!r:.100}; expected a list of (column, operator, value)")
    return [_condition(condition) for condition in conditions]


def _condition(condition: Any) -> list[Any]:
    where = f"filters: {condition!r:.100}"
    if not isinstance(condition, list | tuple) or len(condition) not in (2, 3):
        raise ArgumentError(f"{where}; expected (column, operator, value)")
    column, how, *values = condition
    if not values and how != IS_FINITE:
        raise ArgumentError(f"{where}; expected (column, operator, value)")
    value: Any = values[0] if values else True
    if how not in OPERATORS or not isinstance(column, str):
        raise ArgumentError(f"{where}; operators are {' '.join(OPERATORS)}")
    if how in ("in", "not in"):
        return [column, how, plain_values(value, context=where)]
    if how == IS_FINITE and kind_of(plain_scalar(value, context=where)) != "true or false":
        raise ArgumentError(f"{where}; {how} takes True, or False for what is not finite")
    if how in _MATCH and not isinstance(value, str):
        raise ArgumentError(f"{where}; {how} takes a text")
    if how == "matches":
        try:
            re.compile(value)
        except re.error as error:
            raise ArgumentError(f"{where}; the regular expression has an error: {error}") from None
    return [column, how, plain_scalar(value, context=where)]


def find_values(index: SplitIndex, column: str, samples: Samples, *, what: str) -> tuple[TableKind, str]:
    """Return table and name of a column; ``what`` is the argument, for the message."""
    for kind, name in _candidates(column, samples):
        if name in index.table(kind).columns:
            return kind, name
    raise ArgumentError(f"{what}: dataset {index.dataset}, split {index.split} has no column {column!r}")


def used_by(index: SplitIndex, column: str, samples: Samples, *, what: str) -> Iterator[tuple[TableKind, str]]:
    """Yield the columns that are read to find the values of a column for samples."""
    kind, name = find_values(index, column, samples, what=what)
    yield kind, name
    if kind != samples:
        yield samples, _LINKS[kind]


class SampleColumn:
    """A column of numbers, read by the rows of samples; one number a sample, whatever table has it.

    Args:
        index: Index of a split.
        column: Column of ``steps``, ``episodes`` or ``records``.
        samples: Table whose rows are the samples.
        what: Argument that names the column, for messages.

    Raises:
        ArgumentError: There is no such column, or it has texts, vectors or lists.
    """

    def __init__(self, index: SplitIndex, column: str, samples: Samples, *, what: str) -> None:
        kind, self._name = find_values(index, column, samples, what=what)
        self._index, self._kind, self._samples = index, kind, samples
        self._table = index.table(kind)
        self._links = None if kind == samples else index.table(samples).array(_LINKS[kind])
        found = self._table.columns[self._name]
        if found.dtype is None or found.texts is not None or found.width is not None:
            raise ArgumentError(f"{what}: dataset {index.dataset}, column {column!r} is not one number a row")
        self._has_gaps = found.validity is not None
        self._needs_places = found.bits or self._has_gaps
        self._values = None if found.bits else self._table.array(self._name)

    def read(self, rows: np.ndarray | slice, *, check: bool = True) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the numbers of samples, and which samples have one; None if all have.

        Args:
            rows: Rows of the samples, int64 [n], or neighbours.
            check: Whether to check the rows that the index names, and which samples have a number.

        Raises:
            FormatError: A sample names a row beyond the table.
        """
        found: Any = rows
        if self._links is not None:
            found = self._links[rows]
            if check:
                _check_rows(self._index, self._kind, self._samples, found)
        if isinstance(found, slice) and self._needs_places:
            found = np.arange(found.start, found.stop)
        values = self._table.take(self._name, found) if self._values is None else self._values[found]
        return values, self._table.valid(self._name, found) if check and self._has_gaps else None


def _check_rows(index: SplitIndex, kind: TableKind, samples: Samples, rows: np.ndarray) -> None:
    """Raise FormatError if samples name rows of another table that it does not have."""
    if len(rows) and not 0 <= rows.min() <= rows.max() < len(index.table(kind)):
        raise FormatError(
            f"{index.table(samples).path}: names rows {rows.min():,} to {rows.max():,} of {kind}, which has "
            f"{len(index.table(kind)):,}; the index is damaged, check it with `pairstream verify`"
        )


def _candidates(column: str, samples: Samples) -> Iterator[tuple[TableKind, str]]:
    """Yield tables and names to look up a column by; a dataset's own feature ``action`` precedes the derived vector."""
    kinds, name = tables_of(column, SEARCHED if samples == "records" else SEARCHED[:2])
    for kind in kinds:
        yield from ((kind, each) for each in ((f"{name}_", name) if name in DERIVED else (name,)))


def _holds(table: Table, name: str, rows: np.ndarray, how: str, value: Any, *, where: str) -> np.ndarray:
    """Return for which rows of a column a condition holds, bool [n]; it does not hold for missing values and NaN."""
    column = table.columns[name]
    if how == IS_FINITE and (column.dtype is None or column.texts is not None):
        raise ArgumentError(f"{where}: its values are texts or lists; {how} is for columns of numbers and vectors")
    if how != IS_FINITE and ((column.dtype is None and column.texts is None) or (column.width or 1) > 1):
        raise ArgumentError(
            f"{where}: its values are vectors or lists; filter on columns of one number or text, or vectors by "
            f"{IS_FINITE}"
        )
    valid = table.valid(name, rows)
    present = rows if valid is None else rows[valid]
    values = present if column.dtype is None else table.take(name, present).reshape(len(present), column.width or 1)
    if how == IS_FINITE:
        return _among(rows, valid, np.isfinite(values).all(axis=1) == value)
    values = values.reshape(len(present))
    place: Any = slice(None)
    if column.texts is not None:
        # Each distinct text is compared once, however many rows have it.
        numbers, place = np.unique(values, return_inverse=True)
        values = np.array([table.text(name, number) for number in numbers.tolist()], object)
    elif column.bits:
        values = values.astype(bool)
    try:
        found = _compare(values, how, value)[place]
    except (TypeError, OverflowError) as error:
        kind = "texts" if column.texts is not None else values.dtype
        raise ArgumentError(f"{where}: cannot compare {kind} by {how} with {value!r:.60} ({error})") from None
    if values.dtype.kind == "f":
        found &= ~np.isnan(values)
    return _among(rows, valid, found)


def _among(rows: np.ndarray, valid: np.ndarray | None, holds: np.ndarray) -> np.ndarray:
    """Return for which rows a condition holds, bool [n], from its result for those that have a value."""
    if valid is None:
        return holds
    result = np.zeros(len(rows), bool)
    result[valid] = holds
    return result


def _compare(values: np.ndarray, how: str, given: Any) -> np.ndarray:
    """Compare values with one or several given values; floats are compared in the type of the column."""
    kind = {"b": "true or false", "O": "a text"}.get(values.dtype.kind, "a number")
    for each in given[:1] if isinstance(given, list) else [given]:
        if kind_of(each) != kind:
            raise TypeError(f"the value is {kind_of(each)}")
    with np.errstate(over="ignore"):
        if how in _COMPARE:
            return np.asarray(_COMPARE[how](values, given))
        if how in _MATCH:
            return np.array([_MATCH[how](text, given) for text in values.tolist()], bool)
        if kind == "a text":
            texts = set(given)
            found = np.array([text in texts for text in values.tolist()], bool)
        else:
            found = np.isin(values, np.asarray(given, values.dtype if values.dtype.kind == "f" else None))
    return found if how == "in" else ~found
