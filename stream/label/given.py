"""A table with labels as a user gives it: a file, a folder of files or a table in memory, read batch by batch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from stream.base.errors import ArgumentError, closest
from stream.storage.remote import is_remote

_FORMATS = {".parquet": "parquet", ".csv": "csv", ".arrow": "ipc", ".feather": "ipc", ".ipc": "ipc"}
"""Formats by the end of the name."""
EPISODE_KEYS = ("episode", "episode_id", "episode_index")
STEP_KEYS = ("step", "frame_index")
RANGE_KEYS = ("start", "stop")
KEYS = ("dataset", *EPISODE_KEYS, *STEP_KEYS, *RANGE_KEYS, "index")
"""Columns that say which steps a row is of; all others are labels."""
_BATCH = 8 << 20
"""Bytes of the rows of a batch, about."""
_MOST_ROWS = 1 << 17
_LOOKED_AT = 64 << 20
"""Bytes of a CSV file from which Arrow learns the types of its columns."""


@dataclass(frozen=True, eq=False)
class GivenTable:
    """A table to attach.

    Attributes:
        where: Name for messages.
        schema: Columns.
        content: Dataset of Arrow, or a reader that can be read once.
    """

    where: str
    schema: pa.Schema
    content: ds.Dataset | pa.RecordBatchReader

    def keys(self) -> list[str]:
        """Return the columns that are keys."""
        return [name for name in self.schema.names if name in KEYS]

    def chosen(self, columns: Sequence[str] | None) -> list[str]:
        """Return the columns that become labels.

        Args:
            columns: Their names, None for all that are no keys and no masks.

        Raises:
            ArgumentError: There is none, a name is unknown or a key, a mask is not of booleans, or the table has a
                column twice.
        """
        names = self.schema.names
        for name in names:
            if names.count(name) > 1:
                raise ArgumentError(f"{self.where}: has two columns {name!r:.80}")
        known = [name for name in names if name not in KEYS]
        for name in columns or ():
            if name not in known:
                what = "is a key" if name in names else closest(name, known, noun="columns")
                raise ArgumentError(f"{self.where}: no column {name!r:.80} to attach; {what}")
        for name in known if columns is None else columns:
            self._check_mask(name, columns or ())
        masks = {self.mask_of(name) for name in known}
        found = list(dict.fromkeys(columns if columns is not None else [name for name in known if name not in masks]))
        if not found:
            raise ArgumentError(
                f"{self.where}: has no column to attach beside its keys; its columns are {', '.join(names) or 'none'}"
            )
        return found

    def mask_of(self, column: str) -> str | None:
        """Return the column ``<name>_mask`` that says which rows have a value, as in batches and exports; or None."""
        mask = f"{column}_mask"
        return mask if mask in self.schema.names and pa.types.is_boolean(self.schema.field(mask).type) else None

    def _check_mask(self, column: str, columns: Sequence[str]) -> None:
        """Raise ArgumentError if ``<name>_mask`` is not of booleans, and not one of the columns to attach itself."""
        mask = f"{column}_mask"
        if mask in self.schema.names and mask not in columns and self.mask_of(column) is None:
            raise ArgumentError(
                f"{self.where}: column {mask!r:.80} is {self.schema.field(mask).type}; expected the mask of "
                f"{column!r:.80}, true or false: make it one, rename it, or name both with --columns as labels"
            )

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns.

        Raises:
            ArgumentError: The table cannot be read.
        """
        width = sum(_width(self.schema.field(name).type) for name in columns)
        rows = max(1, min(_MOST_ROWS, _BATCH // width))
        try:
            if isinstance(self.content, pa.RecordBatchReader):
                for batch in self.content:
                    for start in range(0, batch.num_rows, rows):
                        yield batch.select(list(columns)).slice(start, rows)
                return
            # Few batches ahead: rows of long vectors are large.
            yield from self.content.to_batches(
                columns=list(columns), batch_size=rows, batch_readahead=2, fragment_readahead=1
            )
        except (pa.ArrowException, OSError) as error:
            raise ArgumentError(f"{self.where}: cannot be read ({' '.join(str(error).split())[:300]})") from None


def open_given(table: Any) -> GivenTable:
    """Open a table.

    Args:
        table: Parquet, CSV or Arrow file (``.parquet``, ``.csv``, ``.arrow``, ``.feather``), a folder of such files of
            one kind, a table of pyarrow or pandas, or a mapping of names to columns.

    Raises:
        ArgumentError: It is something else, or cannot be read.
    """
    if isinstance(table, str | os.PathLike):
        return _open_file(os.fspath(table))
    pandas = sys.modules.get("pandas")
    try:
        if isinstance(table, Mapping):
            table = pa.table(dict(table))
        elif pandas is not None and isinstance(table, pandas.DataFrame):
            table = pa.Table.from_pandas(table, preserve_index=False)
        if isinstance(table, pa.RecordBatch | pa.Table):
            table = ds.dataset(table)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ArgumentError(f"the table cannot be read ({' '.join(str(error).split())[:300]})") from None
    if not isinstance(table, ds.Dataset | pa.RecordBatchReader):
        raise ArgumentError(
            f"table={table!r:.100}; expected a parquet, CSV or Arrow file, a table of pyarrow or pandas, or a mapping"
        )
    return GivenTable("the table", table.schema, table)


def _open_file(path: str) -> GivenTable:
    if is_remote(path):
        raise ArgumentError(f"{path}: expected a local file; copy the table here first")
    if not os.path.exists(path):
        raise ArgumentError(f"{path}: no such file; expected a table in a parquet, CSV or Arrow file")
    files = [path]
    if os.path.isdir(path):
        files = sorted(
            str(file) for file in Path(path).rglob("*") if file.suffix.lower() in _FORMATS and file.is_file()
        )
    kinds = {_FORMATS.get(os.path.splitext(file)[1].lower()) for file in files}
    if len(kinds) != 1 or kinds == {None}:
        raise ArgumentError(
            f"{path}: expected a file, or a folder of files of one kind, that end in {', '.join(_FORMATS)}"
        )
    (kind,) = kinds
    try:
        content = ds.dataset(files, format=_read_options(kind))
        _check_same(content, with_types=kind != "csv")
    except ArgumentError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ArgumentError(f"{path}: cannot be read ({' '.join(str(error).split())[:300]})") from None
    return GivenTable(path, content.schema, content)


def _check_same(content: ds.FileSystemDataset, *, with_types: bool) -> None:
    """Raise ArgumentError if the files of a table differ in their columns: Arrow would read nulls, or drop columns."""

    def columns(schema: pa.Schema) -> list[str]:
        return sorted(f"{field.name} {field.type}" if with_types else field.name for field in schema)

    expected = columns(content.schema)
    for fragment in content.get_fragments():
        if (here := columns(fragment.physical_schema)) != expected:
            raise ArgumentError(
                f"{fragment.path}: has the columns {', '.join(here)}, and {content.files[0]} in the same folder has "
                f"{', '.join(expected)}; attach tables with other columns one by one"
            )


def _read_options(kind: str | None) -> ds.FileFormat:
    if kind == "parquet":
        # Without these a whole row group is in memory at once.
        scanned = ds.ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False)
        return ds.ParquetFileFormat(default_fragment_scan_options=scanned)
    if kind == "ipc":
        return ds.IpcFileFormat()
    from pyarrow import csv

    # An id such as 0012 is no number.
    converted = csv.ConvertOptions(column_types={"episode_id": pa.string()})
    return ds.CsvFileFormat(
        default_fragment_scan_options=ds.CsvFragmentScanOptions(
            convert_options=converted, read_options=csv.ReadOptions(block_size=_LOOKED_AT)
        )
    )


def _width(kind: pa.DataType) -> int:
    """Return the bytes of a value, guessed for those of variable size."""
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return 512 * _width(kind.value_type)
    return max(1, kind.bit_width // 8) if pa.types.is_primitive(kind) else 64
