"""Tables of an index: mapped Arrow IPC files of one record batch, with columns as numpy arrays.

pyarrow finds the columns once, in ``open_table``; workers read them without pyarrow."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from stream.base.errors import FormatError
from stream.format.names import TableKind

if TYPE_CHECKING:
    import pyarrow as pa

    from stream.format.manifest import TableEntry

CHUNK = 4 << 20
"""Bytes of a file that are hashed at once."""
OTHER_FILE = "the file is damaged or belongs to another conversion"
MISSING = "missing, though the manifest names it; run the same `python -m convert.run` command again, or copy it again"
_COPY_LABEL = "copy it again, or remove it with `pairstream label ROOT DATASET --remove NAME`"
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""numpy's names of the types that Arrow names differently."""


@dataclass(frozen=True)
class Texts:
    """The location of ``count`` texts in a file.

    ``offsets`` is the byte offset of the int64 offsets of the texts in ``letters``, that of their UTF-8 bytes.
    """

    count: int
    offsets: int
    letters: int


@dataclass(frozen=True)
class AddedFile:
    """A file with further columns of a table, which another file of the same name may replace while it is in use."""

    path: str
    inode: int
    modified: int

    @classmethod
    def of(cls, file_path: str) -> AddedFile:
        """Return the file that has a path now."""
        file_status = os.stat(file_path)
        return cls(file_path, file_status.st_ino, file_status.st_mtime_ns)

    def check(self) -> None:
        """Raise FormatError if another file has the path now."""
        if self != AddedFile.of(self.path):
            advice = "processes that have it open continue, others cannot: open the data again"
            raise FormatError(f"{self.path}: was replaced since it was opened; {advice}")


@dataclass(frozen=True)
class Column:
    """The location of a column in a file.

    Attributes:
        dtype: Type of the numbers, or of the numbers of repeated texts; None for other types, such as lists.
        width: Numbers in a row, None for a single one.
        data: Byte offset of the numbers.
        bits: True for booleans, which are stored eight to a byte.
        validity: Byte offset of the bitmap of rows with a value, None if all rows have one.
        texts: Texts that the numbers stand for, or with ``dtype`` None one text a row.
        spans: (start, stop) in bytes of each buffer, for checksums.
        file: File that holds the column, None for the file of the table.
    """

    dtype: str | None
    width: int | None
    data: int
    bits: bool
    validity: int | None
    texts: Texts | None
    spans: tuple[tuple[int, int], ...]
    file: AddedFile | None = None

    def is_like(self, reference: Column) -> bool:
        """Return whether the columns have the same type."""
        mine, its = ((column.dtype, column.width, column.bits, column.texts is None) for column in (self, reference))
        return mine == its


class Table:
    """A table of an index. Its pickle holds only the location: the process that unpickles it maps the files again.

    Any method may raise OSError if a file cannot be mapped, and FormatError if a further file was replaced.
    """

    def __init__(self, path: str, num_rows: int, columns: Mapping[str, Column]) -> None:
        self.path = path
        self.rows = num_rows
        self.columns = dict(columns)
        self._added: dict[str, np.ndarray] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return Table, (self.path, self.rows, self.columns)

    def __len__(self) -> int:
        return self.rows

    @cached_property
    def content(self) -> np.ndarray:
        """Mapped bytes of the file, uint8."""
        return map_file(self.path)

    def with_columns(self, added_tables: Iterable[Table]) -> Table:
        """Return the table with the columns of other tables of as many rows; raise FormatError for a name twice."""
        columns = dict(self.columns)
        for table in added_tables:
            file = AddedFile.of(table.path)
            for name, column in table.columns.items():
                if name in columns:
                    raise FormatError(f"{table.path}: column {name!r} is also in {self.file_of(name)}; remove one")
                columns[name] = replace(column, file=file)
        joined = Table(self.path, self.rows, columns)
        joined.__dict__["content"] = self.content
        return joined

    def file_of(self, column_name: str) -> str:
        """Return the path of the file with a column, or the path of the table for an unknown column."""
        column = self.columns.get(column_name)
        return self.path if column is None or column.file is None else column.file.path

    def content_of(self, column: Column) -> np.ndarray:
        """Return the mapped bytes of the file with a column, uint8."""
        if column.file is None:
            return self.content
        file_path = column.file.path
        if file_path not in self._added:
            content = map_file(file_path)
            column.file.check()
            self._added[file_path] = content
        return self._added[file_path]

    def arrow(self) -> pa.Table:
        """Return the table as an Arrow table over the mapped files."""
        import pyarrow as pa

        batches = [_read_batch(self.path, self.content)]
        added = {column.file.path: column for column in self.columns.values() if column.file is not None}
        batches += [_read_batch(path, self.content_of(column)) for path, column in added.items()]
        fields = [field for batch in batches for field in batch.schema]
        schema = pa.schema(fields, metadata=batches[0].schema.metadata)
        return pa.Table.from_arrays([array for batch in batches for array in batch.columns], schema=schema)

    def array(self, column_name: str) -> np.ndarray:
        """Return a column of numbers, [rows] or [rows, width], over the mapped file; booleans are copied to uint8.

        The numbers of rows without a value are arbitrary, see ``valid``.
        """
        column = self.columns[column_name]
        if column.bits:
            return self.take(column_name, np.arange(self.rows))
        dtype = np.dtype(column.dtype)
        shape = (self.rows,) if column.width is None else (self.rows, column.width)
        return np.ndarray(shape, dtype, self.content_of(column), column.data)

    def take(self, name: str, row_numbers: np.ndarray) -> np.ndarray:
        """Return rows of a column of numbers, [n] or [n, width], in the column's type; booleans as uint8."""
        column = self.columns[name]
        if not column.bits:
            return np.asarray(self.array(name)[row_numbers])
        bit_indices = row_numbers
        if column.width is not None:
            bit_indices = row_numbers[:, None] * column.width + np.arange(column.width)
        return self._bits(column, column.data, bit_indices)

    def valid(self, column_name: str, rows: np.ndarray) -> np.ndarray | None:
        """Return which rows of a column have a value, bool [n]; None if every row of the table has."""
        column = self.columns[column_name]
        return None if column.validity is None else self._bits(column, column.validity, rows).astype(bool)

    def text(self, column_name: str, number: int) -> str:
        """Return a text by its number in the column's dictionary, or by its row in a column without a dictionary."""
        texts, content = self.columns[column_name].texts, self.content_of(self.columns[column_name])
        assert texts is not None, f"{column_name} is a column of texts"
        context = f"{self.file_of(column_name)}: column {column_name!r}"
        if not 0 <= number < texts.count:
            raise FormatError(f"{context} has text {number} of {texts.count}; it is damaged")
        start, stop = np.ndarray(2, np.int64, content, texts.offsets + 8 * number).tolist()
        try:
            return content[texts.letters + start : texts.letters + stop].tobytes().decode()
        except UnicodeDecodeError:
            raise FormatError(f"{context} has a text {number} that is not UTF-8; it is damaged") from None

    def take_texts(self, column_name: str, row_numbers: np.ndarray) -> list[str]:
        """Return rows of a column of texts; the text of a row without a value is empty."""
        valid = self.valid(column_name, row_numbers)
        is_dictionary = self.columns[column_name].dtype is not None
        text_numbers = (self.take(column_name, row_numbers) if is_dictionary else row_numbers).tolist()
        if valid is None:
            return [self.text(column_name, number) for number in text_numbers]
        numbered = zip(text_numbers, valid.tolist(), strict=True)
        return [self.text(column_name, number) if is_valid else "" for number, is_valid in numbered]

    def forget(self) -> None:
        """Release the pages that this process has read; the kernel's cache keeps them."""
        for content in (self.content, *self._added.values()):
            memory_map = getattr(content.base, "obj", None)
            if isinstance(memory_map, mmap.mmap):
                memory_map.madvise(mmap.MADV_DONTNEED)

    def _bits(self, column: Column, first_byte: int, bit_indices: np.ndarray) -> np.ndarray:
        return (self.content_of(column)[first_byte + (bit_indices >> 3)] >> (bit_indices & 7).astype(np.uint8)) & 1


def map_file(file_path: str) -> np.ndarray:
    """Map a file and return its bytes, uint8; raise OSError with the path."""
    with open(file_path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return np.zeros(0, np.uint8)
        try:
            memory_map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except OSError as error:
            error.filename = file_path
            raise
    return np.frombuffer(memory_map, np.uint8)


def open_table(
    path: str | Path, kind: TableKind | None, *, entry: TableEntry | None = None, rows: int | None = None
) -> Table:
    """Open a table of an index, or of labels if ``kind`` is None.

    Args:
        entry: Entry of the file in the manifest, to compare the size with.
        rows: Number of rows in the manifest.

    Raises:
        FormatError: The file is missing or not a complete Arrow IPC file, or its size, columns or rows differ from the
            format and the manifest.
        OSError: The file cannot be read.
    """
    path = str(path)
    try:
        content = map_file(path)
    except FileNotFoundError:
        label_message = f"missing, though the manifest names it; {_COPY_LABEL}"
        raise FormatError(f"{path}: {label_message if kind is None else MISSING}") from None
    if entry is not None and content.size != entry.bytes:
        problem = OTHER_FILE if kind else f"it is damaged, or was replaced just now; {_COPY_LABEL}"
        raise FormatError(f"{path}: {content.size:,} bytes, the manifest says {entry.bytes:,}; {problem}")
    from stream.format.schema import FIRST_FIELDS

    batch = _read_batch(path, content)
    for position, expected in enumerate(() if kind is None else FIRST_FIELDS[kind]):
        stored_field = batch.schema.field(position) if position < len(batch.schema) else None
        if stored_field is None or not stored_field.equals(expected):
            problem = f"column {position} is {stored_field}, expected {expected}"
            raise FormatError(f"{path}: {problem}; convert did not write it")
        if batch.column(position).null_count:
            raise FormatError(f"{path}: column {stored_field.name!r} has nulls; convert did not write it")
    if rows is not None and batch.num_rows != rows:
        raise FormatError(f"{path}: {batch.num_rows:,} rows, the manifest says {rows:,}")
    table = Table(path, batch.num_rows, _locate(path, content, batch))
    table.__dict__["content"] = content
    return table


def hash_column(content: np.ndarray, column: Column) -> str:
    """Return the XXH3 of a column's buffers, 64 bits in hex; ``content`` holds the bytes of the file."""
    return hash_spans(column, lambda start, stop: content[start:stop].data)


def hash_spans(column: Column, read: Callable[[int, int], bytes | memoryview]) -> str:
    """Return the XXH3 of a column's buffers, 64 bits in hex; ``read`` returns the bytes [start, stop) of the file."""
    digest = xxhash.xxh3_64()
    for start, stop in column.spans:
        for chunk_start in range(start, stop, CHUNK):
            digest.update(read(chunk_start, min(stop, chunk_start + CHUNK)))
    return digest.hexdigest()


def write_table(table_path: Path, kind: TableKind | None, batches: Iterable[pa.RecordBatch]) -> TableEntry:
    """Write a table as ``TableWriter`` does, from at least one batch, and return its entry in the manifest.

    ``kind`` is None for a table of labels.
    """
    from stream.storage.table_writer import TableWriter

    with TableWriter(table_path) as writer:
        for batch in batches:
            writer.add(batch)
        writer.finish()
    return describe_table(table_path, kind)


def describe_table(table_path: Path, kind: TableKind | None) -> TableEntry:
    """Return the manifest's entry of a table: its size and checksums; raise FormatError if the file is not a table."""
    from stream.format.manifest import TableEntry, describe_file

    file_entry = describe_file(table_path)
    # Read, not mapped as a loader does: the memory of a large table would count as this process's.
    with table_path.open("rb", buffering=0) as table_file:

        def read(start: int, stop: int) -> bytes:
            return os.pread(table_file.fileno(), stop - start, start)

        columns = open_table(table_path, kind).columns
        hashes = {name: hash_spans(column, read) for name, column in columns.items()}
    return TableEntry(bytes=file_entry.bytes, sha256=file_entry.sha256, columns=hashes)


def _read_batch(table_path: str, content: np.ndarray) -> pa.RecordBatch:
    import pyarrow as pa

    try:
        reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(content)))
        if reader.num_record_batches != 1:
            raise FormatError(f"{table_path}: {reader.num_record_batches} record batches, expected one")
        batch = reader.get_batch(0)
        # Checks the lengths of buffers, not their content.
        batch.validate()
        # Raises ValueError for names that are not UTF-8.
        _ = batch.schema.names
    except FormatError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise FormatError(f"{table_path}: not a complete Arrow IPC file ({reason})") from None
    return batch


def _locate(table_path: str, content: np.ndarray, batch: pa.RecordBatch) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if name in columns:
            raise FormatError(f"{table_path}: two columns {name!r}")
        columns[name] = column = _column(array, content.ctypes.data)
        if any(not 0 <= start <= stop <= content.size for start, stop in column.spans):
            raise FormatError(f"{table_path}: column {name!r} is not stored plainly; it is compressed or damaged")
    return columns


def number_type(arrow_type: pa.DataType) -> np.dtype:
    """Return numpy's type of Arrow's numbers; Arrow's own conversion would import pandas."""
    return np.dtype(_FLOATS.get(str(arrow_type), str(arrow_type)))


def _column(array: pa.Array, file_address: int) -> Column:
    import pyarrow as pa

    value_type, width, texts = array.type, None, None
    buffers: list[pa.Buffer | None] = array.buffers()
    validity = buffers[0].address - file_address if array.null_count and buffers[0] is not None else None
    value_buffers = buffers[1:]
    if isinstance(value_type, pa.FixedSizeListType):
        width, value_type, value_buffers = value_type.list_size, value_type.value_type, buffers[2:]
    if isinstance(array, pa.DictionaryArray) and pa.types.is_large_string(value_type.value_type):
        text_buffers = array.dictionary.buffers()
        texts = Texts(len(array.dictionary), *(_offset(buffer, file_address) for buffer in text_buffers[1:]))
        buffers = buffers[:2] + text_buffers
        value_type = value_type.index_type
    elif pa.types.is_large_string(value_type) and width is None:
        texts = Texts(len(array), *(_offset(buffer, file_address) for buffer in buffers[1:]))
    starts = [(buffer.address - file_address, buffer.size) for buffer in buffers if buffer is not None and buffer.size]
    spans = tuple((start, start + num_bytes) for start, num_bytes in starts)
    is_bits = pa.types.is_boolean(value_type)
    is_number = is_bits or pa.types.is_integer(value_type) or pa.types.is_floating(value_type)
    has_nulls = width is not None and array.values.null_count
    if not is_number or value_buffers[0] is None or width == 0 or has_nulls:
        return Column(None, width, 0, False, validity, texts, spans)
    dtype = "|u1" if is_bits else number_type(value_type).str
    return Column(dtype, width, _offset(value_buffers[0], file_address), is_bits, validity, texts, spans)


def _offset(buffer: pa.Buffer | None, file_address: int) -> int:
    # Arrow omits the buffers of a column without texts, and the letters if all texts are empty. The buffer of a column
    # without rows has an arbitrary address.
    return buffer.address - file_address if buffer is not None and buffer.size else 0
