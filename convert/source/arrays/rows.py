"""Steps of arrays on the disk, read a few at a time: numbers, pixels, and rows of encoded pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator

import cv2
import numpy as np
import simplejpeg

from convert.errors import CorruptFrame
from convert.source.arrays.layout import Picture
from convert.source.arrays.store import Facts, Store
from convert.source.files.plain import PICTURES

_BLOCK = 8 << 20
"""Bytes of rows of encoded pictures that are read at once."""
_LOOKED = 100
"""Rows that are looked at for the first picture."""


class Rows:
    """Some steps of an array: what numpy's arrays have of shape, dtype and slices.

    Attributes:
        shape, dtype: As they are read: pictures are uint8 [n, H, W, C].
        chunks: Count of steps that are read at once, first of a tuple; None if any count is as good.
        first: Number of the first step in the array.
    """

    def __init__(self, store: Store, path: str, *, start: int, stop: int, picture: Picture | None = None) -> None:
        self._store = store
        self._path = path
        self._stored = store.facts(path)
        self._picture = picture if picture and _is_pixels(self._stored, picture) else None
        self.first = start
        rows = store.block_rows(self._stored)
        self.chunks = None if rows is None else (rows,)
        sample = self._upright(np.empty((0, *self._stored.shape[1:]), self._stored.dtype))
        self.shape = (stop - start, *sample.shape[1:])
        self.dtype = sample.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Read steps; raises OSError if they cannot be read, ValueError if pictures have values that are no pixels."""
        start, stop, _ = rows.indices(len(self))
        return self._upright(self._store.rows(self._path, self._stored, self.first + start, self.first + stop))

    def _upright(self, block: np.ndarray) -> np.ndarray:
        picture = self._picture
        if picture is None:
            return block
        if picture.channels_first:
            block = np.moveaxis(block, 1, -1)
        if picture.floats and block.dtype.kind == "f":
            block = _to_bytes(block, white=picture.floats)
        return np.rot90(block, -picture.rotate // 90, axes=(1, 2)) if picture.rotate else block


def _is_pixels(facts: Facts, picture: Picture) -> bool:
    """Return whether an array has pictures [n, H, W, C], or [n, C, H, W] if declared, of bytes or declared floats."""
    if len(facts.shape) != 4 or facts.shape[1 if picture.channels_first else 3] not in (1, 3, 4):
        return False
    return facts.dtype == np.uint8 or (facts.dtype.kind == "f" and picture.floats is not None)


def _to_bytes(block: np.ndarray, *, white: int) -> np.ndarray:
    """Round pictures of floats to uint8; raises ValueError if one has values beyond black and white, or NaN."""
    found = np.empty(block.shape, np.uint8)
    for number, pixels in enumerate(block):
        rounded = np.rint(pixels * np.float32(255 / white))
        if not ((rounded >= 0) & (rounded <= 255)).all():
            raise ValueError(f"has values from {pixels.min():g} to {pixels.max():g}, expected 0 to {white}")
        found[number] = rounded
    return found


class EncodedRows:
    """Encoded pictures of steps: a list of bytes that reads itself.

    Rows are bytes, arrays of bytes of any length, or arrays [max] of uint8 with zeros after the end. JPEG and PNG never
    end with a zero, and WebP says its length.
    """

    def __init__(self, store: Store, path: str, *, start: int, stop: int, picture: Picture | None = None) -> None:
        self._store = store
        self._path = path
        self._stored = store.facts(path)
        self._picture = picture or Picture()
        self._first = start
        self._length = stop - start

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> bytes:
        """Return the first picture at or after a step, empty if there is none."""
        for row in range(number, min(self._length, number + _LOOKED)):
            place = self._first + row
            if data := _bytes(self._store.rows(self._path, self._stored, place, place + 1)[0]):
                return _trim(data)
        return b""

    def __iter__(self) -> Iterator[bytes | np.ndarray | CorruptFrame]:
        size = self._stored.row_bytes if len(self._stored.shape) > 1 else _BLOCK // 64
        rows = self._store.block_rows(self._stored) or 1
        rows *= max(1, _BLOCK // size // rows)
        for start in range(0, self._length, rows):
            first, last = self._first + start, self._first + min(start + rows, self._length)
            try:
                block = self._store.rows(self._path, self._stored, first, last)
            except OSError:
                yield from (self._read(number) for number in range(first, last))
            else:
                yield from (self._picture_of(_bytes(row)) for row in block)

    def _read(self, number: int) -> bytes | np.ndarray | CorruptFrame:
        try:
            return self._picture_of(_bytes(self._store.rows(self._path, self._stored, number, number + 1)[0]))
        except OSError as error:
            return CorruptFrame(f"{self._path}: cannot be read ({' '.join(str(error).split())[:200]})")

    def _picture_of(self, data: bytes) -> bytes | np.ndarray | CorruptFrame:
        found: bytes | np.ndarray = data
        if data.startswith(PICTURES):
            found = _trim(data)
        else:
            for shape in self._picture.raw:
                if len(data) == math.prod(shape):
                    found = np.frombuffer(data, np.uint8).reshape(shape)
        if not self._picture.rotate:
            return found
        try:
            return np.rot90(_decode(found), -self._picture.rotate // 90)
        except ValueError as error:
            return CorruptFrame(f"{self._path}: cannot be turned, as it cannot be decoded ({error})")


def _decode(picture: bytes | np.ndarray) -> np.ndarray:
    """Return pixels, of which nothing is assumed but that red is first; raises ValueError."""
    if isinstance(picture, np.ndarray):
        return picture
    if picture.startswith(b"\xff\xd8\xff"):
        decoded: np.ndarray = simplejpeg.decode_jpeg(picture)
        return decoded
    found = cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR_RGB) if picture else None
    if found is None:
        raise ValueError(f"{len(picture)} bytes that are neither JPEG, PNG nor WebP")
    return found


def holds_pictures(store: Store, path: str, facts: Facts, *, start: int, stop: int, picture: Picture | None) -> bool:
    """Return whether an array has rows of encoded pictures, which their first bytes tell; or raw ones, if declared."""
    by_bytes = len(facts.shape) == 1 and facts.dtype.kind in "OSV" and facts.dtype.names is None
    if not facts.is_small or not stop > start:
        return False
    if not by_bytes and (len(facts.shape) != 2 or facts.dtype != np.uint8):
        return False
    data = EncodedRows(store, path, start=start, stop=stop)[0]
    return data.startswith(PICTURES) or (picture is not None and len(data) in map(math.prod, picture.raw))


def _bytes(row: object) -> bytes:
    """Return a row as bytes, empty if it is of another type."""
    if isinstance(row, np.ndarray | np.void):
        return row.tobytes()
    return bytes(row) if isinstance(row, bytes | bytearray) else b""


def _trim(data: bytes) -> bytes:
    """Return an encoded picture without what follows its end."""
    if data.startswith(b"RIFF"):
        return data[: 8 + int.from_bytes(data[4:8], "little")]
    return data.rstrip(b"\0")
