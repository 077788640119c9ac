"""Open shards: ArrayRecord readers and memory-mapped sidecars, shared by threads."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from stream.format import (
    FILE_KINDS,
    PLACE_FIELDS,
    TAIL_BYTES,
    FormatError,
    expected_fields,
    hash_end,
    open_sidecar,
    reopen_sidecar,
    shard_file,
)
from stream.mapped_file import map_file
from stream.places import ColumnPlaces
from stream.record_reader import LibraryFile, RecordFile


@dataclass(frozen=True)
class ShardInfo:
    """Where a shard lies and what its manifest says of it.

    member: number of its dataset in the mixture. folder: of its split. first_episode: number of its first episode in
    the split. files: by kind the size in bytes, and the SHA-256 in hex: of all of a sidecar, and of an ArrayRecord
    file's end (see ``FileEntry``), None if the manifest does not have it.
    """

    member: int
    dataset: str
    split: str
    stem: str
    folder: str
    records: int
    steps: int
    episodes: int
    paired_episodes: int
    first_episode: int
    files: dict[str, tuple[int, str | None]] = field(hash=False)

    def path(self, kind: str) -> Path:
        """Where the file of a kind lies."""
        return Path(self.file(kind))

    def file(self, kind: str) -> str:
        """The same as text, which is had in less time."""
        return os.path.join(self.folder, shard_file(self.stem, kind))


TEXTS = ("numbers", "ends", "letters")
"""What is noted of the instructions: the number of each step's; where each number's text begins and ends; the texts."""
CHECKED = (*FILE_KINDS, "places of records", "shares of episodes", "steps of episodes", "without places in the file")
Sound = np.ndarray
"""What was looked at of a shard's files and found to be that of the manifest, int64 [len(CHECKED)]: 0, or what tells
the file by its inode and time of change. Of 20,000 shards a dict each would take 10 MB."""


class OpenShard:
    """One shard; its files are opened when they are first used. Errors are FormatError or OSError.

    When a file is first opened, its content is compared with the manifest: all of a sidecar, and of an ArrayRecord file
    its end; its records are compared with their own checksums when they are read.

    Args:
        info: where it lies.
        sound: files of it that need not be looked at again, added to.
        places: where columns of its files lie, added to.
        number: of the shard in ``places``.
    """

    def __init__(
        self, info: ShardInfo, sound: Sound | None = None, places: ColumnPlaces | None = None, number: int = 0
    ) -> None:
        self.info = info
        self._sound: Sound = np.zeros(len(CHECKED), np.int64) if sound is None else sound
        self._places = ColumnPlaces(1) if places is None else places
        self._number = number
        self._mapped: dict[str, tuple[pa.Buffer, int]] = {}
        self.prepared: object = None
        """What a reader of the sidecars made of them, so that it does so once."""

    def read(self, record: int) -> bytes | memoryview:
        """Return the bytes of one record; any damage of them raises FormatError."""
        return self.file.read(record)

    @cached_property
    def file(self) -> RecordFile | LibraryFile:
        """The open ArrayRecord file."""
        places = self.record_places()
        path, _, identity = self._checked("arrayrecord")
        file = RecordFile(path, *places) if places is not None else LibraryFile(path, self.info.records)
        self._sound[CHECKED.index("arrayrecord")] = identity
        return file

    def record_places(self) -> list[np.ndarray] | None:
        """Where the records lie, integers [records] of each of PLACE_FIELDS; None for a file that was converted before
        there were these."""
        names = [column.name for column in PLACE_FIELDS]
        if self.was_checked("without places in the file"):
            return None
        known = [self._known("records", name) for name in names]
        if all(values is not None for values in known):
            return [values for values in known if values is not None]
        if names[0] not in self.records:
            self.set_checked("without places in the file")
            return None
        size = self.info.files["arrayrecord"][0]
        for values in (self.records[name] for name in names[:2]):
            if len(values) and not 0 <= values.min() <= values.max() <= size:
                raise FormatError(f"{self.info.path('records')}: records lie outside of a file of {size:,} bytes")
        # Noted once they are known to be in order: who finds a note does not look again.
        return [self.record_column(name) for name in names]

    @cached_property
    def steps(self) -> pa.Table:
        """The ``steps`` sidecar."""
        return self._table("steps")

    @cached_property
    def episodes(self) -> pa.Table:
        """The ``episodes`` sidecar."""
        table = self._table("episodes")
        if len(table) and not self.was_checked("shares of episodes"):
            first, pairs = table["first_record"].to_numpy(), table["num_records"].to_numpy().astype(np.int64)
            if pairs.min() < 0 or (first != np.cumsum(pairs) - pairs).any() or pairs.sum() != self.info.records:
                raise FormatError(
                    f"{self.info.path('episodes')}: first_record and num_records do not share out the shard's "
                    f"{self.info.records} records; it was not written by convert"
                )
            self.set_checked("shares of episodes")
        return table

    def episode_steps(self) -> np.ndarray:
        """Steps of each episode, int32 [episodes]; without Arrow as ``record_column``."""
        values = self._known("episodes", "num_steps")
        if values is None:
            values = np.asarray(self.episodes["num_steps"].to_numpy())
            self._note("episodes", "num_steps", values)
        return values

    @cached_property
    def records(self) -> dict[str, np.ndarray]:
        """The columns of the ``records`` sidecar, integers [records], without a copy."""
        table = self._table("records")
        return {name: column_array(table, name) for name in table.column_names}

    def record_column(self, name: str) -> np.ndarray:
        """Return a column of ``records``; one that was looked up before in this very file is there without Arrow."""
        values = self._known("records", name)
        if values is None:
            values = self.records[name]
            self._note("records", name, values)
        return values

    def step_column(self, name: str) -> np.ndarray:
        """Return a column of numbers of ``steps`` as ``column_array`` does; without Arrow as above.

        Raises:
            FormatError: there is no such column of numbers.
        """
        values = self._known("steps", name)
        if values is None:
            place = self.steps.schema.get_field_index(name)
            if place < 0 or not is_numeric(self.steps.schema.field(place).type):
                found = self.steps.schema.field(place).type if place >= 0 else "not there"
                raise FormatError(f"{self.info.path('steps')}: column {name!r} is {found}, expected numbers")
            values = column_array(self.steps, name)
            if (packed := packed_booleans(self.steps, name)) is None:
                self._note("steps", name, values)
            else:
                self._places.note_packed(
                    self._number, (self.info.member, "steps", name), *packed, self._content("steps")[0]
                )
        return values

    @cached_property
    def language(self) -> tuple[np.ndarray, Callable[[int], str]]:
        """Instruction of each step: int32 [steps], and what gives the text of such a number."""
        numbers = self._known("steps", TEXTS[0], of="texts")
        if numbers is not None:
            first, second = (self._places.find(self._number, (self.info.member, "texts", name)) for name in TEXTS[1:])
            if first and second:
                return numbers, partial(_text, memoryview(self._content("steps")[0]), first, second)
        column = _single(self.steps, "language")
        numbers, dictionary = column.indices.to_numpy(), column.dictionary
        if dictionary.null_count:
            raise FormatError(f"{self.info.path('steps')}: {dictionary.null_count} texts of column 'language' are null")
        _, offsets, letters = dictionary.buffers()
        ends = np.frombuffer(offsets, np.int32)[dictionary.offset :] if offsets else np.zeros(0, np.int32)
        self._note("steps", TEXTS[0], numbers, of="texts")
        self._note("steps", TEXTS[1], ends, of="texts")
        # Where all texts are empty, theirs may be no place in the file; any will do.
        place = np.frombuffer(letters, np.uint8) if letters else ends.view(np.uint8)
        self._note("steps", TEXTS[2], place, of="texts")
        return numbers, lambda number: str(dictionary[number].as_py())

    def was_checked(self, what: str) -> bool:
        """Whether something was checked of these very files before, in this process."""
        return bool(self._sound[CHECKED.index(what)])

    def set_checked(self, what: str) -> None:
        """Something was checked and found right."""
        self._sound[CHECKED.index(what)] = 1

    def drop_tables(self) -> None:
        """Let go of what Arrow made of the sidecars; columns that were taken of them stay."""
        for name in ("records", "steps"):
            self.__dict__.pop(name, None)

    def _known(self, kind: str, name: str, *, of: str = "") -> np.ndarray | None:
        """A column of numbers that was noted when this very file was opened before; else None. ``of`` is what it is a
        column of if it is none of the sidecar itself."""
        content, identity = self._content(kind)
        if identity:
            return None
        try:
            column = (self.info.member, of or kind, name)
            return self._places.read(self._number, column, getattr(self.info, kind), content)
        except ValueError as error:
            raise FormatError(f"{self.info.path(kind)}: it was changed while it was in use ({error})") from None

    def _note(self, kind: str, name: str, values: np.ndarray, *, of: str = "") -> None:
        self._places.note(self._number, (self.info.member, of or kind, name), values, self._content(kind)[0])

    def _content(self, kind: str) -> tuple[pa.Buffer, int]:
        """A sidecar, mapped; and what to remember it by once it is found sound, 0 if it was before."""
        if kind not in self._mapped:
            path, known, identity = self._checked(kind)
            self._mapped[kind] = map_file(path), 0 if known else identity
        return self._mapped[kind]

    def _table(self, kind: str) -> pa.Table:
        path, rows = self.info.file(kind), getattr(self.info, kind)
        content, identity = self._content(kind)
        if not identity:
            return reopen_sidecar(path, content)
        table = open_sidecar(path, content)
        for position, column in enumerate(expected_fields(kind, table.schema)):
            found = table.schema.field(position) if position < len(table.schema) else None
            if found is None or not found.equals(column) or table.column(position).null_count:
                raise FormatError(
                    f"{path}: column {position} is {found}, expected {column} without nulls; it was not written by "
                    "convert"
                )
        if len(table) != rows:
            raise FormatError(f"{path}: {len(table)} rows, the manifest says {rows}")
        self._sound[CHECKED.index(kind)] = identity
        return table

    def _checked(self, kind: str) -> tuple[str, bool, int]:
        """Where a file lies, once it is known to be that of the manifest; whether it was found sound before; and what
        to remember it by."""
        path = self.info.file(kind)
        expected, digest = self.info.files[kind]
        try:
            stat = os.stat(path)
        except FileNotFoundError:
            raise FormatError(
                f"{path}: it is not there, though the manifest of {self.info.dataset} names it; copy or convert this "
                "shard again"
            ) from None
        if stat.st_size != expected:
            raise FormatError(
                f"{path}: {stat.st_size:,} bytes, the manifest says {expected:,}; the file is damaged or of another "
                "conversion"
            )
        identity = file_identity(stat)
        before = int(self._sound[CHECKED.index(kind)])
        if before == identity:
            return path, True, identity
        if before:
            self._sound[:] = 0
        if digest is not None and digest != hash_end(path, TAIL_BYTES if kind == "arrayrecord" else expected).hex():
            raise FormatError(
                f"{path}: its content is not that of the manifest; the file is damaged or of another conversion"
            )
        return path, False, identity


def file_identity(stat: os.stat_result) -> int:
    """What tells a file of a certain size from others, and from what it was before a change; never 0.

    The time of modification can be set back by whoever changes a file, that of its status cannot.
    """
    return hash((stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)) | 1


def _text(content: memoryview, ends: int, texts: int, number: int) -> str:
    """A text of an Arrow dictionary, whose offsets and bytes lie at these places of a file."""
    start, stop = struct.unpack_from("<2i", content, ends + 4 * number)
    return bytes(content[texts + start : texts + stop]).decode()


def _single(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def is_numeric(kind: pa.DataType) -> bool:
    """Whether a column has numbers or booleans, one or a fixed number in a row."""
    inner = kind.value_type if isinstance(kind, pa.FixedSizeListType) else kind
    return bool(pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner))


def packed_booleans(table: pa.Table, name: str) -> tuple[np.ndarray, int] | None:
    """Return the bytes that a column of booleans lies in, eight to a byte, and how many a row has, 0 if it is not a
    list; None if it is of others, or does not begin with the first bit."""
    array = _single(table, name)
    values = array.values if isinstance(array.type, pa.FixedSizeListType) else array
    if not pa.types.is_boolean(values.type) or array.null_count or values.null_count or array.offset or values.offset:
        return None
    bits = values.buffers()[1]
    return np.frombuffer(bits, np.uint8), getattr(array.type, "list_size", 0)


def column_array(table: pa.Table, name: str, *, fill: int | None = None) -> np.ndarray:
    """Return a numeric column in its own type, [rows] or [rows, values], without a copy where that is possible.

    Booleans become uint8. Columns with nulls become float, NaN where there is none; with ``fill`` they keep their type
    and have that number there.
    """
    array = _single(table, name)
    rows = len(array)
    values, size = array, None
    if isinstance(array.type, pa.FixedSizeListType):
        size = array.type.list_size
        values = array.values[array.offset * size : (array.offset + rows) * size]
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    if array.null_count or values.null_count:
        # Not safe: integers beyond 2^53 have no float64 of their own, the closest one is taken.
        values = values.cast(pa.float64(), safe=False).fill_null(np.nan) if fill is None else values.fill_null(fill)
        numbers = values.to_numpy(zero_copy_only=False)
        numbers = numbers.reshape(rows, size) if size is not None else numbers
        if array.null_count:
            numbers = numbers.copy()
            numbers[np.asarray(array.is_null())] = np.nan if fill is None else fill
        return numbers
    numbers = values.to_numpy(zero_copy_only=False)
    return numbers.reshape(rows, size) if size is not None else numbers
