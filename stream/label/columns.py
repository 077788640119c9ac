"""Columns of labels on their way from a table in any order to one of a row a step."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stream.base.errors import ArgumentError
from stream.format.schema import TEXT
from stream.format.table import number_type
from stream.label.places import Placed

_BLOCK = 8 << 20
_KEPT = 64 << 20
"""Bytes that a column takes in before the memory of its mapped file is given back."""


class LabelColumn:
    """A column that is filled in any order; memory holds its distinct texts, and a byte a step if values are missing.

    Args:
        field: Column of the table.
        steps: Count of the steps.
        folder: Folder for a temporary file, which no name leads to.
        stack: Closes the file.
        where: Table, for messages.

    Raises:
        ArgumentError: Labels cannot be of the column's type.
    """

    def __init__(self, field: pa.Field, steps: int, *, folder: Path, stack: ExitStack, where: str) -> None:
        self.name = field.name
        self._where = f"{where}: column {field.name!r:.80}"
        self._steps, self._folder, self._stack = steps, folder, stack
        kind = field.type
        while pa.types.is_dictionary(kind):
            kind = kind.value_type
        self.is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        self.is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        self._item = kind.value_type if self.is_list else kind
        item = self._item
        if pa.types.is_null(item):
            raise ArgumentError(f"{self._where} has no value at all")
        if not (self.is_text or pa.types.is_integer(item) or pa.types.is_floating(item) or pa.types.is_boolean(item)):
            raise ArgumentError(
                f"{self._where} is {field.type}; a label is a number, true or false, a text, or a list of numbers of "
                "one length"
            )
        self._texts: dict[str, int] = {}
        self._values: np.ndarray | None = None
        self._absent: np.ndarray | None = None
        self._map: mmap.mmap | None = None
        self._taken = 0
        if not self.is_list:
            self._open(())

    def _open(self, shape: tuple[int, ...]) -> None:
        dtype = self._dtype
        size = self._steps * int(np.prod(shape)) * dtype.itemsize
        file = self._stack.enter_context(tempfile.TemporaryFile(dir=self._folder))  # noqa: SIM115
        file.truncate(max(size, 1))
        self._map = mmap.mmap(file.fileno(), max(size, 1))
        self._values = np.frombuffer(self._map, dtype, self._steps * int(np.prod(shape))).reshape(self._steps, *shape)

    @property
    def _dtype(self) -> np.dtype:
        if self.is_text:
            return np.dtype(np.int32)
        return np.dtype(bool) if pa.types.is_boolean(self._item) else number_type(self._item)

    def put(self, column: pa.Array, placed: Placed) -> None:
        """Put values of a batch at their steps.

        Raises:
            ArgumentError: Lists have different lengths, or lack numbers.
        """
        has = np.asarray(column.is_valid())
        # The place of a row among those with a value.
        place = np.cumsum(has) - 1
        values = self._numbers(column.drop_null())
        given, steps = placed
        real = has[given]
        if not real.all():
            self._note_absent(steps[~real])
            given, steps = given[real], steps[real]
        if len(steps):
            assert self._values is not None
            self._values[steps] = values[place[given]]
        self._taken += values.nbytes
        if self._taken > _KEPT and self._map is not None:
            self._taken = 0
            self._map.madvise(mmap.MADV_DONTNEED)

    def _numbers(self, column: pa.Array) -> np.ndarray:
        """Return the values of rows that have one, [n] or [n, width]; of texts their numbers."""
        if self.is_text:
            texts = column.cast(pa.large_string()).dictionary_encode()
            numbers = [self._texts.setdefault(text, len(self._texts)) for text in texts.dictionary.to_pylist()]
            return np.array(numbers, np.int32)[texts.indices.to_numpy(zero_copy_only=False)]
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if not self.is_list:
            return np.asarray(column.to_numpy(zero_copy_only=False))
        items = column.flatten()
        width, rest = divmod(len(items), max(1, len(column)))
        is_even = pa.types.is_fixed_size_list(column.type) or pc.all(pc.equal(column.value_lengths(), width)).as_py()
        if rest or items.null_count or is_even is False:
            raise ArgumentError(f"{self._where} has lists of several lengths, or without some numbers; expected one")
        if not len(column):
            return np.zeros((0, 0), self._dtype)
        if not width:
            raise ArgumentError(f"{self._where} has lists without numbers")
        if self._values is None:
            self._open((width,))
        assert self._values is not None
        if self._values.shape[1] != width:
            raise ArgumentError(
                f"{self._where} has lists of {self._values.shape[1]} and of {width} numbers; expected one length"
            )
        return np.asarray(items.to_numpy(zero_copy_only=False)).reshape(len(column), width)

    def _note_absent(self, steps: np.ndarray) -> None:
        if self._absent is None:
            self._absent = np.zeros(self._steps, bool)
        self._absent[steps] = True

    def present(self, seen: np.ndarray) -> np.ndarray:
        """Return which of the steps that rows named have a value, bool [steps]."""
        return seen if self._absent is None else seen & ~self._absent

    @property
    def field(self) -> pa.Field:
        """Column of the written table; raises ArgumentError if no row had a list."""
        if self._values is None:
            raise ArgumentError(f"{self._where} has no value at all")
        if self.is_text:
            return pa.field(self.name, TEXT)
        return pa.field(self.name, pa.list_(self._item, self._values.shape[1]) if self.is_list else self._item)

    @cached_property
    def _all_texts(self) -> pa.Array:
        return pa.array(list(self._texts), pa.large_string())

    @property
    def rows_of_a_block(self) -> int:
        """Steps that are written together."""
        assert self._values is not None
        return max(1, _BLOCK // (self._values[:1].nbytes or 1))

    def array(self, start: int, stop: int, present: np.ndarray) -> pa.Array:
        """Return the values of some steps; a missing number is NaN, or 0 if it is whole, below its null.

        Args:
            start, stop: Steps.
            present: Which of them have a value, bool [stop - start].
        """
        assert self._values is not None
        values = self._values[start:stop]
        missing = None if present.all() else ~present
        if self.is_text:
            return pa.DictionaryArray.from_arrays(pa.array(values, mask=missing), self._all_texts)
        if missing is not None and values.dtype.kind == "f":
            values = values.copy()
            values[missing] = np.nan
        flat = pa.array(values.reshape(-1))
        if flat.type != self._item:
            flat = flat.cast(self._item)
        mask = None if missing is None else pa.array(missing)
        if self.is_list:
            return pa.FixedSizeListArray.from_arrays(flat, type=self.field.type, mask=mask)
        if missing is None:
            return flat
        bits = pa.array(present).buffers()[1]
        return pa.Array.from_buffers(flat.type, len(values), [bits, flat.buffers()[1]])


def blocks(
    columns: list[LabelColumn], start: int, stop: int, present: dict[str, np.ndarray]
) -> Iterator[pa.RecordBatch]:
    """Yield the steps of a split as batches, at least one.

    Args:
        columns: Columns.
        start, stop: Steps of the split among those of all.
        present: Which steps have a value, bool [steps], by column.
    """
    schema = pa.schema([column.field for column in columns])
    size = min(column.rows_of_a_block for column in columns)
    for begin in range(start, max(stop, start + 1), size):
        end = min(stop, begin + size)
        arrays = [column.array(begin, end, present[column.name][begin:end]) for column in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
