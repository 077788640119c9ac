"""Steps of arrays on the disk, read a few at a time: numbers, pixels, and rows of encoded pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from convert.errors import CorruptFrame
from convert.picture import PICTURES, RIFF, decode_frame, floats_to_bytes
from convert.source.arrays.layout import Picture
from convert.source.arrays.store import ArrayInfo, Store

_BLOCK = 8 << 20
"""Bytes of rows of encoded pictures that are read at once."""
_SEARCHED_ROWS = 100
"""Rows that are searched for the first picture."""


class Rows:
    """Steps of an array, with the shape, dtype and slices of a numpy array.

    Attributes:
        shape: Shape as read; pictures are [n, H, W, C].
        dtype: dtype as read; pictures are uint8.
        chunks: Count of steps that are read at once, first of a tuple; None if any count is as good.
        first: Number of the first step in the array.
    """

    def __init__(self, store: Store, path: str, *, start: int, stop: int, picture: Picture | None = None) -> None:
        self._store = store
        self._path = path
        self._stored = store.array_info(path)
        self._picture = picture if picture and _is_pixels(self._stored, picture) else None
        self.first = start
        block_rows = store.block_rows(self._stored)
        self.chunks = None if block_rows is None else (block_rows,)
        sample = self._upright(np.empty((0, *self._stored.shape[1:]), self._stored.dtype))
        self.shape = (stop - start, *sample.shape[1:])
        self.dtype = sample.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, row_slice: slice) -> np.ndarray:
        """Read steps; raises OSError if they cannot be read, ValueError if pictures have invalid values."""
        start, stop, _ = row_slice.indices(len(self))
        return self._upright(self._store.rows(self._path, self._stored, self.first + start, self.first + stop))

    def _upright(self, block: np.ndarray) -> np.ndarray:
        picture = self._picture
        if picture is None:
            return block
        if picture.channels_first:
            block = np.moveaxis(block, 1, -1)
        if picture.floats and block.dtype.kind == "f":
            block = floats_to_bytes(block, white=picture.floats)
        return np.rot90(block, -picture.rotate // 90, axes=(1, 2)) if picture.rotate else block


def _is_pixels(info: ArrayInfo, picture: Picture) -> bool:
    """Return whether an array has pictures [n, H, W, C], or [n, C, H, W] if declared, of bytes or declared floats."""
    if len(info.shape) != 4 or info.shape[1 if picture.channels_first else 3] not in (1, 3, 4):
        return False
    return info.dtype == np.uint8 or (info.dtype.kind == "f" and picture.floats is not None)


class EncodedRows:
    """Encoded pictures of steps: a list of bytes that reads itself.

    Rows are bytes, arrays of bytes of any length, or arrays [max] of uint8 with zeros after the end. JPEG and PNG never
    end with a zero, and WebP says its length.
    """

    def __init__(self, store: Store, path: str, *, start: int, stop: int, picture: Picture | None = None) -> None:
        self._store = store
        self._path = path
        self._stored = store.array_info(path)
        self._picture = picture or Picture()
        self._first = start
        self._length = stop - start

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, step_number: int) -> bytes:
        """Return the first picture at or after a step, empty if there is none."""
        for offset in range(step_number, min(self._length, step_number + _SEARCHED_ROWS)):
            row_number = self._first + offset
            if data := _bytes(self._store.rows(self._path, self._stored, row_number, row_number + 1)[0]):
                return _trim(data)
        return b""

    def __iter__(self) -> Iterator[bytes | np.ndarray | CorruptFrame]:
        row_bytes = self._stored.row_bytes if len(self._stored.shape) > 1 else _BLOCK // 64
        block_rows = self._store.block_rows(self._stored) or 1
        block_rows *= max(1, _BLOCK // row_bytes // block_rows)
        for block_start in range(0, self._length, block_rows):
            block_stop = min(block_start + block_rows, self._length)
            yield from self._read(self._first + block_start, self._first + block_stop)

    def _read(self, first_row: int, end_row: int) -> Iterator[bytes | np.ndarray | CorruptFrame]:
        """Yield rows, each read separately where they cannot be read together."""
        try:
            block = self._store.rows(self._path, self._stored, first_row, end_row)
        except OSError as error:
            if end_row - first_row > 1:
                for row_number in range(first_row, end_row):
                    yield from self._read(row_number, row_number + 1)
            else:
                yield CorruptFrame(f"{self._path}: cannot be read ({' '.join(str(error).split())[:200]})")
        else:
            yield from (self._picture_of(_bytes(row)) for row in block)

    def _picture_of(self, content: bytes) -> bytes | np.ndarray | CorruptFrame:
        picture: bytes | np.ndarray = content
        if content.startswith(PICTURES):
            picture = _trim(content)
        else:
            for shape in self._picture.raw:
                if len(content) == math.prod(shape):
                    picture = np.frombuffer(content, np.uint8).reshape(shape)
        if not self._picture.rotate:
            return picture
        try:
            pixels = picture if isinstance(picture, np.ndarray) else decode_frame(picture)
            return np.rot90(pixels, -self._picture.rotate // 90)
        except CorruptFrame as error:
            return CorruptFrame(f"{self._path}: cannot be turned, as it cannot be decoded ({error})")


def holds_pictures(store: Store, path: str, info: ArrayInfo, *, start: int, stop: int, picture: Picture | None) -> bool:
    """Return whether an array has rows of encoded pictures, by their magic bytes, or declared raw pictures."""
    rows_are_bytes = len(info.shape) == 1 and info.dtype.kind in "OSV" and info.dtype.names is None
    if not info.is_small or not stop > start:
        return False
    if not rows_are_bytes and (len(info.shape) != 2 or info.dtype != np.uint8):
        return False
    content = EncodedRows(store, path, start=start, stop=stop)[0]
    return content.startswith(PICTURES) or (picture is not None and len(content) in map(math.prod, picture.raw))


def _bytes(row: object) -> bytes:
    """Return a row as bytes, empty if it is of another type."""
    if isinstance(row, np.ndarray | np.void):
        return row.tobytes()
    return bytes(row) if isinstance(row, bytes | bytearray) else b""


def _trim(content: bytes) -> bytes:
    """Return an encoded picture without the padding after its end."""
    if content.startswith(RIFF):
        return content[: 8 + int.from_bytes(content[4:8], "little")]
    return content.rstrip(b"\0")
