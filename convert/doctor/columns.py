"""A shard of a converted split, opened: its rows of the split's index, and its records."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from convert.doctor.rules import Example, Place
from convert.verify.split_shard import SplitShard
from stream.format.names import TableKind, frame_views
from stream.format.record_file import RecordFile
from stream.format.table import Table
from stream.storage.errors import FormatError


class OpenShard:
    """The rows and records of one shard.

    Args:
        place: Shard and its rows in the index.

    Raises:
        FormatError: From every method, a file is missing or not the one in the manifest.
        OSError: From every method, a file cannot be read.
    """

    def __init__(self, place: SplitShard) -> None:
        self.place = place
        self._tables: dict[TableKind, Table] = {}
        self._file: RecordFile | None = None

    def table(self, kind: TableKind) -> Table:
        """Return a table of the split's index."""
        if kind not in self._tables:
            self._tables[kind] = self.place.open_table(kind)
        return self._tables[kind]

    def column(self, kind: TableKind, name: str) -> np.ndarray:
        """Return the shard's rows of a column of numbers."""
        return self.table(kind).array(name)[self.place.rows(kind)]

    def vector(self, which: str, size: int) -> np.ndarray:
        """Return ``action`` or ``state`` of each step of the shard, float32 [steps, size]."""
        steps = self.place.entry.steps
        if not size or not steps:
            return np.zeros((steps, size), np.float32)
        column = self.table("steps").columns.get(which)
        if column is None or (column.dtype, column.width) != ("<f4", size):
            found = "is missing" if column is None else f"has {column.width} values of {column.dtype} a row"
            raise FormatError(f"steps.arrow: column {which!r} {found}, the manifest says {size} of float32")
        return self.column("steps", which)

    def language(self) -> tuple[np.ndarray, list[str]]:
        """Return the instruction of each step as its number in a list of texts, and the list."""
        numbers, inverse = np.unique(self.column("steps", "language"), return_inverse=True)
        return inverse, [self.table("steps").text("language", number) for number in numbers.tolist()]

    def end_frames(self, record: int) -> tuple[bytes, bytes]:
        """Return the encoded first and last frame of a record, counted in the shard."""
        position, num_bytes, xxh3_64 = (
            int(self.column("records", name)[record]) for name in ("position", "num_bytes", "xxh3_64")
        )
        frames = frame_views(self.open_records().read(position, num_bytes, xxh3_64))
        return bytes(frames[0]), bytes(frames[-1])

    def open_records(self) -> RecordFile:
        """Return the ArrayRecord file, opened once."""
        if self._file is None:
            self._file = self.place.open_records()
        return self._file


class Episodes:
    """The episodes of a shard, by row in the shard.

    Attributes:
        num_steps: Steps of each episode.
        num_records: Records of each episode.
        first_step: First step of each episode, counted in the shard.
        first_record: First record of each episode, counted in the shard.
        paired: Rows of the episodes that have pairs.
    """

    def __init__(self, shard: OpenShard) -> None:
        self._shard = shard
        self.num_steps = shard.column("episodes", "num_steps")
        self.num_records = shard.column("episodes", "num_records")
        self.first_step = shard.column("episodes", "first_steps_row") - shard.place.first["steps"]
        self.first_record = shard.column("episodes", "first_record") - shard.place.first["records"]
        self.paired = np.flatnonzero(self.num_records > 0)

    def row_of(self, record: int) -> int:
        """Return the episode of a record, counted in the shard."""
        return int(self._shard.column("records", "episode")[record]) - self._shard.place.first["episodes"]

    def place(self, row: int, *, step: int | None = None, record: int | None = None) -> Place:
        """Return where an episode came from."""
        return Place(
            source_file=self._text("source_file", row),
            source_position=int(self._shard.column("episodes", "source_position")[row]),
            shard=self._shard.place.name,
            record=record,
            step=step,
        )

    def text(self, row: int) -> str:
        """Return the instruction of an episode, the first that is not empty."""
        return self._text("language", row)

    def example(self, row: int, text: str, *, step: int | None = None) -> Example:
        """Return something that was found in an episode."""
        return Example(place=self.place(row, step=step), text=text, instruction=self.text(row))

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield row and [start, stop) in the shard's steps of each episode that has pairs."""
        for row in self.paired.tolist():
            start = int(self.first_step[row])
            yield row, start, start + int(self.num_steps[row])

    def _text(self, column: str, row: int) -> str:
        first = self._shard.place.first["episodes"]
        return self._shard.table("episodes").take_texts(column, np.array([first + row]))[0]
