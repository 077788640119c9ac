"""The episodes of a split as a table that is searched, filtered and sorted over the mapped columns of the index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from stream.format.catalog import Dataset
from stream.format.index import SplitIndex
from stream.format.names import MOTION, TableKind
from stream.format.table import Column
from stream.order.filters import canonical_filters, parse_filters

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK = 1 << 20
"""Steps or records that are looked at together."""
_PLACES = ("episode", "shard", "first_steps_row", "first_record", "source_position")
"""Columns of ``episodes`` that say where a row lies, not what it holds."""
_FIRST = ("num_steps", "num_records", "status", "language", "robot")
_LAST = ("episode_id", "source_file")


@dataclass(frozen=True)
class Query:
    """A choice among the episodes of a split, and their order.

    Attributes:
        search: Text that the instruction or the id contains, in any case; or the number of the episode.
        filters: Conditions as ``make_loader`` takes them; an episode with a sample that fulfils all of them stays.
        sort: Column to sort by.
        descending: Whether the largest come first; rows without a value come last in any case.
    """

    search: str = ""
    filters: tuple[tuple[str, str, Any], ...] = ()
    sort: str = "episode"
    descending: bool = False


@dataclass(frozen=True, eq=False)
class Found:
    """Result of a query.

    Attributes:
        episodes: Numbers of the episodes in order, int64 [n].
        samples: Count of the samples of all episodes that the filters keep, or None without filters.
        all_samples: Count of all samples.
    """

    episodes: np.ndarray
    samples: int | None
    all_samples: int


class EpisodeTable:
    """The episodes of a split.

    Args:
        dataset: Dataset.
        index: Its split.
    """

    def __init__(self, dataset: Dataset, index: SplitIndex) -> None:
        self.dataset = dataset
        self.index = index
        self.samples: TableKind = "records" if dataset.fields.layout == "pairs" else "steps"
        self._steps_means = lru_cache(8)(self._mean_of_steps)

    def __len__(self) -> int:
        return len(self.index.episodes)

    @cached_property
    def columns(self) -> list[str]:
        """Columns to show and sort by: those of ``episodes``, and ``mean of NAME`` for numbers of ``steps``."""
        own = [name for name, column in self.index.episodes.columns.items() if _is_single(column)]
        own = [name for name in own if name not in (*_PLACES, *_FIRST, *_LAST)]
        steps = [name for name, column in self.index.steps.columns.items() if _is_single(column) and not column.texts]
        means = [f"mean of {name}" for name in steps if name not in ("episode", "step")]
        return [*_FIRST, *own, *sorted(means, key=lambda name: name != f"mean of {MOTION}"), *_LAST]

    @property
    def success(self) -> str | None:
        """Column that says whether an episode succeeded, or None."""
        return next((name for name in self.columns if name.rpartition("/")[2] == "success"), None)

    @cached_property
    def filter_columns(self) -> list[str]:
        """Columns that a filter may name."""
        tables = (self.index.steps, self.index.episodes)
        named = [name for table in tables for name, column in table.columns.items() if _is_filtered(column)]
        return [name for name in dict.fromkeys(named) if name not in _PLACES[1:4]]

    def find(self, query: Query) -> Found:
        """Return the episodes of a query.

        Raises:
            ArgumentError: A filter is wrong.
            FormatError: The index is damaged.
        """
        keep = np.ones(len(self), bool)
        total = len(self.index.table(self.samples))
        samples = None
        if query.filters:
            kept = self._count_kept(query.filters)
            keep &= kept > 0
        if query.search:
            keep &= self._search(query.search)
        if query.filters:
            samples = int(kept[keep].sum())
        episodes = np.flatnonzero(keep)
        if query.sort != "episode":
            key = self.sort_key(query.sort)[episodes]
            # NaN stays last either way.
            episodes = episodes[np.argsort(-key if query.descending else key, kind="stable")]
        elif query.descending:
            episodes = episodes[::-1]
        return Found(episodes, samples, total)

    def sort_key(self, name: str) -> np.ndarray:
        """Return numbers in the order of a column's values, float64 [episodes]; NaN for a missing value."""
        if name.startswith("mean of ") and name in self.columns:
            return self._steps_means(name.removeprefix("mean of "))
        table = self.index.episodes
        rows = np.arange(len(table))
        column = table.columns[name]
        if column.texts is not None:
            import pyarrow.compute as pc

            texts = self._arrow_column(name)
            if column.dtype is None:
                order = pc.sort_indices(texts).to_numpy()
                key = np.empty(len(rows))
                key[order] = rows
            else:
                order = pc.sort_indices(texts.dictionary).to_numpy()
                rank = np.empty(len(order))
                rank[order] = np.arange(len(order))
                key = rank[table.take(name, rows)]
        else:
            key = table.take(name, rows).astype(np.float64).reshape(len(rows))
        valid = table.valid(name, rows)
        return key if valid is None else np.where(valid, key, np.nan)

    def values(self, name: str, episodes: np.ndarray) -> list[Any]:
        """Return the values of a column for some episodes; None for a missing one."""
        if name.startswith("mean of "):
            found = self._steps_means(name.removeprefix("mean of "))[episodes]
            return [None if np.isnan(value) else float(f"{value:.4g}") for value in found]
        table = self.index.episodes
        column = table.columns[name]
        if column.texts is not None:
            return list(table.take_texts(name, episodes))
        numbers = table.take(name, episodes).reshape(len(episodes))
        shown = numbers.astype(bool).tolist() if column.bits else [_short(value) for value in numbers.tolist()]
        valid = table.valid(name, episodes)
        return shown if valid is None else [value if has else None for value, has in zip(shown, valid, strict=True)]

    def frequent_texts(self, name: str, most: int) -> list[tuple[str, int]]:
        """Return the most frequent texts of a column of ``episodes`` with their counts."""
        numbers = self.index.episodes.array(name)
        counts = np.bincount(numbers, minlength=1)
        order = np.argsort(-counts, kind="stable")[:most]
        return [(self.index.episodes.text(name, int(each)), int(counts[each])) for each in order if counts[each]]

    def find_source(self, source_file: str, position: int) -> int | None:
        """Return the episode that came from a place of the source, or None."""
        table = self.index.episodes
        texts = table.columns["source_file"].texts
        for number in range(texts.count if texts else 0):
            if table.text("source_file", number) == source_file:
                here = (table.array("source_file") == number) & (table.array("source_position") == position)
                return next(iter(np.flatnonzero(here).tolist()), None)
        return None

    def find_ids(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the number of each of some episode ids that this split has."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = pc.is_in(self._arrow_column("episode_id"), pa.array(ids, pa.large_string()))
        rows = np.flatnonzero(found.to_numpy(zero_copy_only=False))
        return dict(zip(self.index.episodes.take_texts("episode_id", rows), rows.tolist(), strict=True))

    def _search(self, text: str) -> np.ndarray:
        import pyarrow.compute as pc

        def contains(texts: pa.Array) -> np.ndarray:
            found = pc.match_substring(texts, text, ignore_case=True).fill_null(False)
            return np.asarray(found.to_numpy(zero_copy_only=False), bool)

        said = contains(self._arrow_column("language").dictionary)
        keep = np.append(said, False)[self.index.episodes.array("language")] | contains(
            self._arrow_column("episode_id")
        )
        if text.isascii() and text.isdigit() and len(text) < 10 and int(text) < len(self):
            keep[int(text)] = True
        return keep

    def _count_kept(self, filters: Sequence[tuple[str, str, Any]]) -> np.ndarray:
        """Return how many samples of each episode fulfil all filters, int64 [episodes]."""
        name = self.index.dataset
        (conditions,) = parse_filters(list(filters), [name]).values()
        kind, count = self.samples, len(self.index.table(self.samples))
        kept = np.zeros(len(self), np.int64)
        owners = self.index.table(kind).array("episode")
        for start in range(0, count, _CHUNK):
            rows = slice(start, min(start + _CHUNK, count))
            keep = np.ones(rows.stop - rows.start, bool)
            for condition in conditions:
                keep &= condition.select(self.index, rows, "records" if kind == "records" else "steps")
            kept += np.bincount(owners[rows][keep], minlength=len(self))[: len(self)]
            self._forget()
        return kept

    def _mean_of_steps(self, name: str) -> np.ndarray:
        table, count = self.index.steps, len(self.index.steps)
        sums, counts = np.zeros(len(self)), np.zeros(len(self), np.int64)
        owners = table.array("episode")
        for start in range(0, count, _CHUNK):
            rows = np.arange(start, min(start + _CHUNK, count))
            values = table.take(name, rows).reshape(len(rows)).astype(np.float64)
            has = np.isfinite(values)
            if (valid := table.valid(name, rows)) is not None:
                has &= valid
            here = owners[start : start + len(rows)][has]
            sums += np.bincount(here, values[has], minlength=len(self))[: len(self)]
            counts += np.bincount(here, minlength=len(self))[: len(self)]
            self._forget()
        return np.divide(sums, counts, out=np.full(len(self), np.nan), where=counts > 0)

    def _forget(self) -> None:
        for table in (self.index.steps, self.index.records):
            table.forget()

    def _arrow_column(self, name: str) -> pa.Array:
        return self.index.episodes.arrow().column(name).chunk(0)


def _is_single(column: Column) -> bool:
    """Return whether a row of a column is one number or text."""
    return (column.dtype is not None or column.texts is not None) and (column.width or 1) == 1


def _is_filtered(column: Column) -> bool:
    """Return whether a filter takes a column: numbers and texts, and vectors by ``is_finite``."""
    return column.dtype is not None or column.texts is not None


def _short(value: float | int) -> float | int:
    return value if isinstance(value, int) else float(f"{value:.4g}")


def read_filter(column: str, how: str, value: str) -> tuple[str, str, Any]:
    """Return a condition whose value was typed as JSON, such as ``3``, ``true`` or ``["a", "b"]``, or as plain text.

    Raises:
        ArgumentError: It is no condition.

    >>> read_filter("step", ">", "3"), read_filter("language", "contains", "cup")
    (('step', '>', 3), ('language', 'contains', 'cup'))
    """
    try:
        read = json.loads(value)
    except ValueError:
        read = value
    if how in ("contains", "matches"):
        read = value
    ((column, how, read),) = canonical_filters([(column, how, read)])
    return column, how, read
