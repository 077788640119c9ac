"""Where columns lie in the files of shards, so that a shard that was open before opens again without Arrow.

Arrow takes 70 to 95 microseconds of the processor and 5 to 9 KB to open a sidecar that is mapped. With
``shuffle="global"`` over 20,000 shards nearly every row of a batch opens a shard again, two sidecars of it. A column
of numbers is a place in the file, a type and a width; types and widths are alike in all shards of a dataset, and 20,000
shards of ten columns take 1 MB.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

_LARGEST = (1 << 32) - 1


@dataclass(frozen=True)
class _Layout:
    """Of a column in every shard of a dataset: its number here, its type, and how many values a row has, 0 if it is not
    a list."""

    number: int
    dtype: np.dtype
    width: int


class ColumnPlaces:
    """The places of columns of many shards; safe to use from several threads.

    A column is told by the number of its dataset, the kind of file and its name. 0 is no place: files begin with magic
    bytes. A file that was replaced has its old places or none: its content is compared with the manifest's hash.
    """

    def __init__(self, shards: int) -> None:
        self._layouts: dict[tuple[int, str, str], _Layout] = {}
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
        place = values.__array_interface__["data"][0] - file.address
        if not 0 < place < min(file.size, _LARGEST) or not values.flags.c_contiguous:
            return
        width = values.shape[1] if values.ndim == 2 else 0
        with self._lock:
            layout = self._layouts.get(column)
            if layout is None:
                number = sum(member == column[0] for member, *_ in self._layouts)
                layout = self._layouts[column] = _Layout(number, values.dtype, width)
            if (layout.dtype, layout.width) != (values.dtype, width):
                return
            if layout.number >= self._places.shape[1]:
                more = np.zeros((len(self._places), layout.number + 1), np.uint32)
                more[:, : self._places.shape[1]] = self._places
                self._places = more
            self._places[shard, layout.number] = place

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
        values = np.frombuffer(file, layout.dtype, rows * (layout.width or 1), place)
        return values.reshape(rows, layout.width) if layout.width else values
