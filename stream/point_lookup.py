"""Single records of shards that are not open, looked up without opening them.

With ``shuffle="global"`` over 20,000 shards nearly every row is in a shard that is not open and will not be asked for
again soon. To open it means to map its sidecars and to make arrays of a dozen columns, of which one value each is
wanted. Where columns lie is known from the first time that a shard was open, so the values are read from there.
"""

from __future__ import annotations

import os
import struct
from types import TracebackType
from typing import NamedTuple

import numpy as np

from stream.format import FILE_KINDS, PLACE_FIELDS
from stream.places import ColumnLayout
from stream.record_reader import read_record
from stream.shard_cache import ShardCache
from stream.shard_list import ShardFiles
from stream.shards import CHECKED, TEXTS, file_identity
from stream.spec import BatchSpec
from stream.vectors import Filled, Span, Vector, gather, gather_row

_RECORD = ("episode", "step", "offset", "steps_row")
_PLACE = tuple(column.name for column in PLACE_FIELDS)
_TWO = struct.Struct("<2i")


class RecordPlace(NamedTuple):
    """Where a record lies: a file, its size and what it is remembered by, and what PLACE_FIELDS of ``stream.format``
    say."""

    path: str
    size: int
    identity: int
    position: int
    num_bytes: int
    xxh3_64: int


class Described(NamedTuple):
    """What the sidecars say of a record: real steps of the window; episode (in the dataset), step and offset; the
    instruction; and where the record lies."""

    length: int
    place: tuple[int, int, int]
    language: str
    record: RecordPlace


class _UnknownError(Exception):
    """Something was not noted when the shard was open, or is not as it was then."""


_NOT_FOUND = (_UnknownError, OSError, OverflowError, ValueError, MemoryError)
"""The last three where numbers are not what they were, in a file whose change cannot be seen."""


class _Integer(NamedTuple):
    """A column of integers: its number among the places of a shard, and its type."""

    number: int
    num_bytes: int
    signed: bool


_Part = tuple[ColumnLayout, Span]
"""A column of ``steps``, and what of it goes into a vector."""


class _Columns(NamedTuple):
    """The columns of a dataset that ``describe`` takes."""

    record: tuple[_Integer, ...]
    num_steps: tuple[_Integer, ...]
    texts: tuple[_Integer, ...]
    action: tuple[_Part, ...]
    state: tuple[_Part, ...]


class PointLookup:
    """Looks up records of shards that were open before; safe to use from several threads.

    Whatever is seen not to be as it was then gives None: the caller opens the shard, which finds out what it is.

    Args:
        spec: what a batch holds.
        cache: that opened the shards.
    """

    def __init__(self, spec: BatchSpec, cache: ShardCache) -> None:
        self._spec = spec
        self._sound, self._places = cache.sound, cache.places
        checked = ["places of records"] + ["steps of episodes"] * (spec.horizon is not None)
        self._checked = [CHECKED.index(what) for what in checked]
        self._place: dict[int, tuple[_Integer, ...]] = {}
        self._described: dict[int, _Columns] = {}

    def describe(self, shard: int, record: int, window: np.ndarray, state: np.ndarray) -> Described | None:
        """Look up what the sidecars say of a record, but for further columns.

        Args:
            shard: its number.
            record: in the shard.
            window: the actions are written here, float32 [>= steps, >= dimensions]; zeros with None.
            state: and the state here, float32 [>= dimensions]; zeros with None.
        """
        horizon = self._spec.horizon
        try:
            closed = self._closed(shard)
            if not all(closed.sound[number] for number in self._checked):
                raise _UnknownError
            columns = self._describe_columns(closed.files.member)
            with closed.open("records") as file:
                episode, step, offset, first = (file.integer(column, record) for column in columns.record)
                place = self._place_of(closed, file, record)
            length = offset
            if horizon is not None:
                with closed.open("episodes") as file:
                    length = min(horizon, file.integer(columns.num_steps[0], episode) - step)
            with closed.open("steps") as file:
                gather(file.rows(columns.action, first, length), 0, length, window)
                gather_row(file.rows(columns.state, first, 1), 0, state)
                language = file.text(columns.texts, first)
        except _NOT_FOUND:
            window[:] = 0
            state[:] = 0
            return None
        return Described(length, (closed.files.first_episode + episode, step, offset), language, place)

    def find(self, shard: int, record: int) -> RecordPlace | None:
        """Look up where a record lies."""
        try:
            closed = self._closed(shard)
            with closed.open("records") as file:
                return self._place_of(closed, file, record)
        except _NOT_FOUND:
            return None

    def _closed(self, shard: int) -> _ClosedShard:
        return _ClosedShard(self._spec.shards.files(shard), self._sound[shard].tolist(), self._places.of_shard(shard))

    def _place_of(self, closed: _ClosedShard, records: _File, record: int) -> RecordPlace:
        columns = self._place_columns(closed.files.member)
        return RecordPlace(*closed.file("arrayrecord"), *(records.integer(column, record) for column in columns))

    def _place_columns(self, member: int) -> tuple[_Integer, ...]:
        columns = self._place.get(member)
        if columns is None:
            columns = self._place[member] = self._integers(member, "records", _PLACE)
        return columns

    def _describe_columns(self, member: int) -> _Columns:
        columns = self._described.get(member)
        if columns is None:
            columns = self._described[member] = _Columns(
                record=self._integers(member, "records", _RECORD),
                num_steps=self._integers(member, "episodes", () if self._spec.horizon is None else ("num_steps",)),
                texts=self._integers(member, "texts", TEXTS),
                action=self._parts(member, self._spec.actions[member]),
                state=self._parts(member, self._spec.states[member]),
            )
        return columns

    def _integers(self, member: int, kind: str, names: tuple[str, ...]) -> tuple[_Integer, ...]:
        found = []
        for name in names:
            layout = self._layout(member, kind, name)
            if layout.width or layout.packed or layout.dtype.kind not in "iu":
                raise _UnknownError
            found.append(_Integer(layout.number, layout.dtype.itemsize, layout.dtype.kind == "i"))
        return tuple(found)

    def _parts(self, member: int, vector: Vector) -> tuple[_Part, ...]:
        parts = tuple((self._layout(member, "steps", span.column), span) for span in vector.spans)
        if not all(span.fits(layout.width or 1) for layout, span in parts):
            raise _UnknownError
        return parts

    def _layout(self, member: int, kind: str, name: str) -> ColumnLayout:
        layout = self._places.layout((member, kind, name))
        if layout is None:
            raise _UnknownError
        return layout


class _ClosedShard(NamedTuple):
    """A shard whose files were found sound when they were open.

    sound: see ``stream.shards.Sound``. places: see ``ColumnPlaces.of_shard``.
    """

    files: ShardFiles
    sound: list[int]
    places: list[int]

    def file(self, kind: str) -> tuple[str, int, int]:
        """Path and size of a file, and what it is remembered by."""
        number = FILE_KINDS.index(kind)
        return self.files.file(kind), self.files.sizes[number], self.sound[number]

    def open(self, kind: str) -> _File:
        """Open a file."""
        return _File(*self.file(kind), self.places)


class _File:
    """A file that was found sound when it was open, open again for a few values.

    Args:
        path, size: of the file.
        identity: what it is remembered by; 0 if it was not found sound.
        places: of its columns, by number.

    Raises:
        _UnknownError: it is another file now.
        OSError: it cannot be opened.
    """

    __slots__ = ("_places", "descriptor")

    def __init__(self, path: str, size: int, identity: int, places: list[int]) -> None:
        self._places = places
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            stat = os.fstat(self.descriptor)
            if stat.st_size != size or file_identity(stat) != identity:
                raise _UnknownError
        except BaseException:
            os.close(self.descriptor)
            raise

    def __enter__(self) -> _File:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.descriptor)

    def integer(self, column: _Integer, row: int) -> int:
        """A value of a column."""
        number, num_bytes, signed = column
        return int.from_bytes(self._read(number, num_bytes * row, num_bytes), "little", signed=signed)

    def rows(self, parts: tuple[_Part, ...], first: int, count: int) -> list[Filled]:
        """Rows [first, first + count) of what makes a vector."""
        found = []
        for layout, span in parts:
            begin, end = layout.extent(first, count)
            data = self._read(layout.number, begin, end - begin)
            found.append(span.filled(layout.values(data, first, count)))
        return found

    def text(self, columns: tuple[_Integer, ...], row: int) -> str:
        """The instruction of a step."""
        numbers, ends, letters = columns
        number = self.integer(numbers, row)
        start, stop = _TWO.unpack(self._read(ends.number, _TWO.size // 2 * number, _TWO.size))
        return self._read(letters.number, start, stop - start).decode()

    def _read(self, number: int, place: int, size: int) -> bytes:
        """Some bytes of a column."""
        begin = self._places[number] if number < len(self._places) else 0
        if begin:
            data = os.pread(self.descriptor, size, begin + place)
            if len(data) == size:
                return data
        raise _UnknownError


def read_closed(place: RecordPlace) -> bytes | memoryview | None:
    """Read a record; None if its file is not as it was, or the record is damaged."""
    path, size, identity, position, num_bytes, xxh3_64 = place
    try:
        with _File(path, size, identity, []) as file:
            return read_record(file.descriptor, position, num_bytes, xxh3_64)
    except _NOT_FOUND:
        return None
