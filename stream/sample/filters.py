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
from stream.sample.choices import Choice, Samples, hash_content

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
    "contains": lambda text, operand: operand in text,
    "matches": lambda text, operand: re.search(operand, text) is not None,
}
_log = logging.getLogger("stream")
_LINKS: dict[TableKind, str] = {"episodes": "episode", "steps": "steps_row"}
"""Column of a sample's table with its row in another table."""
IS_FINITE = "is_finite"
OPERATORS = (*_COMPARE, "in", "not in", *_MATCH, IS_FINITE)

MissingColumn = Literal["error", "keep", "drop"]
MISSING_COLUMN: tuple[MissingColumn, ...] = get_args(MissingColumn)


@dataclass(frozen=True)
class Filter(Choice):
    """A condition on a column, as in pyarrow's ``filters=``; all conditions of a dataset must hold.

    A column is looked up in ``steps``, ``episodes`` and ``records``, in this order. So ``language`` is the instruction
    at the sample's step t, as in its batch; ``episodes.language`` names another table.

    ``contains`` and ``matches`` (a regular expression, found anywhere) compare texts. ``is_finite`` with True holds if
    a number, or every number of a vector, is neither NaN nor infinite; with False it holds if one is. A missing value
    fulfils no condition, not even ``!=`` and ``not in``; NaN fulfils none but ``is_finite``. Numbers are compared in
    the type of the column: a value for a float32 column is rounded to float32 first.

    Attributes:
        column: Column.
        how: Operator.
        value: A scalar, or for ``in`` and ``not in`` a sorted list of scalars of one kind.
    """

    column: str
    how: str
    value: Any
    reason = "where"

    @property
    def label(self) -> str:
        """Name in the counts by condition."""
        return f"where: {self.column} {self.how} {self.value!r:.60}"

    @property
    def fingerprint(self) -> str:
        """The condition as a text; a long one is shortened, with a hash."""
        condition = repr((self.column, self.how, self.value))
        return condition if len(condition) <= 80 else f"{condition[:60]}... ({hash_content(condition)})"

    def used_columns(self, split_index: SplitIndex, samples: Samples = "records") -> Iterator[tuple[TableKind, str]]:
        """Yield the columns that ``select`` reads of an index."""
        yield from used_by(split_index, self.column, samples, argument=self.reason)

    def select(self, split_index: SplitIndex, row_range: slice, samples: Samples = "records") -> np.ndarray:
        """Return which samples of an index are kept, bool [row_range.stop - row_range.start].

        Raises:
            ArgumentError: The column does not exist, or cannot be compared with the value.
            FormatError: A record names rows beyond the other tables.
        """
        table_kind, column_name = find_values(split_index, self.column, samples, argument=self.reason)
        row_numbers = np.arange(row_range.start, row_range.stop)
        if table_kind != samples:
            row_numbers = split_index.table(samples).array(_LINKS[table_kind])[row_range]
            _check_rows(split_index, table_kind, samples, row_numbers)
        if not len(row_numbers):
            return np.zeros(0, bool)
        # Several samples share a row of another table: each row in their span is compared once.
        first_row = int(row_numbers.min())
        context = f"dataset {split_index.dataset}, filter on {self.column!r}"
        spanned_rows = np.arange(first_row, int(row_numbers.max()) + 1)
        table = split_index.table(table_kind)
        holds = _holds(table, column_name, spanned_rows, self.how, self.value, context=context)
        return holds[row_numbers - first_row]


def canonical_conditions(where: Any) -> Any:
    """Return ``where`` in its JSON form: None, a list of conditions, or a dict of such lists.

    Values become Python scalars; the values of ``in`` and ``not in`` become a sorted list of distinct values. So
    conditions of equal meaning are equal, and a generator is read once.

    Raises:
        ArgumentError: The argument has another form, an unknown operator, or values of several kinds.

    >>> canonical_conditions([("step", "in", range(3, 0, -1))])
    [['step', 'in', [1, 2, 3]]]
    """
    if where is None:
        return None
    if isinstance(where, Mapping):
        return {str(member_name): _conditions(conditions) for member_name, conditions in where.items()} or None
    return _conditions(where) or None


def parse_conditions(where: Any, datasets: Sequence[str]) -> dict[str, list[Filter]]:
    """Return the conditions of a mixture, by dataset; datasets without conditions are left out.

    Args:
        where: None, a list of ``(column, operator, value)`` for all datasets, or a mapping of dataset names to such
            lists. Operators: == != < <= > >= in "not in" contains matches is_finite.
        datasets: Names of the datasets.

    Raises:
        ArgumentError: The argument is malformed, see ``canonical_conditions``, or names an unknown dataset.
    """
    canonical = canonical_conditions(where)
    if not isinstance(canonical, dict):
        canonical = dict.fromkeys(datasets, canonical)
    for member_name in canonical:
        if member_name not in datasets:
            raise ArgumentError(f"where: no member {member_name!r}; {closest(member_name, datasets, noun='members')}")
    return {name: [Filter(*condition) for condition in value] for name, value in canonical.items() if value}


def settle_missing(
    choices: Mapping[str, Sequence[Choice]], datasets: Sequence[Dataset], policies: Mapping[str, MissingColumn]
) -> tuple[dict[str, list[Choice]], list[bool]]:
    """Return the choices without conditions on columns that a dataset lacks, and which datasets stay in the mixture.

    Args:
        choices: Choices by dataset.
        datasets: Open datasets.
        policies: ``on_missing_column`` of each dataset: ``keep`` all samples of a dataset that lacks a column, or
            ``drop`` the dataset.

    Raises:
        ArgumentError: A dataset lacks a column, and its policy is ``error``; or all datasets lack it, or none stays.
    """
    datasets_without: dict[str, list[str]] = {}
    stored_columns: set[str] = set()
    filtered_columns: set[str | None] = set()
    settled: dict[str, list[Choice]] = {}
    for dataset in datasets:
        stored_columns |= _stored(dataset)
        for choice in choices.get(dataset.name, ()):
            filtered_column = choice.column if isinstance(choice, Filter) else None
            if filtered_column is not None and not _stores(dataset, filtered_column):
                datasets_without.setdefault(filtered_column, []).append(dataset.name)
            else:
                filtered_columns.add(filtered_column)
                settled.setdefault(dataset.name, []).append(choice)
    for column, dataset_names in datasets_without.items():
        if column not in filtered_columns or any(policies[name] == "error" for name in dataset_names):
            hint = "on_missing_column='keep' keeps all samples of a dataset that lacks a column, 'drop' leaves it out"
            if column not in filtered_columns:
                hint = closest(column.rpartition(".")[2], stored_columns, noun="columns")
            raise ArgumentError(f"where: no column {column!r} in {', '.join(dataset_names)}; {hint}")
    dropped = {name for name in set().union(*datasets_without.values()) if policies[name] == "drop"}
    if dropped and len(dropped) == len(datasets):
        columns = ", ".join(datasets_without)
        raise ArgumentError(f"on_missing_column='drop' leaves no dataset: each lacks one of the columns {columns}")
    if dropped:
        _log.info("without the datasets that lack a column of where: %s", ", ".join(sorted(dropped)))
    return settled, [dataset.name not in dropped for dataset in datasets]


def check_stored(argument: str, columns: Mapping[str, str], datasets: Sequence[Dataset]) -> None:
    """Raise ArgumentError if datasets lack their column of an argument; the message names all of them."""
    named = [dataset for dataset in datasets if dataset.name in columns]
    lacking = [dataset.name for dataset in named if not _stores(dataset, columns[dataset.name])]
    if lacking:
        column, stored_columns = columns[lacking[0]], set().union(*map(_stored, datasets))
        short_name = column.rpartition(".")[2]
        hint = f"give {argument} by member, such as {{'name': {column!r}}}, for those that have it"
        if short_name not in stored_columns:
            hint = closest(short_name, stored_columns, noun="columns")
        raise ArgumentError(f"{argument}: no column {column!r} in {', '.join(lacking)}; {hint}")


def _stores(dataset: Dataset, column: str) -> bool:
    samples: Samples = "records" if dataset.fields.layout == "pairs" else "steps"
    return any(column_name in _stored(dataset, table_kind) for table_kind, column_name in _candidates(column, samples))


def _stored(dataset: Dataset, table_kind: TableKind | None = None) -> set[str]:
    """Return the names of the columns of a dataset, of all tables or of one."""
    table_kinds = SEARCHED if table_kind is None else (table_kind,)
    entries = dataset.manifest.splits.values()
    return set().union(*(split_entry.columns(kind) for split_entry in entries for kind in table_kinds))


def _conditions(conditions: Any) -> list[list[Any]]:
    if not isinstance(conditions, list | tuple):
        raise ArgumentError(f"where: {conditions!r:.100}; expected a list of (column, operator, value)")
    return [_condition(condition) for condition in conditions]


def _condition(condition: Any) -> list[Any]:
    context = f"where: {condition!r:.100}"
    if not isinstance(condition, list | tuple) or len(condition) not in (2, 3):
        raise ArgumentError(f"{context}; expected (column, operator, value); where is a list of them")
    column, how, *values = condition
    if not values and how != IS_FINITE:
        raise ArgumentError(f"{context}; expected (column, operator, value)")
    value: Any = values[0] if values else True
    if how not in OPERATORS or not isinstance(column, str):
        raise ArgumentError(f"{context}; operators are {' '.join(OPERATORS)}")
    if how in ("in", "not in"):
        return [column, how, plain_values(value, context=context)]
    if how == IS_FINITE and kind_of(plain_scalar(value, context=context)) != "true or false":
        raise ArgumentError(f"{context}; {how} takes True, or False for what is not finite")
    if how in _MATCH and not isinstance(value, str):
        raise ArgumentError(f"{context}; {how} takes a text")
    if how == "matches":
        try:
            re.compile(value)
        except re.error as error:
            raise ArgumentError(f"{context}; the regular expression has an error: {error}") from None
    return [column, how, plain_scalar(value, context=context)]


def find_values(split_index: SplitIndex, column: str, samples: Samples, *, argument: str) -> tuple[TableKind, str]:
    """Return table and name of a column; ``argument`` is for the message."""
    for table_kind, column_name in _candidates(column, samples):
        if column_name in split_index.table(table_kind).columns:
            return table_kind, column_name
    context = f"dataset {split_index.dataset}, split {split_index.split}"
    raise ArgumentError(f"{argument}: {context} has no column {column!r}")


def used_by(
    split_index: SplitIndex, column: str, samples: Samples, *, argument: str
) -> Iterator[tuple[TableKind, str]]:
    """Yield the columns that are read to find the values of a column for samples."""
    table_kind, column_name = find_values(split_index, column, samples, argument=argument)
    yield table_kind, column_name
    if table_kind != samples:
        yield samples, _LINKS[table_kind]


class SampleColumn:
    """A column of numbers in any table, read by the rows of samples; each sample has one number.

    Args:
        split_index: Index of a split.
        column: Column of ``steps``, ``episodes`` or ``records``.
        samples: Table whose rows are the samples.
        argument: Argument that names the column, for messages.

    Raises:
        ArgumentError: There is no such column, or it has texts, vectors or lists.
    """

    def __init__(self, split_index: SplitIndex, column: str, samples: Samples, *, argument: str) -> None:
        table_kind, self._name = find_values(split_index, column, samples, argument=argument)
        self._index, self._kind, self._samples = split_index, table_kind, samples
        self._table = split_index.table(table_kind)
        self._links = None if table_kind == samples else split_index.table(samples).array(_LINKS[table_kind])
        table_column = self._table.columns[self._name]
        if table_column.dtype is None or table_column.texts is not None or table_column.width is not None:
            raise ArgumentError(f"{argument}: dataset {split_index.dataset}, column {column!r} is not one number a row")
        self._has_gaps = table_column.validity is not None
        self._needs_numbers = table_column.bits or self._has_gaps
        self._values = None if table_column.bits else self._table.array(self._name)

    def read(self, rows: np.ndarray | slice, *, check: bool = True) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the numbers of samples, and which samples have one; None if all have.

        Args:
            rows: Rows of the samples, int64 [n], or a slice of consecutive rows.
            check: Whether to check the rows that the index names, and which samples have a number.

        Raises:
            FormatError: A sample names a row beyond the table.
        """
        table_rows: Any = rows
        if self._links is not None:
            table_rows = self._links[rows]
            if check:
                _check_rows(self._index, self._kind, self._samples, table_rows)
        if isinstance(table_rows, slice) and self._needs_numbers:
            table_rows = np.arange(table_rows.start, table_rows.stop)
        values = self._table.take(self._name, table_rows) if self._values is None else self._values[table_rows]
        return values, self._table.valid(self._name, table_rows) if check and self._has_gaps else None


def _check_rows(split_index: SplitIndex, table_kind: TableKind, samples: Samples, row_numbers: np.ndarray) -> None:
    """Raise FormatError if samples name rows that another table does not have."""
    num_rows = len(split_index.table(table_kind))
    if len(row_numbers) and not 0 <= row_numbers.min() <= row_numbers.max() < num_rows:
        raise FormatError(
            f"{split_index.table(samples).path}: names rows {row_numbers.min():,} to {row_numbers.max():,} of "
            f"{table_kind}, which has {num_rows:,}; the index is damaged, check it with `pairstream verify`"
        )


def _candidates(column: str, samples: Samples) -> Iterator[tuple[TableKind, str]]:
    """Yield tables and names to look up a column by; a dataset's own feature ``action`` precedes the derived vector."""
    table_kinds, column_name = tables_of(column, SEARCHED if samples == "records" else SEARCHED[:2])
    candidates = (f"{column_name}_", column_name) if column_name in DERIVED else (column_name,)
    yield from ((table_kind, candidate) for table_kind in table_kinds for candidate in candidates)


def _holds(
    table: Table, column_name: str, row_numbers: np.ndarray, how: str, value: Any, *, context: str
) -> np.ndarray:
    """Return for which rows of a column a condition holds, bool [n]; it does not hold for missing values and NaN."""
    column = table.columns[column_name]
    if how == IS_FINITE and (column.dtype is None or column.texts is not None):
        raise ArgumentError(f"{context}: its values are texts or lists; {how} is for columns of numbers and vectors")
    if how != IS_FINITE and ((column.dtype is None and column.texts is None) or (column.width or 1) > 1):
        raise ArgumentError(
            f"{context}: its values are vectors or lists; filter on columns of one number or text, or vectors by "
            f"{IS_FINITE}"
        )
    has_value = table.valid(column_name, row_numbers)
    present = row_numbers if has_value is None else row_numbers[has_value]
    # Texts are compared by the numbers of their rows.
    values = present if column.dtype is None else table.take(column_name, present)
    if how == IS_FINITE:
        is_finite = np.isfinite(values.reshape(len(present), column.width or 1)).all(axis=1)
        return _spread(row_numbers, has_value, is_finite == value)
    values = values.reshape(len(present))
    inverse: Any = slice(None)
    if column.texts is not None:
        # Each distinct text is compared once, however many rows have it.
        text_numbers, inverse = np.unique(values, return_inverse=True)
        values = np.array([table.text(column_name, text_number) for text_number in text_numbers.tolist()], object)
    elif column.bits:
        values = values.astype(bool)
    try:
        holds = _compare(values, how, value)[inverse]
    except (TypeError, OverflowError) as error:
        type_name = "texts" if column.texts is not None else values.dtype
        raise ArgumentError(f"{context}: cannot compare {type_name} by {how} with {value!r:.60} ({error})") from None
    if values.dtype.kind == "f":
        holds &= ~np.isnan(values)
    return _spread(row_numbers, has_value, holds)


def _spread(row_numbers: np.ndarray, has_value: np.ndarray | None, holds: np.ndarray) -> np.ndarray:
    """Return for which rows a condition holds, bool [n], from its result for the rows that have a value."""
    if has_value is None:
        return holds
    result = np.zeros(len(row_numbers), bool)
    result[has_value] = holds
    return result


def _compare(values: np.ndarray, operator_name: str, operand: Any) -> np.ndarray:
    """Compare values with a scalar or a list of scalars; floats are compared in the type of the column."""
    value_kind = {"b": "true or false", "O": "a text"}.get(values.dtype.kind, "a number")
    for scalar in operand[:1] if isinstance(operand, list) else [operand]:
        if kind_of(scalar) != value_kind:
            raise TypeError(f"the value is {kind_of(scalar)}")
    with np.errstate(over="ignore"):
        if operator_name in _COMPARE:
            return np.asarray(_COMPARE[operator_name](values, operand))
        if operator_name in _MATCH:
            return np.array([_MATCH[operator_name](text, operand) for text in values.tolist()], bool)
        if value_kind == "a text":
            texts = set(operand)
            is_member = np.array([text in texts for text in values.tolist()], bool)
        else:
            is_member = np.isin(values, np.asarray(operand, values.dtype if values.dtype.kind == "f" else None))
    return is_member if operator_name == "in" else ~is_member
