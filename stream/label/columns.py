"""Columns of labels, filled from a table in any order and written with one row for each step."""

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
from stream.label.step_positions import PlacedRows

_BLOCK = 8 << 20
_KEPT = 64 << 20
"""Bytes that a column takes in before the memory of its mapped file is given back."""


class LabelColumn:
    """A column that is filled in any order; memory holds its distinct texts, and a byte a step if values are missing.

    Args:
        field: Column of the table; ArgumentError if labels cannot be of its type.
        folder: Folder for an unnamed temporary file, which ``stack`` closes.
        context: Table, for messages.
    """

    def __init__(self, field: pa.Field, num_steps: int, *, folder: Path, stack: ExitStack, context: str) -> None:
        self.name = field.name
        self._where = f"{context}: column {field.name!r:.80}"
        self._steps, self._folder, self._stack = num_steps, folder, stack
        value_type = field.type
        while pa.types.is_dictionary(value_type):
            value_type = value_type.value_type
        self.is_text = pa.types.is_string(value_type) or pa.types.is_large_string(value_type)
        list_types = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        self.is_list = any(is_type(value_type) for is_type in list_types)
        self._item = value_type.value_type if self.is_list else value_type
        if pa.types.is_null(self._item):
            raise ArgumentError(f"{self._where} has no value at all")
        number_types = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
        if not (self.is_text or any(is_type(self._item) for is_type in number_types)):
            expected = "a label is a number, true or false, a text, or a list of numbers of one length"
            raise ArgumentError(f"{self._where} is {field.type}; {expected}")
        self._texts: dict[str, int] = {}
        self._values: np.ndarray | None = None
        self._absent: np.ndarray | None = None
        self._map: mmap.mmap | None = None
        self._taken = 0
        if not self.is_list:
            self._open(())

    def _open(self, shape: tuple[int, ...]) -> None:
        dtype = self._dtype
        num_bytes = self._steps * int(np.prod(shape)) * dtype.itemsize
        temporary_file = self._stack.enter_context(tempfile.TemporaryFile(dir=self._folder))  # noqa: SIM115
        temporary_file.truncate(max(num_bytes, 1))
        self._map = mmap.mmap(temporary_file.fileno(), max(num_bytes, 1))
        self._values = np.frombuffer(self._map, dtype, self._steps * int(np.prod(shape))).reshape(self._steps, *shape)

    @property
    def _dtype(self) -> np.dtype:
        if self.is_text:
            return np.dtype(np.int32)
        return np.dtype(bool) if pa.types.is_boolean(self._item) else number_type(self._item)

    def put(self, column: pa.Array, placed_rows: PlacedRows) -> None:
        """Put values of a batch at their steps; raise ArgumentError for lists of several lengths or without numbers."""
        has_value = np.asarray(column.is_valid())
        # Number of a row among the rows with a value.
        value_numbers = np.cumsum(has_value) - 1
        values = self._numbers(column.drop_null())
        row_numbers, steps = placed_rows
        is_present = has_value[row_numbers]
        if not is_present.all():
            self._absent = np.zeros(self._steps, bool) if self._absent is None else self._absent
            self._absent[steps[~is_present]] = True
            row_numbers, steps = row_numbers[is_present], steps[is_present]
        if len(steps):
            assert self._values is not None
            self._values[steps] = values[value_numbers[row_numbers]]
        self._taken += values.nbytes
        if self._taken > _KEPT and self._map is not None:
            self._taken = 0
            self._map.madvise(mmap.MADV_DONTNEED)

    def _numbers(self, column: pa.Array) -> np.ndarray:
        """Return the values of a column without missing values, [n] or [n, width]; for texts their numbers."""
        if self.is_text:
            encoded_texts = column.cast(pa.large_string()).dictionary_encode()
            texts = encoded_texts.dictionary.to_pylist()
            text_numbers = np.array([self._texts.setdefault(text, len(self._texts)) for text in texts], np.int32)
            return text_numbers[encoded_texts.indices.to_numpy(zero_copy_only=False)]
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if not self.is_list:
            return np.asarray(column.to_numpy(zero_copy_only=False))
        flat_items = column.flatten()
        width, remainder = divmod(len(flat_items), max(1, len(column)))
        is_even = pa.types.is_fixed_size_list(column.type) or pc.all(pc.equal(column.value_lengths(), width)).as_py()
        if remainder or flat_items.null_count or is_even is False:
            raise ArgumentError(f"{self._where} has lists of several lengths, or without some numbers; expected one")
        if not len(column):
            return np.zeros((0, 0), self._dtype)
        if not width:
            raise ArgumentError(f"{self._where} has lists without numbers")
        if self._values is None:
            self._open((width,))
        assert self._values is not None
        if self._values.shape[1] != width:
            lengths = f"{self._values.shape[1]} and of {width}"
            raise ArgumentError(f"{self._where} has lists of {lengths} numbers; expected one length")
        return np.asarray(flat_items.to_numpy(zero_copy_only=False)).reshape(len(column), width)

    def present(self, seen_steps: np.ndarray) -> np.ndarray:
        """Return which of the steps that rows named have a value, bool [steps]."""
        return seen_steps if self._absent is None else seen_steps & ~self._absent

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
    def row_bytes(self) -> int:
        """Bytes of the values of a step."""
        return 1 if self._values is None else self._values[:1].nbytes or 1

    def array(self, start_step: int, stop_step: int, has_value: np.ndarray) -> pa.Array:
        """Return the values of some steps; a missing number is NaN, or 0 if it is whole, below its null."""
        assert self._values is not None
        values = self._values[start_step:stop_step]
        is_missing = None if has_value.all() else ~has_value
        if self.is_text:
            return pa.DictionaryArray.from_arrays(pa.array(values, mask=is_missing), self._all_texts)
        if is_missing is not None and values.dtype.kind == "f":
            values = values.copy()
            values[is_missing] = np.nan
        flat_array = pa.array(values.reshape(-1))
        if flat_array.type != self._item:
            flat_array = flat_array.cast(self._item)
        null_mask = None if is_missing is None else pa.array(is_missing)
        if self.is_list:
            return pa.FixedSizeListArray.from_arrays(flat_array, type=self.field.type, mask=null_mask)
        if is_missing is None:
            return flat_array
        validity_bits = pa.array(has_value).buffers()[1]
        return pa.Array.from_buffers(flat_array.type, len(values), [validity_bits, flat_array.buffers()[1]])


def blocks(
    columns: list[LabelColumn], start_step: int, stop_step: int, has_value: dict[str, np.ndarray]
) -> Iterator[pa.RecordBatch]:
    """Yield the steps of a split as batches, at least one; ``has_value`` is bool [steps] by column, over all splits."""
    schema = pa.schema([column.field for column in columns])
    block_steps = max(1, _BLOCK // max(column.row_bytes for column in columns))
    for block_start in range(start_step, max(stop_step, start_step + 1), block_steps):
        block_stop = min(stop_step, block_start + block_steps)
        block = slice(block_start, block_stop)
        arrays = [column.array(block_start, block_stop, has_value[column.name][block]) for column in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
