"""An open shard of a converted split: its rows in the index, and its records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial

import numpy as np

from convert.doctor.findings import Example, Notes
from convert.verify.split_shard import SplitShard
from stream.format.names import HOLE, TableKind, frame_views
from stream.format.record_file import RecordFile
from stream.format.table import Table

_APART = 5
"""Steps between the two frames of a pair that is looked at, in the layout ``frames``."""


class OpenShard:
    """The rows and records of one shard. Rows, steps and records are counted from the first of the shard.

    Args:
        place: Shard.

    Raises:
        FormatError: From every method, a file is missing or differs from the manifest.
        OSError: From every method, a file cannot be read.
    """

    def __init__(self, place: SplitShard) -> None:
        self.place = place
        self._tables: dict[TableKind, Table] = {}

    def table(self, kind: TableKind) -> Table:
        """Return a table of the index of the split."""
        if kind not in self._tables:
            self._tables[kind] = self.place.open_table(kind)
        return self._tables[kind]

    def column(self, kind: TableKind, name: str) -> np.ndarray:
        """Return the rows of the shard in a column of numbers."""
        return self.table(kind).array(name)[self.place.rows(kind)]

    def vector(self, which: str, size: int) -> np.ndarray:
        """Return ``action`` or ``state`` of each step, float32 [steps, size]."""
        steps = self.place.entry.steps
        return self.column("steps", which) if size and steps else np.zeros((steps, size), np.float32)

    def language(self) -> tuple[np.ndarray, list[str]]:
        """Return the instruction of each step as its number in a list of texts, and the list."""
        numbers, inverse = np.unique(self.column("steps", "language"), return_inverse=True)
        return inverse, [self.table("steps").text("language", number) for number in numbers.tolist()]

    @cached_property
    def file(self) -> RecordFile:
        """The open ArrayRecord file."""
        return self.place.open_records()

    def end_frames(self, record: int) -> tuple[bytes, bytes]:
        """Return the encoded first and last frame of a record."""
        location = (int(self.column("records", name)[record]) for name in ("position", "num_bytes", "xxh3_64"))
        frames = frame_views(self.file.read(*location))
        return bytes(frames[0]), bytes(frames[-1])

    def records_of(self, row: int) -> range:
        """Return the records of an episode, of its first camera alone in the layout ``frames``."""
        first = int(self.column("episodes", "first_record")[row]) - self.place.first["records"]
        cameras = max(1, len(self.place.entry.camera_sizes))
        return range(first, first + int(self.column("episodes", "num_records")[row]) // cameras)

    def last_of(self, record: int) -> int:
        """Return the record with the last frame of a pair: a later one of its camera in the layout ``frames``."""
        if not self.place.entry.camera_sizes:
            return record
        step = int(self.column("records", "step")[record])
        left = int(self.column("episodes", "num_steps")[self.episode_of(record)]) - 1 - step
        return record + min(_APART, left)

    def is_hole(self, record: int) -> bool:
        """Return whether a record has no frame."""
        return int(self.column("records", "num_bytes")[record]) == len(HOLE)

    def episode_of(self, record: int) -> int:
        """Return the episode of a record."""
        return int(self.column("records", "episode")[record]) - self.place.first["episodes"]

    def paired_episodes(self) -> Iterator[tuple[int, int, int]]:
        """Yield row, first step and end of each episode that has records."""
        starts = self.column("episodes", "first_steps_row") - self.place.first["steps"]
        lengths = self.column("episodes", "num_steps")
        for row in np.flatnonzero(self.column("episodes", "num_records")).tolist():
            yield row, int(starts[row]), int(starts[row] + lengths[row])

    def example(
        self,
        row: int,
        text: str,
        *,
        step: int | None = None,
        record: int | None = None,
        picture: Callable[[], bytes | None] | None = None,
    ) -> Example:
        """Return an example about an episode; ``picture`` makes its picture."""
        return Example(
            source_file=self._text("source_file", row),
            source_position=int(self.column("episodes", "source_position")[row]),
            shard=self.place.entry.name,
            record=record,
            step=step,
            text=text,
            instruction=self._text("language", row),
            picture=picture() if picture is not None else None,
        )

    def note_steps(self, rule: str, wrong: np.ndarray, text: Callable[[int, str], str], notes: Notes) -> None:
        """Note each episode with records that has wrong steps.

        Args:
            rule: Name of the rule.
            wrong: Whether each step of the shard is wrong, bool [steps].
            text: Function of the first wrong step and of "N of M steps".
            notes: Notes to add to.
        """
        if not wrong.any():
            return
        for row, start, stop in self.paired_episodes():
            if len(steps := np.flatnonzero(wrong[start:stop])):
                step = int(steps[0])
                told = text(start + step, f"{len(steps):,} of {stop - start:,} steps")
                notes.add(rule, self.place.split, partial(self.example, row, told, step=step))

    def _text(self, column: str, row: int) -> str:
        return self.table("episodes").take_texts(column, np.array([self.place.first["episodes"] + row]))[0]
