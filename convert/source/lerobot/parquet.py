"""Parquet files of a LeRobot dataset, read forward, with a limit of the memory that they claim.

A few bytes on the disk can expand to any size in memory, so ``check_claim`` looks at the claims of a file first.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from convert.errors import CorruptFrame, DamagedEpisode, MalformedEpisode
from convert.source.episode import Frames
from convert.source.lerobot.files import LocalFiles
from convert.source.lerobot.info import TASK
from convert.source.protocol import ReadRequest

MOST = 1 << 32
"""Bytes that are read at once. Larger row groups hold pictures, which hardly compress; numbers stay far below."""
MOST_METADATA = 1 << 28
"""Bytes of a file of ``meta``: those of a million episodes."""
_MAX_RATIO = 8
"""Compression ratio that is plausible for a file of any size."""
_BATCH_ROWS, _BATCH_PICTURES = 1024, 8
"""Rows of a batch of numbers, and of a batch of pictures."""
_BUFFER = 1 << 20


def check_claim(
    file: pq.ParquetFile, columns: Sequence[str], *, groups: Iterable[int], file_size: int, limit: int
) -> None:
    """Refuse row groups that would take more memory than ``limit`` and than a file of ``file_size`` bytes can explain.

    The values are counted too, because equal ones take no bytes before they are in memory.

    Raises:
        pa.ArrowInvalid: They take more.
        KeyError: The file lacks a column, or has two of its name.
    """
    widths = {column_name: _width(file.schema_arrow.field(column_name).type) for column_name in columns}
    column_leaves: list[tuple[int, str]] = []
    for leaf_number in range(len(file.schema)):
        leaf_path = f"{file.schema.column(leaf_number).path}."
        column_leaves += [(leaf_number, name) for name in columns if leaf_path.startswith(f"{name}.")]
    bytes_by_column = dict.fromkeys(columns, 0)
    for row_group in map(file.metadata.row_group, groups):
        for leaf_number, column_name in column_leaves:
            chunk = row_group.column(leaf_number)
            bytes_by_column[column_name] += max(chunk.total_uncompressed_size, chunk.num_values * widths[column_name])
    if (claimed_bytes := sum(bytes_by_column.values())) > max(limit, _MAX_RATIO * file_size):
        largest = max(bytes_by_column, key=lambda column_name: bytes_by_column[column_name])
        limits = f"expected at most {limit:,} of a file of {file_size:,}; write it again"
        raise pa.ArrowInvalid(f"{claimed_bytes:,} bytes in memory, most of {largest:.80}; {limits}")


def _width(arrow_type: pa.DataType) -> int:
    """Return the bytes of a number in memory, 0 for texts and pictures, whose count says nothing about their size."""
    while value_type := getattr(arrow_type, "value_type", None):
        arrow_type = value_type
    return -(-arrow_type.bit_width // 8) if pa.types.is_primitive(arrow_type) else 0


class DataFile:
    """An open parquet file with the rows [start, stop) of one or more episodes (``spans``, by number).

    Raises:
        DamagedEpisode: The file is cut short, is not parquet or claims more memory than it can need, or
            ``episode_index`` has other than integers.
    """

    def __init__(self, local_files: LocalFiles, file_name: str, request: ReadRequest) -> None:
        self.name = file_name
        self._files = local_files
        local_path = local_files.path(file_name)
        try:
            # A buffer, so that the pictures of a whole row group are not read at once.
            self._file = pq.ParquetFile(local_path, buffer_size=_BUFFER, pre_buffer=False)
            column_names = set(self._file.schema_arrow.names)
            file_size, row_groups = local_path.stat().st_size, range(self._file.metadata.num_row_groups)
            check_claim(self._file, ["episode_index"], groups=row_groups, file_size=file_size, limit=MOST)
            index_column = self._file.read(columns=["episode_index"]).column("episode_index")
        except (pa.ArrowException, OSError, KeyError) as error:
            raise self._unreadable(error) from None
        episode_numbers = flatten_numbers(index_column, np.dtype(np.int64), f"{file_name}: episode_index", ())
        edges = np.flatnonzero(np.diff(episode_numbers, prepend=-1, append=-1))
        self.spans = {int(episode_numbers[first]): (first, end) for first, end in pairwise(edges.tolist())}
        number_columns = {"task_index" if feature.name == TASK else feature.name for feature in request.features}
        number_columns = (number_columns | {"timestamp"}) & column_names
        open_cursor = partial(_Cursor, self._file, file_size=file_size)
        self._numbers = open_cursor(sorted(number_columns), batch_rows=_BATCH_ROWS)
        self._pictures = {
            camera.name: open_cursor([camera.name], batch_rows=_BATCH_PICTURES)
            for camera in request.cameras
            if camera.name in column_names
        }

    def find_rows(self, episode_number: int, *, expected: int) -> tuple[int, int]:
        """Return the rows [start, stop) of an episode; MalformedEpisode if there are not as many as ``expected``."""
        first_row, end_row = self.spans.get(episode_number, (0, 0))
        if (num_rows := end_row - first_row) != expected:
            fault = f"{num_rows} rows of episode {episode_number}, meta/episodes says {expected}"
            raise MalformedEpisode(f"{self.name}: {fault}")
        return first_row, end_row

    def numbers(self, first_row: int, end_row: int) -> pa.Table:
        """Return the rows of all columns but pictures."""
        try:
            self._numbers.check(first_row, end_row)
            return pa.Table.from_batches(self._numbers.rows(first_row, end_row), self._numbers.schema)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from None

    def pictures(self, camera_name: str, first_row: int, end_row: int) -> Frames:
        """Return the encoded pictures of a camera; each is read when it is requested."""
        if camera_name not in self._pictures:
            raise DamagedEpisode(f"{self.name}: no column {camera_name}, which is a camera", reason="unreadable")
        cursor = self._pictures[camera_name]
        bytes_type = stored_type = cursor.schema.field(camera_name).type
        if pa.types.is_struct(stored_type) and stored_type.get_field_index("bytes") >= 0:
            bytes_type = stored_type.field("bytes").type
        is_text = pa.types.is_string(stored_type) or pa.types.is_large_string(stored_type)
        if not (pa.types.is_binary(bytes_type) or pa.types.is_large_binary(bytes_type) or is_text):
            expected = "expected encoded pictures (binary) or names of files"
            raise MalformedEpisode(f"{self.name}: {camera_name} is stored as {stored_type}, {expected}")
        return self._read_pictures(cursor, first_row, end_row)

    def _read_pictures(self, cursor: _Cursor, first_row: int, end_row: int) -> Frames:
        row_number = first_row
        try:
            for batch in cursor.rows(first_row, end_row):
                for value in batch.column(0):
                    yield self._picture(value.as_py(), row_number=row_number)
                    row_number += 1
        except (pa.ArrowException, OSError, KeyError) as error:
            for row in range(row_number, end_row):
                yield CorruptFrame(f"{self.name}: row {row} cannot be read ({' '.join(str(error).split())[:200]})")

    def _picture(self, stored_picture: dict[str, Any] | bytes | str | None, *, row_number: int) -> bytes | CorruptFrame:
        """Return an encoded picture: the bytes of the value, or the content of the file that it names."""
        content = stored_picture
        if isinstance(content, dict):
            content = content.get("bytes") or content.get("path")
        if isinstance(content, str) and content:
            try:
                return self._files.path(content).read_bytes()
            except (DamagedEpisode, OSError, ValueError) as error:
                return CorruptFrame(f"{self.name}: row {row_number}: {' '.join(str(error).split())[:200]}")
        return content or CorruptFrame(f"{self.name}: row {row_number} has no picture")

    def _unreadable(self, error: Exception) -> DamagedEpisode:
        text = " ".join(str(error).split())[:200]
        return DamagedEpisode(f"{self.name}: cannot be read as parquet ({text})", reason="unreadable")


class _Cursor:
    """Rows of columns of a parquet file, read forward; a step backward starts at the row group again.

    A page can be a whole row group, so it is released with its last row, before the column of another camera is read.
    A row group that would take too much memory is refused, for a batch may be most of it.
    """

    def __init__(self, file: pq.ParquetFile, columns: Sequence[str], *, batch_rows: int, file_size: int) -> None:
        self._file, self._columns = file, list(columns)
        self._batch_rows, self._file_size = batch_rows, file_size
        row_groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        self._group_starts = np.cumsum([0, *(row_group.num_rows for row_group in row_groups)]).tolist()
        self.schema = pa.schema([file.schema_arrow.field(column_name) for column_name in self._columns])
        self._reset()

    def _reset(self) -> None:
        self._group, self._start, self._stop = -1, 0, 0
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._batch: pa.RecordBatch = None

    def check(self, first_row: int, end_row: int) -> None:
        """Refuse rows that would take too much memory at once, see ``check_claim``."""
        row_groups = range(bisect_right(self._group_starts, first_row) - 1, bisect_left(self._group_starts, end_row))
        check_claim(self._file, self._columns, groups=row_groups, file_size=self._file_size, limit=MOST)

    def rows(self, next_row: int, end_row: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows [next_row, end_row) in batches."""
        while next_row < end_row:
            if not self._start <= next_row < self._stop:
                self._seek(next_row)
            batch_end = min(end_row, self._stop)
            yield self._batch.slice(next_row - self._start, batch_end - next_row)
            next_row = batch_end
            if next_row == self._group_starts[self._group + 1]:
                self._reset()

    def _seek(self, row_number: int) -> None:
        group = bisect_right(self._group_starts, row_number) - 1
        if group != self._group or row_number < self._start:
            self._reset()
            self.check(row_number, row_number + 1)
            self._group, self._start, self._stop = group, self._group_starts[group], self._group_starts[group]
            self._batches = self._file.iter_batches(
                self._batch_rows, row_groups=[group], columns=self._columns, use_threads=False
            )
        while self._stop <= row_number:
            if (batch := next(self._batches, None)) is None:
                raise pa.ArrowInvalid(f"row group {group} ends at row {self._stop}")
            self._batch = batch.select(self._columns)
            self._start, self._stop = self._stop, self._stop + batch.num_rows


def _flatten(chunks: pa.ChunkedArray, context: str, shape: tuple[int | None, ...]) -> pa.Array:
    """Return all values of a column, flat and row-major; each row is nested like ``shape``, or one flat list."""
    array = chunks.combine_chunks() if chunks.num_chunks != 1 else chunks.chunk(0)
    value_type, depth = array.type, 0
    while pa.types.is_list(value_type) or pa.types.is_large_list(value_type) or pa.types.is_fixed_size_list(value_type):
        value_type, depth = value_type.value_type, depth + 1
    dimensions = [dim or 0 for dim in shape]
    levels = dimensions if depth == len(dimensions) else [math.prod(dimensions)]
    if depth != len(levels):
        raise MalformedEpisode(f"{context} is stored as {array.type}, expected values of shape {dimensions}")
    for depth_level, expected_length in enumerate(levels):
        lengths = pc.fill_null(pc.list_value_length(array), -1).to_numpy(zero_copy_only=False)
        mismatched = np.flatnonzero(lengths != expected_length)
        if len(mismatched):
            step_number, item_length = mismatched[0] // math.prod(levels[:depth_level]), lengths[mismatched[0]]
            description = "null" if item_length < 0 else f"a list of {item_length}"
            expected = f"expected a list of {expected_length} (shape {dimensions})"
            raise MalformedEpisode(f"{context} of step {step_number} has {description}, {expected}")
        array = array.flatten()
    return array


def flatten_texts(chunks: pa.ChunkedArray, context: str, shape: tuple[int | None, ...]) -> list[str]:
    """Return all texts of a column, flat and row-major; null becomes an empty text."""
    array = _flatten(chunks, context, shape)
    try:
        return [text or "" for text in array.cast(pa.large_string()).to_pylist()]
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise MalformedEpisode(f"{context} is stored as {array.type}, expected text ({str(error)[:200]})") from None


def flatten_numbers(
    chunks: pa.ChunkedArray, dtype: np.dtype, context: str, shape: tuple[int | None, ...]
) -> np.ndarray:
    """Return all numbers of a column, flat and row-major."""
    array = _flatten(chunks, context, shape)
    value_type = array.type
    if array.null_count:
        raise MalformedEpisode(f"{context}: {array.null_count} of {len(array)} values are null, expected numbers")
    if not (pa.types.is_integer(value_type) or pa.types.is_floating(value_type) or pa.types.is_boolean(value_type)):
        raise MalformedEpisode(f"{context}: is stored as {value_type}, expected numbers of {dtype}")
    stored_values = array.to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):
        values = stored_values.astype(dtype)
    if dtype.kind in "iub" and (values != stored_values).any():
        raise MalformedEpisode(f"{context}: values {stored_values.min()} to {stored_values.max()} do not fit {dtype}")
    return values
