"""Tables of an index, written in bounded memory: many record batches become one.

Arrow's own writer takes a whole record batch. It gets one of the right size, whose buffers are zeros that take no
memory and that its file skips. The buffers are then filled, batch by batch, at their locations in the file.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import xxhash

from convert.storage.durable import describe_file
from stream.format.manifest import TableEntry
from stream.format.names import TableKind
from stream.format.table import map_file, open_table
from stream.storage.errors import FormatError

Batches = Callable[[], Iterable[pa.RecordBatch]]
"""Gives the batches of a table, the same ones each time it is called."""

_HELD = 1 << 18
"""Bytes of a buffer that are gathered before they are written."""
_BLOCK = 4 << 20


def write_part(path: Path, table: pa.Table) -> None:
    """Write a small table as an Arrow IPC file with one record batch, uncompressed."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_batch(one_batch(table))


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one record batch, also if it has no rows."""
    columns = table.unify_dictionaries().combine_chunks().columns
    arrays = [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


def write_table(path: Path, kind: TableKind, batches: Batches) -> TableEntry:
    """Write a table of an index; memory holds one batch, and the texts of dictionaries.

    The file depends on the rows alone, not on how they are divided into batches. Texts of a dictionary are in the order
    of the first row that has them.

    Args:
        path: File to write.
        kind: Table of the index that it is.
        batches: Called twice: once to count, once to write. All batches have the same schema, there is at least one.

    Returns:
        Its entry in the manifest. The file is on the disk.
    """
    schema: pa.Schema | None = None
    columns: list[_Node] = []
    for batch in batches():
        if schema is None:
            schema = batch.schema
            columns = [_Node(field.type, name=field.name) for field in schema]
        assert batch.schema.equals(schema, check_metadata=True)
        for column, array in zip(columns, batch.columns, strict=True):
            column.count(array, array.offset, array.offset + len(array))
    assert schema is not None
    with path.open("w+b") as file:
        skipping = _SkippingFile(file)
        with pa.ipc.new_file(pa.PythonFile(skipping, "w"), schema) as writer:
            blank = [column.blank(skipping) for column in columns]
            writer.write_batch(pa.RecordBatch.from_arrays(blank, schema=schema))
        file.flush()
        _locate(path, columns, file)
        for batch in batches():
            for column, array in zip(columns, batch.columns, strict=True):
                column.write(array, array.offset, array.offset + len(array))
        for column in columns:
            column.finish()
        file.flush()
        os.fsync(file.fileno())
    return describe_table(path, kind)


def describe_table(path: Path, kind: TableKind) -> TableEntry:
    """Return the manifest's entry of a table: its size and checksums. Raises FormatError if it is not one."""
    whole = describe_file(path)
    columns = {}
    # Read, not mapped as a loader does: the memory of a large table would count as this process's.
    with path.open("rb", buffering=0) as file:
        for name, column in open_table(path, kind).columns.items():
            digest = xxhash.xxh3_64()
            for start, stop in column.spans:
                for begin in range(start, stop, _BLOCK):
                    digest.update(os.pread(file.fileno(), min(stop - begin, _BLOCK), begin))
            columns[name] = digest.hexdigest()
    return TableEntry(bytes=whole.bytes, sha256=whole.sha256, columns=columns)


class _SkippingFile:
    """A file that skips zeros which were handed out by itself, so that they are holes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._zeros: list[pa.Buffer] = []
        self.closed = False

    def zeros(self, size: int, *, last: int = 0) -> pa.Buffer:
        """Return a buffer of zeros that takes no memory; ``last`` replaces its last eight bytes, as int64."""
        # Not shared: only pages that are written to take memory, and read-only ones are not even accounted for.
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if last else 0)
        mapped = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=protection)
        if last:
            mapped[size - 8 : size] = last.to_bytes(8, "little")
        self._zeros.append(pa.py_buffer(mapped))
        return self._zeros[-1].slice(0, size)

    def write(self, data: pa.Buffer | bytes) -> int:
        buffer = pa.py_buffer(data)
        if any(zeros.address <= buffer.address < zeros.address + zeros.size for zeros in self._zeros):
            self._file.seek(buffer.size, os.SEEK_CUR)
        else:
            self._file.write(buffer)
        return buffer.size

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True


class _Run:
    """The bytes of one buffer, written from a position on, in order."""

    def __init__(self, file: BinaryIO, position: int) -> None:
        self._file = file
        self._position = position
        self._held = bytearray()

    def write(self, data: np.ndarray) -> None:
        self._held += np.ascontiguousarray(data).view(np.uint8).data
        if len(self._held) >= _HELD:
            self.finish()

    def finish(self) -> None:
        # The position of a buffer of no bytes is none.
        if not self._held:
            return
        self._file.seek(self._position)
        self._file.write(self._held)
        self._position += len(self._held)
        self._held.clear()


class _Bits:
    """The bits of one buffer, eight to a byte."""

    def __init__(self, file: BinaryIO, position: int) -> None:
        self._run = _Run(file, position)
        self._rest = np.zeros(0, np.uint8)

    def write(self, bits: np.ndarray) -> None:
        joined = np.concatenate((self._rest, bits))
        full = len(joined) // 8 * 8
        self._run.write(np.packbits(joined[:full], bitorder="little"))
        self._rest = joined[full:]

    def finish(self) -> None:
        self._run.write(np.packbits(self._rest, bitorder="little"))
        self._run.finish()


class _Node:
    """A column, or the values within its lists: counted first, then written."""

    def __init__(self, kind: pa.DataType, *, name: str) -> None:
        self._kind = kind
        self._rows = self._nulls = self._letters = 0
        self._texts: dict[str, int] = {}
        self._validity: _Bits | None = None
        self._offsets: _Run | None = None
        self._data: _Run | _Bits | None = None
        self._child: _Node | None = None
        types = pa.types
        self._is_dictionary = kind == pa.dictionary(pa.int32(), pa.large_string())
        self._is_text = types.is_large_string(kind)
        self._is_list = types.is_large_list(kind)
        self._is_fixed_list = types.is_fixed_size_list(kind)
        self._is_boolean = types.is_boolean(kind)
        if self._is_list or self._is_fixed_list:
            self._child = _Node(kind.value_type, name=name)
        elif not (
            self._is_dictionary
            or self._is_text
            or self._is_boolean
            or types.is_integer(kind)
            or types.is_floating(kind)
        ):
            raise FormatError(f"column {name!r} is {kind}, which an index does not hold")

    def count(self, array: pa.Array, start: int, stop: int) -> None:
        """Take rows [start, stop) into account, counted from the start of the array's buffers."""
        self._rows += stop - start
        valid = _valid(array, start, stop)
        if valid is not None:
            self._nulls += stop - start - int(np.count_nonzero(valid))
        if self._is_dictionary:
            used = _used(_numbers(array, np.int32, start, stop), valid)
            for text in array.dictionary.take(pa.array(used)).to_pylist():
                self._texts.setdefault(text, len(self._texts))
        elif self._is_text:
            offsets = _numbers(array, np.int64, start, stop + 1)
            self._letters += int(offsets[-1] - offsets[0]) if stop > start else 0
        elif self._child is not None:
            self._child.count(array.values, *self._range(array, start, stop))

    def blank(self, file: _SkippingFile) -> pa.Array:
        """Return an array of the final size, of zeros that the file skips."""
        validity = file.zeros(-(-self._rows // 8)) if self._nulls else None
        if self._is_dictionary:
            texts = pa.array(list(self._texts), pa.large_string())
            indices = [validity, file.zeros(4 * self._rows)]
            return pa.DictionaryArray.from_buffers(self._kind, self._rows, indices, texts, self._nulls)
        buffers = [validity]
        children = []
        below = self._letters
        if self._child is not None:
            children = [self._child.blank(file)]
            below = self._child._rows
        if self._is_text or self._is_list:
            buffers.append(file.zeros(8 * (self._rows + 1), last=below))
        if self._is_text:
            buffers.append(file.zeros(self._letters))
        elif self._child is None:
            buffers.append(file.zeros(-(-self._rows * self._kind.bit_width // 8)))
        return pa.Array.from_buffers(self._kind, self._rows, buffers, self._nulls, children=children)

    def locate(self, buffers: Iterator[int], file: BinaryIO) -> None:
        """Take the positions of the buffers in the file, in Arrow's order."""
        position = next(buffers)
        self._validity = _Bits(file, position) if self._nulls else None
        if self._is_text or self._is_list:
            # The first offset is 0, as the file is.
            self._offsets = _Run(file, next(buffers) + 8)
        if self._child is not None:
            self._child.locate(buffers, file)
        else:
            self._data = _Bits(file, next(buffers)) if self._is_boolean else _Run(file, next(buffers))
        self._rows = self._letters = 0

    def write(self, array: pa.Array, start: int, stop: int) -> None:
        """Write rows [start, stop), counted from the start of the array's buffers, behind those before."""
        if stop == start:
            return
        valid = _valid(array, start, stop)
        if self._validity is not None:
            self._validity.write(np.ones(stop - start, np.uint8) if valid is None else valid)
        self._rows += stop - start
        if self._child is not None:
            self._add_offsets(array, start, stop, before=self._child._rows)
            self._child.write(array.values, *self._range(array, start, stop))
            return
        assert self._data is not None
        if self._is_dictionary:
            self._data.write(self._indices(array, _numbers(array, np.int32, start, stop), valid))
        elif self._is_text:
            offsets = _numbers(array, np.int64, start, stop + 1)
            self._add_offsets(array, start, stop, before=self._letters)
            letters = array.buffers()[2]
            if offsets[-1] > offsets[0]:
                self._data.write(np.frombuffer(letters, np.uint8)[offsets[0] : offsets[-1]])
            self._letters += int(offsets[-1] - offsets[0])
        elif self._is_boolean:
            self._data.write(_bits(array.buffers()[1], start, stop))
        else:
            width = self._kind.bit_width // 8
            self._data.write(_numbers(array, np.uint8, start * width, stop * width))

    def finish(self) -> None:
        """Write what is still held."""
        for run in (self._validity, self._offsets, self._data, self._child):
            if run is not None:
                run.finish()

    def _range(self, array: pa.Array, start: int, stop: int) -> tuple[int, int]:
        """Return the range of the values within rows [start, stop) of lists."""
        first = array.values.offset
        if self._is_fixed_list:
            return first + start * self._kind.list_size, first + stop * self._kind.list_size
        if start == stop:
            return first, first
        offsets = _numbers(array, np.int64, start, stop + 1)
        return first + int(offsets[0]), first + int(offsets[-1])

    def _add_offsets(self, array: pa.Array, start: int, stop: int, *, before: int) -> None:
        if self._offsets is not None:
            offsets = _numbers(array, np.int64, start, stop + 1)
            self._offsets.write(offsets[1:] + (before - offsets[0]))

    def _indices(self, array: pa.DictionaryArray, numbers: np.ndarray, valid: np.ndarray | None) -> np.ndarray:
        """Return the numbers of texts in the dictionary of the whole column, 0 for rows without one."""
        used = _used(numbers, valid)
        numbered = np.zeros(max(1, len(array.dictionary)), np.int32)
        numbered[used] = [self._texts[text] for text in array.dictionary.take(pa.array(used)).to_pylist()]
        return numbered[numbers if valid is None else np.where(valid, numbers, 0)] * (1 if valid is None else valid)


def _locate(path: Path, columns: list[_Node], file: BinaryIO) -> None:
    content = map_file(str(path))
    batch = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(content))).get_batch(0)
    for column, array in zip(columns, batch.columns, strict=True):
        begin = content.ctypes.data
        column.locate(iter([0 if b is None else b.address - begin for b in array.buffers()]), file)


def _valid(array: pa.Array, start: int, stop: int) -> np.ndarray | None:
    """Return which of some rows have a value, uint8 of 0 and 1; None if all rows of the array have."""
    bitmap = array.buffers()[0]
    return _bits(bitmap, start, stop) if bitmap is not None and array.null_count else None


def _bits(buffer: pa.Buffer, start: int, stop: int) -> np.ndarray:
    first = start // 8
    packed = np.frombuffer(buffer, np.uint8)[first : -(-stop // 8)]
    return np.unpackbits(packed, bitorder="little")[start - 8 * first : stop - 8 * first]


def _numbers(array: pa.Array, dtype: type, start: int, stop: int) -> np.ndarray:
    buffer = array.buffers()[1]
    kind = np.dtype(dtype)
    if buffer is None or buffer.size < stop * kind.itemsize:
        # Arrow leaves out the offsets of an array of no rows.
        return np.zeros(stop - start, kind)
    return np.frombuffer(buffer, kind, stop - start, start * kind.itemsize)


def _used(numbers: np.ndarray, valid: np.ndarray | None) -> np.ndarray:
    """Return the texts of a dictionary that rows have, in the order of the first row that has each."""
    found, first = np.unique(numbers if valid is None else numbers[valid.astype(bool)], return_index=True)
    return found[np.argsort(first)]
