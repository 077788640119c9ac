"""Tables of all splits of a mixture, mapped as one region of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from stream.base.errors import FormatError
from stream.format.index import SplitIndex
from stream.format.names import TABLE_KINDS, TableKind
from stream.format.table import Table
from stream.storage.region import Region


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
        self, splits: Sequence[SplitIndex], used_columns: Callable[[SplitIndex], Iterable[tuple[TableKind, str]]]
    ) -> None:
        tables = [split.table(kind) for split in splits for kind in TABLE_KINDS]
        needed = [(split.table(kind), column_name) for split in splits for kind, column_name in used_columns(split)]
        # Labels have separate files, of which the needed ones are mapped.
        needed_paths = [table.file_of(column_name) for table, column_name in needed]
        paths = dict.fromkeys([*(table.path for table in tables), *needed_paths])
        region = Region(list(paths))
        # Tables read texts from the region, as a worker would otherwise map each file once more.
        files = dict(zip(paths, region.files, strict=True))
        for table in tables:
            table.__dict__.setdefault("content", files[table.path])
        columns = [table.columns[column_name] for table, column_name in needed]
        for label_file in {column.file for column in columns}:
            if label_file is not None:
                label_file.check()
        self._starts = dict(zip(paths, region.starts, strict=True))
        self.int32, self.int64, self.float32 = region.view("<i4"), region.view("<i8"), region.view("<f4")
        column_starts = [self._starts[path] for path in needed_paths]
        region.read_ahead(
            [
                (file_start + start, file_start + stop)
                for file_start, column in zip(column_starts, columns, strict=True)
                for start, stop in column.spans
            ]
        )
        self.row_counts = {kind: np.array([len(split.table(kind)) for split in splits]) for kind in TABLE_KINDS}

    def starts(self, tables: Sequence[Table | None], column_name: str, itemsize: int) -> np.ndarray:
        """Return the index of the first number of a column in each split, int64 [splits]; 0 without a table.

        Raises:
            FormatError: The column is not aligned to ``itemsize``.
        """
        starts = np.zeros(len(tables), np.int64)
        for number, table in enumerate(tables):
            if table is not None:
                table_path = table.file_of(column_name)
                starts[number], remainder = divmod(self._starts[table_path] + table.columns[column_name].data, itemsize)
                if remainder:
                    raise FormatError(
                        f"{table_path}: column {column_name!r} does not start at a multiple of {itemsize} bytes"
                    )
        return starts
