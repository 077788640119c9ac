"""Tables of an index: mapped Arrow IPC files of one record batch, with columns as numpy arrays.

pyarrow finds the columns once, in ``open_table``; workers read them without pyarrow."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from stream.format.names import TableKind
from stream.storage.errors import FormatError

if TYPE_CHECKING:
    import pyarrow as pa

    from stream.format.manifest import TableEntry

_CHUNK = 4 << 20
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""numpy's names of the types that Arrow names differently."""


@dataclass(frozen=True)
class Texts:
    """The location of texts in a file.

    Attributes:
        count: Number of texts.
        offsets: Byte offset of the int64 offsets of the texts in ``letters``.
        letters: Byte offset of the UTF-8 bytes.
    """

    count: int
    offsets: int
    letters: int


@dataclass(frozen=True)
class Column:
    """The location of a column in a file.

    Attributes:
        dtype: Type of the numbers, or of the numbers of repeated texts; None for other types, such as lists.
        width: Numbers in a row, None for a single one.
        data: Byte offset of the numbers.
        bits: True for booleans, which are stored eight to a byte.
        validity: Byte offset of the bitmap of rows that have a value, None if all have.
        texts: Texts that the numbers stand for, or with ``dtype`` None one text a row.
        spans: (start, stop) in bytes of each buffer, for checksums.
    """

    dtype: str | None
    width: int | None
    data: int
    bits: bool
    validity: int | None
    texts: Texts | None
    spans: tuple[tuple[int, int], ...]

    def is_like(self, other: Column) -> bool:
        """Return whether the columns have the same type."""
        mine, its = ((each.dtype, each.width, each.bits, each.texts is None) for each in (self, other))
        return mine == its


class Table:
    """A table of an index. Its pickle holds the location alone: the process that unpickles it maps the file again.

    Args:
        path: File.
        rows: Number of rows.
        columns: Columns by name.

    Raises:
        OSError: The file cannot be mapped; any method may raise it.
    """

    def __init__(self, path: str, rows: int, columns: Mapping[str, Column]) -> None:
        self.path = path
        self.rows = rows
        self.columns = dict(columns)

    def __reduce__(self) -> tuple[object, ...]:
        return Table, (self.path, self.rows, self.columns)

    def __len__(self) -> int:
        return self.rows

    @cached_property
    def content(self) -> np.ndarray:
        """Mapped bytes of the file, uint8."""
        return map_file(self.path)

    def arrow(self) -> pa.Table:
        """Return the table as an Arrow table over the mapped file."""
        import pyarrow as pa

        return pa.Table.from_batches([_read_batch(self.path, self.content)])

    def array(self, name: str) -> np.ndarray:
        """Return a column of numbers, [rows] or [rows, width], over the mapped file; booleans are copied to uint8.

        The numbers of rows without a value are arbitrary, see ``valid``.
        """
        column = self.columns[name]
        if column.bits:
            return self.take(name, np.arange(self.rows))
        dtype = np.dtype(column.dtype)
        shape = (self.rows,) if column.width is None else (self.rows, column.width)
        return np.ndarray(shape, dtype, self.content, column.data)

    def take(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return rows of a column of numbers, [n] or [n, width], in the column's type; booleans as uint8."""
        column = self.columns[name]
        if not column.bits:
            return np.asarray(self.array(name)[rows])
        place = rows if column.width is None else rows[:, None] * column.width + np.arange(column.width)
        return self._bits(column.data, place)

    def valid(self, name: str, rows: np.ndarray) -> np.ndarray | None:
        """Return which rows of a column have a value, bool [n]; None if every row of the table has."""
        place = self.columns[name].validity
        return None if place is None else self._bits(place, rows).astype(bool)

    def text(self, name: str, number: int) -> str:
        """Return a text by its number in the column's dictionary, or by its row in a column without a dictionary."""
        texts = self.columns[name].texts
        assert texts is not None, f"{name} is a column of texts"
        if not 0 <= number < texts.count:
            raise FormatError(f"{self.path}: column {name!r} has text {number} of {texts.count}; it is damaged")
        start, stop = np.ndarray(2, np.int64, self.content, texts.offsets + 8 * number).tolist()
        try:
            return self.content[texts.letters + start : texts.letters + stop].tobytes().decode()
        except UnicodeDecodeError:
            raise FormatError(
                f"{self.path}: column {name!r} has a text {number} that is not UTF-8; it is damaged"
            ) from None

    def take_texts(self, name: str, rows: np.ndarray) -> list[str]:
        """Return rows of a column of texts; the text of a row without a value is empty."""
        valid = self.valid(name, rows)
        numbers = self.take(name, rows) if self.columns[name].dtype is not None else rows
        present = [True] * len(rows) if valid is None else valid.tolist()
        return [self.text(name, number) if has else "" for number, has in zip(numbers.tolist(), present, strict=True)]

    def forget(self) -> None:
        """Take the pages that were read out of the memory of this process; the kernel's cache keeps them."""
        mapped = getattr(self.content.base, "obj", None)
        if isinstance(mapped, mmap.mmap):
            mapped.madvise(mmap.MADV_DONTNEED)

    def _bits(self, data: int, place: np.ndarray) -> np.ndarray:
        return (self.content[data + (place >> 3)] >> (place & 7).astype(np.uint8)) & 1


def map_file(path: str) -> np.ndarray:
    """Map a file and return its bytes, uint8; raise OSError with the path."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return np.zeros(0, np.uint8)
        try:
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except OSError as error:
            error.filename = path
            raise
    return np.frombuffer(mapped, np.uint8)


def open_table(path: str | Path, kind: TableKind, *, entry: TableEntry | None = None, rows: int | None = None) -> Table:
    """Open a table of an index.

    Args:
        path: File.
        kind: Kind of the table.
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
        raise FormatError(
            f"{path}: missing, though the manifest names it; run the same `python -m convert.run` command again, or "
            "copy it again"
        ) from None
    if entry is not None and content.size != entry.bytes:
        raise FormatError(
            f"{path}: {content.size:,} bytes, the manifest says {entry.bytes:,}; the file is damaged or belongs to "
            "another conversion"
        )
    from stream.format.schema import FIRST_FIELDS

    batch = _read_batch(path, content)
    for position, expected in enumerate(FIRST_FIELDS[kind]):
        found = batch.schema.field(position) if position < len(batch.schema) else None
        if found is None or not found.equals(expected):
            raise FormatError(f"{path}: column {position} is {found}, expected {expected}; convert did not write it")
        if batch.column(position).null_count:
            raise FormatError(f"{path}: column {found.name!r} has nulls; convert did not write it")
    if rows is not None and batch.num_rows != rows:
        raise FormatError(f"{path}: {batch.num_rows:,} rows, the manifest says {rows:,}")
    opened = Table(path, batch.num_rows, _locate(path, content, batch))
    opened.__dict__["content"] = content
    return opened


def hash_column(content: np.ndarray, column: Column) -> str:
    """Return the XXH3 of a column's buffers, 64 bits in hex; ``content`` holds the bytes of the file."""
    digest = xxhash.xxh3_64()
    for start, stop in column.spans:
        for begin in range(start, stop, _CHUNK):
            digest.update(content[begin : min(stop, begin + _CHUNK)].data)
    return digest.hexdigest()


def _read_batch(path: str, content: np.ndarray) -> pa.RecordBatch:
    import pyarrow as pa

    try:
        reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(content)))
        if reader.num_record_batches != 1:
            raise FormatError(f"{path}: {reader.num_record_batches} record batches, expected one")
        batch = reader.get_batch(0)
        # Checks the lengths of buffers, not their content.
        batch.validate()
        # Raises ValueError for names that are not UTF-8.
        _ = batch.schema.names
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        told = " ".join(str(error).split())[:300]
        raise FormatError(f"{path}: not a complete Arrow IPC file ({told})") from None
    return batch


def _locate(path: str, content: np.ndarray, batch: pa.RecordBatch) -> dict[str, Column]:
    begin = content.ctypes.data
    found: dict[str, Column] = {}
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if name in found:
            raise FormatError(f"{path}: two columns {name!r}")
        found[name] = _column(array, begin)
        if any(not 0 <= start <= stop <= content.size for start, stop in found[name].spans):
            raise FormatError(f"{path}: column {name!r} is not stored plainly; it is compressed or damaged")
    return found


def _column(array: pa.Array, begin: int) -> Column:
    import pyarrow as pa

    kind, width, texts = array.type, None, None
    buffers: list[pa.Buffer | None] = array.buffers()
    validity = buffers[0].address - begin if array.null_count and buffers[0] is not None else None
    values = buffers[1:]
    if isinstance(kind, pa.FixedSizeListType):
        width, kind, values = kind.list_size, kind.value_type, buffers[2:]
    if isinstance(array, pa.DictionaryArray) and pa.types.is_large_string(kind.value_type):
        named = array.dictionary.buffers()
        texts = _texts(named, len(array.dictionary), begin)
        buffers = buffers[:2] + named
        kind = kind.index_type
    elif pa.types.is_large_string(kind) and width is None:
        texts = _texts(buffers, len(array), begin)
    spans = tuple((b.address - begin, b.address - begin + b.size) for b in buffers if b is not None and b.size)
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not number or values[0] is None or width == 0 or (width is not None and array.values.null_count):
        return Column(None, width, 0, False, validity, texts, spans)
    # The buffer of a column without rows has an arbitrary address.
    data = values[0].address - begin if values[0].size else 0
    bits = pa.types.is_boolean(kind)
    dtype = "|u1" if bits else np.dtype(_FLOATS.get(str(kind), str(kind))).str
    return Column(dtype, width, data, bits, validity, texts, spans)


def _texts(buffers: Sequence[pa.Buffer | None], count: int, begin: int) -> Texts:
    # Arrow omits both buffers of a column without texts, and the letters if all texts are empty.
    _, offsets, letters = buffers
    return Texts(
        count,
        offsets.address - begin if offsets is not None and offsets.size else 0,
        letters.address - begin if letters is not None and letters.size else 0,
    )
