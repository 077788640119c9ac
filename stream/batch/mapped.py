"""The tables of all splits of a mixture, mapped as one region of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from stream.base.errors import FormatError
from stream.batch.region import Region
from stream.format.index import SplitIndex
from stream.format.names import TABLE_KINDS, TableKind
from stream.format.table import Table


class MappedIndex:
    """Columns of the tables of some splits, as numbers in one region.

    Args:
        splits: Splits.
        used: Returns the columns of a split that batches need, which are read ahead.

    Attributes:
        int32, int64, float32: The region as numbers of a type.
        row_counts: Rows of each split's tables, by kind, int64 [splits].

    Raises:
        OSError: A table cannot be mapped.
    """

    def __init__(
        self, splits: Sequence[SplitIndex], used: Callable[[SplitIndex], Iterable[tuple[TableKind, str]]]
    ) -> None:
        tables = [split.table(kind) for split in splits for kind in TABLE_KINDS]
        needed = [(split.table(kind), name) for split in splits for kind, name in used(split)]
        # Labels have files of their own, of which those that batches need are mapped.
        paths = dict.fromkeys([*(table.path for table in tables), *(table.file_of(name) for table, name in needed)])
        region = Region(list(paths))
        # Texts are read from them, for which a worker would map each file once more.
        files = dict(zip(paths, region.files, strict=True))
        for table in tables:
            table.__dict__.setdefault("content", files[table.path])
        for file in {table.columns[name].file for table, name in needed}:
            if file is not None:
                file.check()
        self._starts = dict(zip(paths, region.starts, strict=True))
        self.int32, self.int64, self.float32 = region.view("<i4"), region.view("<i8"), region.view("<f4")
        region.read_ahead(
            [
                (self._starts[table.file_of(name)] + start, self._starts[table.file_of(name)] + stop)
                for table, name in needed
                for start, stop in table.columns[name].spans
            ]
        )
        self.row_counts = {
            kind: np.array([len(split.table(kind)) for split in splits], np.int64) for kind in TABLE_KINDS
        }

    def starts(self, tables: Sequence[Table | None], column: str, size: int) -> np.ndarray:
        """Return the index of the first number of a column in each split, int64 [splits].

        Args:
            tables: Table of each split, or None for a split that is not read: its start is 0.
            column: Name of the column.
            size: Bytes of a number.

        Raises:
            FormatError: The column is not aligned.
        """
        return np.array([0 if table is None else self._find(table, column, size) for table in tables], np.int64)

    def _find(self, table: Table, column: str, size: int) -> int:
        offset: int = self._starts[table.file_of(column)] + table.columns[column].data
        if offset % size:
            raise FormatError(
                f"{table.file_of(column)}: column {column!r} does not begin at a multiple of {size} bytes"
            )
        return offset // size
