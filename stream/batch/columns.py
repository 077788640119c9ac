"""Columns of the index that a caller adds to a batch, as arrays or texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stream.base.errors import ArgumentError, closest
from stream.format.index import SplitIndex
from stream.format.names import SEARCHED, TableKind, tables_of
from stream.order.random_numbers import uniform
from stream.order.shuffle import make_key


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
    found = tuple(find_column(name, splits, datasets, what="language") for name in names)
    for column in found:
        if column.dtype is not None:
            raise ArgumentError(f"language: {column.name!r} has numbers; give columns of texts")
    return found


def draw_texts(
    columns: Sequence[Column], split: SplitIndex, at: Mapping[TableKind, np.ndarray], samples: np.ndarray, *, seed: int
) -> list[str]:
    """Return one of several texts of each sample, drawn evenly from those that are not empty; or the empty text.

    Args:
        columns: Columns of texts.
        split: Split of the samples.
        at: Rows of the samples in each table, int64 [n].
        samples: Global numbers of the samples, int64 [n].
        seed: Seed of the draws.
    """
    found = [
        split.table(kind).take_texts(column.column, at[kind])
        for column in columns
        if (kind := column.kinds[split.member]) is not None
    ]
    told = [[text for text in texts if text] for texts in zip(*found, strict=True)] or [[]] * len(samples)
    drawn = uniform(make_key(seed, "language"), samples).tolist()
    return [own[int(place * len(own))] if own else "" for own, place in zip(told, drawn, strict=True)]


def find_column(name: str, splits: Sequence[SplitIndex], datasets: Sequence[str], *, what: str = "columns") -> Column:
    """Find a column in the tables of all members.

    Args:
        name: Column of ``steps``, ``episodes`` or ``records``, in this order; ``episodes.language`` names the table.
        splits: A split of each member.
        datasets: Names of the members, for messages.
        what: Argument that names the column, for messages.

    Raises:
        ArgumentError: No member has the column, its kinds differ, or it is a list.
    """
    searched, column = tables_of(name)
    kinds = tuple(next((kind for kind in searched if column in split.table(kind).columns), None) for split in splits)
    found = {
        dataset: split.table(kind).columns[column]
        for dataset, split, kind in zip(datasets, splits, kinds, strict=True)
        if kind is not None
    }
    if not found:
        known = {column for split in splits for kind in SEARCHED for column in split.table(kind).columns}
        raise ArgumentError(f"{what}: no dataset of the mixture has {name!r}; {closest(name, known, noun='columns')}")
    for dataset, each in found.items():
        if each.texts is None and each.dtype is None:
            raise ArgumentError(
                f"{what}: {name!r} of dataset {dataset} is a list; numbers and single texts can be loaded"
            )
    if len({each.texts is None for each in found.values()}) == 2:
        raise ArgumentError(
            f"{what}: {name!r} is text in some datasets and numbers in others; load the datasets separately"
        )
    if any(each.texts is not None for each in found.values()):
        return Column(name, column, kinds, None, None)
    widths = [each.width for each in found.values() if each.width is not None]
    dtype = np.result_type(*(np.dtype(bool if each.bits else each.dtype) for each in found.values()))
    return Column(name, column, kinds, dtype.str, max(widths, default=None))
