"""A table of labels from a user: a file, a folder of files or a table in memory, read batch by batch."""

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
"""Formats by file name suffix."""
EPISODE_KEYS = ("episode", "episode_id", "episode_index")
STEP_KEYS = ("step", "frame_index")
RANGE_KEYS = ("start", "stop")
KEYS = ("dataset", *EPISODE_KEYS, *STEP_KEYS, *RANGE_KEYS, "index")
"""Columns that identify the steps of a row; all others are labels."""
_BATCH = 8 << 20
"""Bytes of the rows of a batch, about."""
_MOST_ROWS = 1 << 17
_LOOKED_AT = 64 << 20
"""Bytes of a CSV file from which Arrow learns the types of its columns."""


@dataclass(frozen=True, eq=False)
class LabelTable:
    """A table to attach; ``name`` is for messages, and ``content`` may be a reader that can be read once."""

    name: str
    schema: pa.Schema
    content: ds.Dataset | pa.RecordBatchReader

    def keys(self) -> list[str]:
        """Return the columns that are keys."""
        return [column_name for column_name in self.schema.names if column_name in KEYS]

    def chosen(self, columns: Sequence[str] | None) -> list[str]:
        """Return the columns that become labels: ``columns``, or for None all that are no keys and no masks.

        Raises ArgumentError if no column remains, a name is unknown, twice or a key, or a mask is not of booleans.
        """
        column_names = self.schema.names
        for column_name in column_names:
            if column_names.count(column_name) > 1:
                raise ArgumentError(f"{self.name}: has two columns {column_name!r:.80}")
        attachable = [column_name for column_name in column_names if column_name not in KEYS]
        for column_name in columns or ():
            if column_name not in attachable:
                is_key = column_name in column_names
                problem = "is a key" if is_key else closest(column_name, attachable, noun="columns")
                raise ArgumentError(f"{self.name}: no column {column_name!r:.80} to attach; {problem}")
        for column_name in attachable if columns is None else columns:
            self._check_mask(column_name, columns or ())
        if columns is None:
            mask_columns = {self.mask_of(column_name) for column_name in attachable}
            columns = [column_name for column_name in attachable if column_name not in mask_columns]
        if not columns:
            named = ", ".join(column_names) or "none"
            raise ArgumentError(f"{self.name}: has no column to attach except its keys; its columns are {named}")
        return list(dict.fromkeys(columns))

    def mask_of(self, column: str) -> str | None:
        """Return the column ``<name>_mask`` of booleans, as in batches, that marks rows with a value, or None."""
        mask_name = f"{column}_mask"
        is_mask = mask_name in self.schema.names and pa.types.is_boolean(self.schema.field(mask_name).type)
        return mask_name if is_mask else None

    def _check_mask(self, column: str, columns: Sequence[str]) -> None:
        """Raise ArgumentError if ``<name>_mask`` is not of booleans, and not one of the columns to attach itself."""
        mask_name = f"{column}_mask"
        if mask_name in self.schema.names and mask_name not in columns and self.mask_of(column) is None:
            raise ArgumentError(
                f"{self.name}: column {mask_name!r:.80} is {self.schema.field(mask_name).type}; expected the mask of "
                f"{column!r:.80}, true or false: make it one, rename it, or name both with --columns as labels"
            )

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns; raise ArgumentError if the table cannot be read."""
        row_bytes = sum(_width(self.schema.field(column_name).type) for column_name in columns)
        batch_rows = max(1, min(_MOST_ROWS, _BATCH // row_bytes))
        try:
            if isinstance(self.content, pa.RecordBatchReader):
                for batch in self.content:
                    for first_row in range(0, batch.num_rows, batch_rows):
                        yield batch.select(list(columns)).slice(first_row, batch_rows)
                return
            # Few batches ahead: rows of long vectors are large.
            yield from self.content.to_batches(
                columns=list(columns), batch_size=batch_rows, batch_readahead=2, fragment_readahead=1
            )
        except (pa.ArrowException, OSError) as error:
            raise ArgumentError(f"{self.name}: cannot be read ({' '.join(str(error).split())[:300]})") from None


def open_label_table(table: Any) -> LabelTable:
    """Open a table of labels; raise ArgumentError if it is something else, or cannot be read.

    Args:
        table: Parquet, CSV or Arrow file (``.parquet``, ``.csv``, ``.arrow``, ``.feather``), a folder of such files of
            one kind, a table of pyarrow or pandas, or a mapping of names to columns.
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
    return LabelTable("the table", table.schema, table)


def _open_file(table_path: str) -> LabelTable:
    if is_remote(table_path):
        raise ArgumentError(f"{table_path}: expected a local file; copy the table here first")
    if not os.path.exists(table_path):
        raise ArgumentError(f"{table_path}: no such file; expected a table in a parquet, CSV or Arrow file")
    table_files = [table_path]
    if os.path.isdir(table_path):
        files = (path for path in Path(table_path).rglob("*") if path.suffix.lower() in _FORMATS and path.is_file())
        table_files = sorted(map(str, files))
    file_formats = {_FORMATS.get(os.path.splitext(table_file)[1].lower()) for table_file in table_files}
    if len(file_formats) != 1 or file_formats == {None}:
        raise ArgumentError(
            f"{table_path}: expected a file, or a folder of files of one kind, that end in {', '.join(_FORMATS)}"
        )
    (file_format,) = file_formats
    try:
        content = ds.dataset(table_files, format=_read_options(file_format))
        _check_same(content, with_types=file_format != "csv")
    except ArgumentError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ArgumentError(f"{table_path}: cannot be read ({' '.join(str(error).split())[:300]})") from None
    return LabelTable(table_path, content.schema, content)


def _check_same(table_files: ds.FileSystemDataset, *, with_types: bool) -> None:
    """Raise ArgumentError if the files of a table differ in their columns: Arrow would read nulls, or drop columns."""

    def columns(schema: pa.Schema) -> list[str]:
        return sorted(f"{field.name} {field.type}" if with_types else field.name for field in schema)

    first_columns = columns(table_files.schema)
    for fragment in table_files.get_fragments():
        if (fragment_columns := columns(fragment.physical_schema)) != first_columns:
            raise ArgumentError(
                f"{fragment.path}: has the columns {', '.join(fragment_columns)}, and {table_files.files[0]} in the "
                f"same folder has {', '.join(first_columns)}; attach tables with other columns one by one"
            )


def _read_options(file_format: str | None) -> ds.FileFormat:
    if file_format == "parquet":
        # Without these a whole row group is in memory at once.
        scan_options = ds.ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False)
        return ds.ParquetFileFormat(default_fragment_scan_options=scan_options)
    if file_format == "ipc":
        return ds.IpcFileFormat()
    from pyarrow import csv

    # An id such as 0012 is no number.
    convert_options = csv.ConvertOptions(column_types={"episode_id": pa.string()})
    return ds.CsvFileFormat(
        default_fragment_scan_options=ds.CsvFragmentScanOptions(
            convert_options=convert_options, read_options=csv.ReadOptions(block_size=_LOOKED_AT)
        )
    )


def _width(value_type: pa.DataType) -> int:
    """Return the bytes of a value, guessed for those of variable size."""
    if pa.types.is_fixed_size_list(value_type):
        return int(value_type.list_size) * _width(value_type.value_type)
    if pa.types.is_list(value_type) or pa.types.is_large_list(value_type):
        return 512 * _width(value_type.value_type)
    return max(1, value_type.bit_width // 8) if pa.types.is_primitive(value_type) else 64
