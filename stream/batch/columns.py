"""Columns of the index that a caller adds to a batch, as arrays or texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stream.base.errors import ArgumentError, closest
from stream.base.random_numbers import make_key, uniform
from stream.format.index import SplitIndex
from stream.format.names import SEARCHED, TableKind, tables_of


@dataclass(frozen=True)
class Column:
    """A column of a mixture.

    Attributes:
        name: Key in the batch.
        column: Name in the table.
        kinds: Table of the column in each member, None where the member lacks the column.
        dtype: Type of the numbers, None for texts.
        size: Largest number of values in a member, None if all members have a single number.
    """

    name: str
    column: str
    kinds: tuple[TableKind | None, ...]
    dtype: str | None
    size: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return () if self.size is None else (self.size,)


def find_texts(names: Sequence[str], splits: Sequence[SplitIndex], datasets: Sequence[str]) -> tuple[Column, ...]:
    """Find the columns of ``language``, as ``find_column`` does; raise ArgumentError if one has no texts."""
    columns = tuple(find_column(name, splits, datasets, argument="language") for name in names)
    for column in columns:
        if column.dtype is not None:
            raise ArgumentError(f"language: {column.name!r} has numbers; give columns of texts")
    return columns


def draw_texts(
    columns: Sequence[Column],
    split_index: SplitIndex,
    table_rows: Mapping[TableKind, np.ndarray],
    samples: np.ndarray,
    *,
    seed: int,
) -> list[str]:
    """Return one of several texts of each sample, drawn evenly from those that are not empty; or the empty text.

    Args:
        columns: Columns of texts.
        split_index: Split of the samples.
        table_rows: Rows of the samples in each table, int64 [n].
        samples: Global numbers of the samples, int64 [n].
        seed: Seed of the draws.
    """
    column_texts = [
        split_index.table(table_kind).take_texts(column.column, table_rows[table_kind])
        for column in columns
        if (table_kind := column.kinds[split_index.member]) is not None
    ]
    draws = uniform(make_key(seed, "language"), samples).tolist()
    drawn_texts = [""] * len(samples)
    for sample, texts in enumerate(zip(*column_texts, strict=True)):
        if choices := list(filter(None, texts)):
            drawn_texts[sample] = choices[int(draws[sample] * len(choices))]
    return drawn_texts


def find_column(
    name: str, splits: Sequence[SplitIndex], datasets: Sequence[str], *, argument: str = "columns"
) -> Column:
    """Find a column in the tables of all members.

    Args:
        name: Column of ``steps``, ``episodes`` or ``records``, in this order; ``episodes.language`` names the table.
        splits: A split of each member.
        datasets: Names of the members, for messages.
        argument: Argument that names the column, for messages.

    Raises:
        ArgumentError: No member has the column, its kinds differ, or it is a list.
    """
    searched_kinds, table_column = tables_of(name)
    kinds: list[TableKind | None] = []
    columns = {}
    for dataset_name, split_index in zip(datasets, splits, strict=True):
        kind = next((kind for kind in searched_kinds if table_column in split_index.table(kind).columns), None)
        kinds.append(kind)
        if kind is not None:
            columns[dataset_name] = split_index.table(kind).columns[table_column]
    if not columns:
        available = set[str]().union(*(split_index.table(kind).columns for split_index in splits for kind in SEARCHED))
        raise ArgumentError(
            f"{argument}: no dataset of the mixture has {name!r}; {closest(name, available, noun='columns')}"
        )
    for dataset_name, column in columns.items():
        if column.texts is None and column.dtype is None:
            raise ArgumentError(
                f"{argument}: {name!r} of dataset {dataset_name} is a list; numbers and single texts can be loaded"
            )
    are_texts = {column.texts is not None for column in columns.values()}
    if len(are_texts) == 2:
        raise ArgumentError(
            f"{argument}: {name!r} is text in some datasets and numbers in others; load the datasets separately"
        )
    if True in are_texts:
        return Column(name, table_column, tuple(kinds), None, None)
    widths = [column.width for column in columns.values() if column.width is not None]
    dtype = np.result_type(*(np.dtype(bool if column.bits else column.dtype) for column in columns.values()))
    return Column(name, table_column, tuple(kinds), dtype.str, max(widths, default=None))
