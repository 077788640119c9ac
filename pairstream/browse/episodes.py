"""The episodes of a split as a table to search, filter and sort; it reads the mapped columns of the index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pairstream.info.overview import count_samples, parse_value, samples_of
from stream.format.catalog import Dataset
from stream.format.index import SplitIndex
from stream.format.names import MOTION
from stream.format.table import Column
from stream.sample.filters import canonical_conditions, parse_conditions

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK = 1 << 20
"""Steps that are read together."""
_LOCATIONS = ("episode", "shard", "first_steps_row", "first_record", "source_position")
"""Columns of ``episodes`` with the location of a row, not its content."""
_FIRST = ("num_steps", "num_records", "status", "language", "robot")
_LAST = ("episode_id", "source_file")


@dataclass(frozen=True)
class Query:
    """A choice among the episodes of a split, and their order.

    Attributes:
        search: Text that the instruction or the id contains, in any case; or the number of the episode.
        where: Conditions as for ``stream.Select``; an episode stays if one of its samples fulfils all conditions.
        sort: Column to sort by.
        descending: Whether the largest value comes first; rows without a value always come last.
    """

    search: str = ""
    where: tuple[tuple[str, str, Any], ...] = ()
    sort: str = "episode"
    descending: bool = False


class EpisodeTable:
    """The episodes of a split."""

    def __init__(self, dataset: Dataset, index: SplitIndex) -> None:
        self.index = index
        self.samples = samples_of(dataset)
        self._steps_means = lru_cache(8)(self._mean_of_steps)

    def __len__(self) -> int:
        return len(self.index.episodes)

    @cached_property
    def columns(self) -> list[str]:
        """Columns to show and sort by: those of ``episodes``, and ``mean of NAME`` for numbers of ``steps``."""
        episodes, steps = self.index.episodes.columns, self.index.steps.columns
        listed = {*_LOCATIONS, *_FIRST, *_LAST}
        further = [name for name, column in episodes.items() if name not in listed and _is_single(column)]
        averaged = [name for name, column in steps.items() if _is_single(column) and not column.texts]
        means = [f"mean of {name}" for name in averaged if name not in ("episode", "step")]
        return [*_FIRST, *further, *sorted(means, key=f"mean of {MOTION}".__ne__), *_LAST]

    @property
    def success(self) -> str | None:
        """Column that says whether an episode succeeded, or None."""
        return next((name for name in self.columns if name.rpartition("/")[2] == "success"), None)

    @cached_property
    def filter_columns(self) -> list[str]:
        """Columns that a filter may name."""
        tables = (self.index.steps, self.index.episodes)
        column_names = [name for table in tables for name, column in table.columns.items() if _has_values(column)]
        return [column_name for column_name in dict.fromkeys(column_names) if column_name not in _LOCATIONS[1:4]]

    def find(self, query: Query) -> tuple[np.ndarray, int | None]:
        """Return the episodes of a query in order, int64 [n], and how many samples they keep, None without conditions.

        Raises ArgumentError for a malformed filter, FormatError for damage.
        """
        is_kept = self._search(query.search) if query.search else np.ones(len(self), bool)
        samples = None
        if query.where:
            (conditions,) = parse_conditions(list(query.where), [self.index.dataset]).values()
            sample_counts = count_samples(self.index, conditions, self.samples)
            is_kept &= sample_counts > 0
            samples = int(sample_counts[is_kept].sum())
        episodes = np.flatnonzero(is_kept)
        if query.sort != "episode":
            sort_keys = self.sort_key(query.sort)[episodes]
            # NaN stays last either way.
            episodes = episodes[np.argsort(-sort_keys if query.descending else sort_keys, kind="stable")]
        elif query.descending:
            episodes = episodes[::-1]
        return episodes, samples

    def sort_key(self, column_name: str) -> np.ndarray:
        """Return numbers in the order of a column's values, float64 [episodes]; NaN for a missing value."""
        if column_name.startswith("mean of ") and column_name in self.columns:
            return self._steps_means(column_name.removeprefix("mean of "))
        table = self.index.episodes
        row_numbers = np.arange(len(table))
        column = table.columns[column_name]
        if column.texts is not None:
            import pyarrow.compute as pc

            # A column of few texts has numbers of a dictionary, whose texts are sorted instead of all rows.
            is_dictionary, texts = column.dtype is not None, self._arrow_column(column_name)
            ranks = pc.rank(texts.dictionary if is_dictionary else texts, tiebreaker="first").to_numpy()
            sort_keys = (ranks[table.take(column_name, row_numbers)] if is_dictionary else ranks).astype(np.float64)
        else:
            sort_keys = table.take(column_name, row_numbers).astype(np.float64).reshape(len(row_numbers))
        is_valid = table.valid(column_name, row_numbers)
        return sort_keys if is_valid is None else np.where(is_valid, sort_keys, np.nan)

    def values(self, column_name: str, episodes: np.ndarray) -> list[Any]:
        """Return the values of a column for some episodes; None for a missing one."""
        if column_name.startswith("mean of "):
            means = self._steps_means(column_name.removeprefix("mean of "))[episodes]
            return [None if np.isnan(value) else float(f"{value:.4g}") for value in means]
        table = self.index.episodes
        column = table.columns[column_name]
        if column.texts is not None:
            return list(table.take_texts(column_name, episodes))
        numbers = table.take(column_name, episodes).reshape(len(episodes))
        values = (numbers.astype(bool) if column.bits else numbers).tolist()
        is_valid = table.valid(column_name, episodes)
        has_values = [True] * len(values) if is_valid is None else is_valid
        return [_short(value) if has_value else None for value, has_value in zip(values, has_values, strict=True)]

    def frequent_instructions(self, max_texts: int) -> tuple[list[tuple[str, int]], int]:
        """Return the most frequent instructions of episodes with their counts, and how many instructions there are."""
        counts = np.bincount(self.index.episodes.array("language"), minlength=1)
        frequent_first = np.argsort(-counts, kind="stable")[:max_texts].tolist()
        texts, text = self.index.episodes.columns["language"].texts, self.index.episodes.text
        instructions = [(text("language", number), int(counts[number])) for number in frequent_first if counts[number]]
        return instructions, texts.count if texts else 0

    def find_source(self, source_file: str, source_position: int) -> int | None:
        """Return the episode at a position of a source file, or None."""
        table = self.index.episodes
        source_files = table.columns["source_file"].texts
        for text_number in range(source_files.count if source_files else 0):
            if table.text("source_file", text_number) == source_file:
                is_match = table.array("source_file") == text_number
                is_match &= table.array("source_position") == source_position
                return next(iter(np.flatnonzero(is_match).tolist()), None)
        return None

    def find_ids(self, episode_ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the given episode ids, without ids that this split lacks."""
        import pyarrow as pa
        import pyarrow.compute as pc

        is_known = pc.is_in(self._arrow_column("episode_id"), pa.array(episode_ids, pa.large_string()))
        row_numbers = np.flatnonzero(is_known.to_numpy(zero_copy_only=False))
        return dict(zip(self.index.episodes.take_texts("episode_id", row_numbers), row_numbers.tolist(), strict=True))

    def _search(self, search_text: str) -> np.ndarray:
        import pyarrow.compute as pc

        def contains(text_array: pa.Array) -> np.ndarray:
            is_match = pc.match_substring(text_array, search_text, ignore_case=True).fill_null(False)
            return np.asarray(is_match.to_numpy(zero_copy_only=False), bool)

        is_instruction = np.append(contains(self._arrow_column("language").dictionary), False)
        is_kept = is_instruction[self.index.episodes.array("language")] | contains(self._arrow_column("episode_id"))
        if search_text.isascii() and search_text.isdigit() and len(search_text) < 10 and int(search_text) < len(self):
            is_kept[int(search_text)] = True
        return is_kept

    def _mean_of_steps(self, column_name: str) -> np.ndarray:
        step_table, num_steps = self.index.steps, len(self.index.steps)
        step_sums, step_counts = np.zeros(len(self)), np.zeros(len(self), np.int64)
        episode_numbers = step_table.array("episode")
        for chunk_start in range(0, num_steps, _CHUNK):
            row_numbers = np.arange(chunk_start, min(chunk_start + _CHUNK, num_steps))
            step_values = step_table.take(column_name, row_numbers).reshape(len(row_numbers)).astype(np.float64)
            is_finite = np.isfinite(step_values)
            if (is_valid := step_table.valid(column_name, row_numbers)) is not None:
                is_finite &= is_valid
            chunk_episodes = episode_numbers[chunk_start : chunk_start + len(row_numbers)][is_finite]
            step_sums += np.bincount(chunk_episodes, step_values[is_finite], minlength=len(self))[: len(self)]
            step_counts += np.bincount(chunk_episodes, minlength=len(self))[: len(self)]
            step_table.forget()
        return np.divide(step_sums, step_counts, out=np.full(len(self), np.nan), where=step_counts > 0)

    def _arrow_column(self, column_name: str) -> pa.Array:
        return self.index.episodes.arrow().column(column_name).chunk(0)


def _is_single(column: Column) -> bool:
    """Return whether a row of a column is one number or text."""
    return _has_values(column) and (column.width or 1) == 1


def _has_values(column: Column) -> bool:
    """Return whether a column has numbers or texts, so that a filter takes it: vectors by ``is_finite``."""
    return column.dtype is not None or column.texts is not None


def _short(value: float | int) -> float | int:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def read_filter(column: str, operator: str, value_text: str) -> tuple[str, str, Any]:
    """Return a condition whose value was typed as JSON, or as plain text; raise ArgumentError if it is malformed.

    >>> read_filter("step", ">", "3"), read_filter("language", "contains", "cup")
    (('step', '>', 3), ('language', 'contains', 'cup'))
    """
    value = value_text if operator in ("contains", "matches") else parse_value(value_text)
    ((column, operator, value),) = canonical_conditions([(column, operator, value)])
    return column, operator, value
