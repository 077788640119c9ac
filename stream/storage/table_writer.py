"""Arrow files of one record batch, written in bounded memory: many record batches become one.

Arrow's own writer takes one record batch of the whole table. The buffers of this batch are collected in temporary
files, mapped for Arrow, and copied from file to file when Arrow writes them.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import pyarrow as pa

from stream.base.errors import FormatError

_BLOCK = 4 << 20


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one record batch, also if it has no rows."""
    columns = table.unify_dictionaries().combine_chunks().columns
    arrays = [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


class TableWriter:
    """A context manager that writes a table batch by batch; the disk has room for the table twice.

    Memory holds one batch, the texts of dictionaries, and one bit per row and column. The file depends only on
    the rows, not on their division into batches. Texts of a dictionary are in the order of the first row that has them.
    """

    def __init__(self, table_path: Path) -> None:
        self._path = table_path
        self._stack = ExitStack()
        self._spools = _Spools(table_path.parent, self._stack)
        self._schema: pa.Schema | None = None
        self._columns: list[_Column] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch; all batches have the same schema."""
        if self._schema is None:
            self._schema = batch.schema
            self._columns = [_Column(field.type, self._spools, name=field.name) for field in batch.schema]
        assert batch.schema.equals(self._schema, check_metadata=True)
        for column, array in zip(self._columns, batch.columns, strict=True):
            column.add(array)

    def finish(self) -> None:
        """Write the file, which is then on the disk."""
        assert self._schema is not None, "at least one batch"
        batch = pa.RecordBatch.from_arrays([column.array() for column in self._columns], schema=self._schema)
        with self._path.open("wb") as table_file:
            with pa.ipc.new_file(pa.PythonFile(_Sink(table_file, self._spools), "w"), self._schema) as writer:
                writer.write_batch(batch)
            table_file.flush()
            os.fsync(table_file.fileno())


class _Spools:
    """Temporary files that collect buffers."""

    def __init__(self, folder: Path, exit_stack: ExitStack) -> None:
        self._folder = folder
        self._stack = exit_stack
        self.files: dict[int, IO[bytes]] = {}
        """Files by the address of their buffer."""

    def open(self) -> IO[bytes]:
        return self._stack.enter_context(tempfile.TemporaryFile(dir=self._folder))

    def buffer(self, spool_file: IO[bytes]) -> pa.Buffer:
        """Return the content of a file as a buffer; memory holds only the pages that are read."""
        if not spool_file.tell():
            return pa.py_buffer(b"")
        spool_file.flush()
        buffer = pa.py_buffer(mmap.mmap(spool_file.fileno(), 0, prot=mmap.PROT_READ))
        self.files[buffer.address] = spool_file
        return buffer


class _Sink:
    """A file that copies the buffers of spools from their files."""

    def __init__(self, table_file: IO[bytes], spools: _Spools) -> None:
        self._file = table_file
        self._spools = spools
        self.closed = False

    def write(self, content: Any) -> int:
        buffer = pa.py_buffer(content)
        if spool_file := self._spools.files.get(buffer.address):
            spool_file.seek(0)
            shutil.copyfileobj(spool_file, self._file, _BLOCK)
        else:
            self._file.write(buffer)
        return buffer.size

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True


class _Column:
    """A column, or the values within its lists, added batch by batch."""

    def __init__(self, kind: pa.DataType, spools: _Spools, *, name: str) -> None:
        is_text, is_list = pa.types.is_large_string(kind), pa.types.is_large_list(kind)
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        self._kind = kind
        self._spools = spools
        self._rows = self._inside = 0
        self._valid: list[pa.Array] = []
        self._bits: list[pa.Array] = []
        self._texts: dict[str, int] = {}
        self._offsets: IO[bytes] | None = None
        self._data: IO[bytes] | None = None
        self._child: _Column | None = None
        self._is_dictionary = kind == pa.dictionary(pa.int32(), pa.large_string())
        if is_text or is_list:
            self._offsets = spools.open()
            self._offsets.write(bytes(8))
        if is_list or pa.types.is_fixed_size_list(kind):
            self._child = _Column(kind.value_type, spools, name=name)
        elif self._is_dictionary or is_text or is_number:
            self._data = spools.open()
        elif not pa.types.is_boolean(kind):
            raise FormatError(f"column {name!r} is {kind}, which an index does not hold")

    def add(self, array: pa.Array) -> None:
        """Add rows."""
        if not len(array):
            return
        # Joining copies, so the buffers hold only these rows.
        array = pa.concat_arrays([array, array.slice(0, 0)])
        self._rows += len(array)
        self._valid.append(array.is_valid())
        content = array.buffers()[-1]
        num_bytes = 0
        if self._offsets is not None:
            offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1)
            self._offsets.write((offsets[1:] + self._inside).data)
            num_bytes = int(offsets[-1])
            self._inside += num_bytes
        elif self._is_dictionary:
            content, num_bytes = self._numbered(array), 4 * len(array)
        elif self._data is not None:
            num_bytes = len(array) * self._kind.bit_width // 8
        if self._child is not None:
            self._child.add(array.values)
        elif self._data is None:
            self._bits.append(pa.Array.from_buffers(self._kind, len(array), [None, content]))
        elif num_bytes:
            self._data.write(content.slice(0, num_bytes))

    def _numbered(self, array: pa.DictionaryArray) -> pa.Buffer:
        """Return the numbers of texts in the dictionary of the whole column, 0 for rows without a text."""
        texts = array.cast(self._kind.value_type).dictionary_encode()
        numbers = [self._texts.setdefault(text, len(self._texts)) for text in texts.dictionary.to_pylist()]
        return pa.array(numbers, pa.int32()).take(texts.indices).fill_null(0).buffers()[1]

    def array(self) -> pa.Array:
        """Return the complete column."""
        valid_rows = pa.concat_arrays([pa.array([], pa.bool_()), *self._valid])
        num_nulls = valid_rows.false_count
        buffers = [valid_rows.buffers()[1] if num_nulls else None]
        buffers += [self._spools.buffer(file) for file in (self._offsets, self._data) if file is not None]
        if self._is_dictionary:
            texts = pa.array(list(self._texts), pa.large_string())
            return pa.DictionaryArray.from_buffers(self._kind, self._rows, buffers, texts, num_nulls)
        if self._child is not None:
            children = [self._child.array()]
            return pa.Array.from_buffers(self._kind, self._rows, buffers, num_nulls, children=children)
        if self._data is None:
            buffers.append(pa.concat_arrays([pa.array([], pa.bool_()), *self._bits]).buffers()[1])
        return pa.Array.from_buffers(self._kind, self._rows, buffers, num_nulls)
