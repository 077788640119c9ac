"""Where columns lie in the files of shards, so that a shard that was open before is read again without Arrow.

Arrow takes 70 to 95 microseconds of the processor and 5 to 9 KB to open a sidecar that is mapped. A column of numbers
is a place in the file, a type and a width; types and widths are alike in all shards of a dataset, and 20,000 shards of
ten columns take 1 MB.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import pyarrow as pa

_LARGEST = (1 << 32) - 1


class ColumnLayout(NamedTuple):
    """Of a column in every shard of a dataset.

    number: among the places of a shard. dtype: of its values. width: how many a row has, 0 if it is not a list. packed:
    whether they are booleans, eight to a byte, the first in the lowest bit; ``dtype`` is uint8 then.
    """

    number: int
    dtype: np.dtype
    width: int
    packed: bool

    def extent(self, first: int, rows: int) -> tuple[int, int]:
        """Where the bytes of some rows begin and end, counted from the column's beginning."""
        width = self.width or 1
        if self.packed:
            return first * width // 8, -(-(first + rows) * width // 8)
        size = width * self.dtype.itemsize
        return first * size, (first + rows) * size

    def values(self, data: bytes | memoryview, first: int, rows: int) -> np.ndarray:
        """Return some rows of what lies in the bytes of ``extent``, [rows] or [rows, width]."""
        if self.packed:
            width = self.width or 1
            skipped = first * width % 8
            bits = np.frombuffer(data, np.uint8)
            values = np.unpackbits(bits, count=skipped + rows * width, bitorder="little")[skipped:]
        else:
            values = np.frombuffer(data, self.dtype)
        return values.reshape(rows, self.width) if self.width else values


class ColumnPlaces:
    """The places of columns of many shards; safe to use from several threads.

    A column is told by the number of its dataset, the kind of file and its name. 0 is no place: files begin with magic
    bytes. A file that was replaced has its old places or none: its content is compared with the manifest's hash.
    """

    def __init__(self, shards: int) -> None:
        self._layouts: dict[tuple[int, str, str], ColumnLayout] = {}
        self._places = np.zeros((shards, 0), np.uint32)
        self._lock = threading.Lock()

    def note(self, shard: int, column: tuple[int, str, str], values: np.ndarray, file: pa.Buffer) -> None:
        """Take note of where the values of a column lie, if that is in the file, and if they are stored as in the other
        shards of the dataset.

        Args:
            shard: its number.
            column: dataset, kind of file, name.
            values: [rows] or [rows, width].
            file: all of it, mapped.
        """
        if values.flags.c_contiguous:
            width = values.shape[1] if values.ndim == 2 else 0
            self._note(shard, column, values, (values.dtype, width, False), file)

    def note_packed(
        self, shard: int, column: tuple[int, str, str], bits: np.ndarray, width: int, file: pa.Buffer
    ) -> None:
        """The same of booleans that are packed.

        Args:
            bits: the bytes they lie in, uint8.
            width: how many a row has, 0 if the column is not a list.
        """
        self._note(shard, column, bits, (bits.dtype, width, True), file)

    def _note(
        self,
        shard: int,
        column: tuple[int, str, str],
        values: np.ndarray,
        found: tuple[np.dtype, int, bool],
        file: pa.Buffer,
    ) -> None:
        place = values.__array_interface__["data"][0] - file.address
        if not 0 < place < min(file.size, _LARGEST):
            return
        with self._lock:
            layout = self._layouts.get(column)
            if layout is None:
                number = sum(member == column[0] for member, *_ in self._layouts)
                layout = self._layouts[column] = ColumnLayout(number, *found)
            if layout[1:] != found:
                return
            if layout.number >= self._places.shape[1]:
                more = np.zeros((len(self._places), layout.number + 1), np.uint32)
                more[:, : self._places.shape[1]] = self._places
                self._places = more
            self._places[shard, layout.number] = place

    def layout(self, column: tuple[int, str, str]) -> ColumnLayout | None:
        """How a column lies in the files of its dataset, None as long as it was not noted of any."""
        return self._layouts.get(column)

    def of_shard(self, shard: int) -> list[int]:
        """Where the columns of a shard begin, each in its file, by the number of their layout; 0 for those that were
        not noted, and there may be fewer than layouts."""
        return self._places[shard].tolist()

    def find(self, shard: int, column: tuple[int, str, str]) -> int:
        """Where in its file a column begins, 0 if that was not noted."""
        layout, places = self._layouts.get(column), self._places
        return int(places[shard, layout.number]) if layout is not None and layout.number < places.shape[1] else 0

    def read(self, shard: int, column: tuple[int, str, str], rows: int, file: pa.Buffer) -> np.ndarray | None:
        """Return a column as ``note`` got it, None if that was not noted.

        Raises:
            ValueError: the file ends before it.
        """
        if not (place := self.find(shard, column)):
            return None
        layout = self._layouts[column]
        _, size = layout.extent(0, rows)
        data = memoryview(file)[place : place + size]
        if len(data) < size:
            raise ValueError(f"it ends before {column[-1]!r} does")
        return layout.values(data, 0, rows)
