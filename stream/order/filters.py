"""Filters: conditions on columns of the index that select records of a dataset."""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from stream.format.names import DERIVED, SEARCHED, TableKind, tables_of
from stream.order.choices import Choice, Samples, hash_content
from stream.order.plain_values import kind_of, plain_scalar, plain_values
from stream.storage.errors import ArgumentError, FormatError, closest

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
OPERATORS = (*_COMPARE, "in", "not in", *_MATCH)

Missing = Literal["error", "keep", "drop"]
MISSING: tuple[Missing, ...] = get_args(Missing)


@dataclass(frozen=True)
class Filter(Choice):
    """A condition on a column, as in pyarrow's ``filters=``; all filters of a dataset must hold.

    A column is looked up in ``steps``, ``episodes`` and ``records``, in this order, so ``language`` is that of the
    sample's step t, as in its batch; ``episodes.language`` names another table. ``contains`` and ``matches`` (a regular
    expression, found anywhere) compare texts. A missing value and NaN fulfil no condition, ``!=`` and ``not in``
    included. Numbers are compared in the type of the column: a value for a float32 column is rounded to float32 first.

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
        """Hash of the condition, which does not depend on the process."""
        return hash_content([[self.column, self.how, self.value]])

    def used_columns(self, index: SplitIndex, samples: Samples = "records") -> Iterator[tuple[TableKind, str]]:
        """Yield the columns that ``select`` reads of an index."""
        kind, name = _find(index, self.column, samples)
        yield kind, name
        if kind != samples:
            yield samples, "episode" if kind == "episodes" else "steps_row"

    def select(self, index: SplitIndex, rows: slice, samples: Samples = "records") -> np.ndarray:
        """Return which samples of an index are kept, bool [rows.stop - rows.start].

        Raises:
            ArgumentError: The column does not exist, or cannot be compared with the value.
            FormatError: A record names rows beyond the other tables.
        """
        kind, name = _find(index, self.column, samples)
        if kind == samples:
            numbers = np.arange(rows.start, rows.stop)
        else:
            numbers = index.table(samples).array("episode" if kind == "episodes" else "steps_row")[rows]
        if not len(numbers):
            return np.zeros(0, bool)
        table = index.table(kind)
        first, last = int(numbers.min()), int(numbers.max())
        if first < 0 or last >= len(table):
            raise FormatError(
                f"{index.table(samples).path}: names rows {first:,} to {last:,} of {kind}, which has {len(table):,}; "
                "the index is damaged, check it with `python -m convert.verify`"
            )
        where = f"dataset {index.dataset}, filter on {self.column!r}"
        return _holds(table, name, np.arange(first, last + 1), self.how, self.value, where=where)[numbers - first]


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
            lists. Operators: == != < <= > >= in "not in" contains matches.
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
        entries = dataset.manifest.splits.values()
        stored = {(kind, name) for entry in entries for kind in SEARCHED for name in entry.columns(kind)}
        known |= {name for _, name in stored}
        samples: Samples = "records" if dataset.fields.layout == "pairs" else "steps"
        for choice in choices.get(dataset.name, ()):
            wanted = choice.column if isinstance(choice, Filter) else None
            if wanted is not None and stored.isdisjoint(_candidates(wanted, samples)):
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


def _conditions(conditions: Any) -> list[list[Any]]:
    if not isinstance(conditions, list | tuple):
        raise ArgumentError(f"filters: {conditions!r:.100}; expected a list of (column, operator, value)")
    return [_condition(condition) for condition in conditions]


def _condition(condition: Any) -> list[Any]:
    where = f"filters: {condition!r:.100}"
    if not isinstance(condition, list | tuple) or len(condition) != 3:
        raise ArgumentError(f"{where}; expected (column, operator, value)")
    column, how, value = condition
    if how not in OPERATORS or not isinstance(column, str):
        raise ArgumentError(f"{where}; operators are {' '.join(OPERATORS)}")
    if how in ("in", "not in"):
        return [column, how, plain_values(value, where=where)]
    if how in _MATCH and not isinstance(value, str):
        raise ArgumentError(f"{where}; {how} takes a text")
    if how == "matches":
        try:
            re.compile(value)
        except re.error as error:
            raise ArgumentError(f"{where}; the regular expression has an error: {error}") from None
    return [column, how, plain_scalar(value, where=where)]


def _find(index: SplitIndex, column: str, samples: Samples) -> tuple[TableKind, str]:
    """Return table and name of a column."""
    for kind, name in _candidates(column, samples):
        if name in index.table(kind).columns:
            return kind, name
    raise ArgumentError(f"filters: dataset {index.dataset}, split {index.split} has no column {column!r}")


def _candidates(column: str, samples: Samples) -> Iterator[tuple[TableKind, str]]:
    """Yield tables and names to look up a column by; a dataset's own feature ``action`` precedes the derived vector."""
    kinds, name = tables_of(column, SEARCHED if samples == "records" else SEARCHED[:2])
    for kind in kinds:
        yield from ((kind, each) for each in ((f"{name}_", name) if name in DERIVED else (name,)))


def _holds(table: Table, name: str, rows: np.ndarray, how: str, value: Any, *, where: str) -> np.ndarray:
    """Return for which rows of a column a condition holds, bool [n]; it does not hold for missing values and NaN."""
    column = table.columns[name]
    if (column.dtype is None and column.texts is None) or (column.width or 1) > 1:
        raise ArgumentError(f"{where}: its values are vectors or lists; filter on columns of one number or text")
    valid = table.valid(name, rows)
    present = rows if valid is None else rows[valid]
    values = present if column.dtype is None else table.take(name, present).reshape(len(present))
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
    holds = np.zeros(len(rows), bool)
    holds[slice(None) if valid is None else valid] = found
    return holds


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
