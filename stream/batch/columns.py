"""Columns of the index that a caller adds to a batch, as arrays or texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream.format.index import SplitIndex
from stream.format.names import TABLE_KINDS, TableKind
from stream.storage.errors import ArgumentError, closest


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


def find_column(name: str, splits: Sequence[SplitIndex], datasets: Sequence[str]) -> Column:
    """Find a column in the tables of all members.

    Args:
        name: Column of ``episodes``, ``steps`` or ``records``, in this order; ``steps.language`` names the table.
        splits: A split of each member.
        datasets: Names of the members, for messages.

    Raises:
        ArgumentError: No member has the column, its kinds differ, or it is a list.
    """
    first, _, rest = name.partition(".")
    allowed, column = ((first,), rest) if first in TABLE_KINDS and rest else (TABLE_KINDS, name)
    kinds: list[TableKind | None] = []
    dtypes: list[np.dtype] = []
    sizes: list[int | None] = []
    texts = 0
    for split, dataset in zip(splits, datasets, strict=True):
        kind = next((kind for kind in TABLE_KINDS if kind in allowed and column in split.table(kind).columns), None)
        kinds.append(kind)
        if kind is None:
            continue
        found = split.table(kind).columns[column]
        if found.texts is not None:
            texts += 1
        elif found.dtype is not None:
            dtypes.append(np.dtype(bool if found.bits else found.dtype))
            sizes.append(found.width)
        else:
            raise ArgumentError(
                f"columns: {name!r} of dataset {dataset} is a list; numbers and single texts can be loaded"
            )
    if not any(kinds):
        known = {column for split in splits for kind in TABLE_KINDS for column in split.table(kind).columns}
        raise ArgumentError(f"columns: no dataset of the mixture has {name!r}; {closest(name, known, noun='columns')}")
    if texts and dtypes:
        raise ArgumentError(f"columns: {name!r} is text in some datasets and numbers in others; load them separately")
    if texts:
        return Column(name, column, tuple(kinds), None, None)
    size = None if all(size is None for size in sizes) else max(size or 1 for size in sizes)
    return Column(name, column, tuple(kinds), np.result_type(*dtypes).str, size)
