"""Columns of the index on request: how a column of any table becomes an array or texts of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream.format.index import SplitIndex
from stream.format.names import TABLE_KINDS, TableKind
from stream.storage.errors import ArgumentError, closest


@dataclass(frozen=True)
class Column:
    """A column as a mixture has it.

    Attributes:
        name: Key in the batch.
        column: Name in the table.
        kinds: Table in which each member has it, None where it has not.
        dtype: Type of its numbers, None for texts.
        size: Values of the largest member, None if it is one number in all of them.
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
    """Look for a column in the tables of all members.

    Args:
        name: Column of ``episodes``, ``steps`` or ``records``, looked for in this order, or ``steps.language`` to say
            which.
        splits: A split of each member.
        datasets: Names of the members, for messages.

    Raises:
        ArgumentError: No member has it, or it is text in one and numbers in another, or of neither.
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
        raise ArgumentError(f"columns: {name!r} is text in some datasets and numbers in others; load them apart")
    if texts:
        return Column(name, column, tuple(kinds), None, None)
    size = None if all(size is None for size in sizes) else max(size or 1 for size in sizes)
    return Column(name, column, tuple(kinds), np.result_type(*dtypes).str, size)
