"""Location of the frames of a batch: the records to read, and the places of their frames in the batch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stream.batch.mapped import MappedIndex
from stream.batch.spec import BatchSpec
from stream.format.names import HOLE
from stream.order.random_numbers import uniform
from stream.order.rows import Rows
from stream.order.shuffle import make_key

Use = tuple[int, int, int]
"""Camera and frame of the batch, and number of the frame in its record."""


@dataclass
class Frames:
    """Records of a batch, sorted by row, and the places of their frames.

    ``stream.format.schema.RECORD_FIELDS`` describes the columns.

    Attributes:
        begins: First record of each row, and the count of records.
        shards: Shard of each row's records.
        num_bytes: Size of each record.
        positions: Byte offset of each record in its shard.
        xxh3_64: Checksum of each record.
        uses: Places of the frames of each record.
        copies: Row, camera, frame, and the frame of the same row and camera that has the same picture.
        blanks: Row, camera and frame without a picture.
    """

    begins: list[int]
    shards: list[int]
    num_bytes: list[int]
    positions: list[int]
    xxh3_64: list[int]
    uses: list[tuple[Use, ...]]
    copies: list[tuple[int, int, int, int]] = field(default_factory=list)
    blanks: list[tuple[int, int, int]] = field(default_factory=list)


def _padded(stored: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the stored cameras of each member, int64 [M, K], padded with -1, and how many there are, int64 [M]."""
    counts = np.array(list(map(len, stored)), np.int64)
    return np.array([[*own, *[-1] * (counts.max() - len(own))] for own in stored], np.int64), counts


class FrameFinder:
    """Finder of the frames of a spec's batches, safe to use from several threads."""

    def __init__(self, spec: BatchSpec, index: MappedIndex) -> None:
        self._index = index
        records = [split.records for split in spec.splits]
        self._int32 = np.stack([index.starts(records, name, 4) for name in ("shard", "num_bytes")], axis=1)
        self._int64 = np.stack([index.starts(records, name, 8) for name in ("position", "xxh3_64")], axis=1)
        self._is_pairs = np.array([layout == "pairs" for layout in spec.layouts])
        # The first stored camera, [M, C]; -1 for none.
        self._stored = np.array([[*own, -1][0] for camera in spec.cameras for own in camera.stored], np.int64)
        self._stored = self._stored.reshape(len(spec.cameras), -1).T
        self._drawn = {
            number: (make_key(spec.seed, "camera", camera.suffix), *_padded(camera.stored))
            for number, camera in enumerate(spec.cameras)
            if camera.is_drawn
        }
        # Frames of a record, [M, K] by stored camera.
        self._gops = np.ones((len(spec.layouts), max(spec.stored_cameras)), np.int64)
        for camera in spec.cameras:
            for member, (own, sources) in enumerate(zip(camera.stored, camera.sources, strict=True)):
                for place, source in zip(own, sources, strict=True):
                    self._gops[member, place] = source.gop
        self._used = spec.window_table.used
        self._shape = (len(spec.cameras), spec.window_table.frames)
        self._places = [
            {step: place for place, step in reversed(list(enumerate(offsets)))} for offsets in spec.record_offsets
        ]
        self._pair_uses = [self._fixed_uses(spec, member) for member in range(len(spec.layouts))]
        self._blank = (self._stored < 0)[:, :, None] | ~self._used[:, None, :]
        self._has_blanks = bool(self._blank[self._is_pairs].any())

    def _fixed_uses(self, spec: BatchSpec, member: int) -> tuple[Use, ...] | None:
        """Return the uses of every record of a member, None if they differ."""
        window = spec.windows[member]
        if not self._is_pairs[member] or len(window.fixed) < len(window):
            return None
        places = self._places[member]
        return tuple(
            (camera, frame, places[distance])
            for camera in range(self._shape[0])
            if self._stored[member, camera] >= 0
            for frame, distance in enumerate(window.fixed)
        )

    def find(
        self,
        rows: Rows,
        *,
        step: np.ndarray,
        num_steps: np.ndarray,
        first_record: np.ndarray,
        taken: np.ndarray,
        sound: np.ndarray,
    ) -> tuple[Frames, np.ndarray | None]:
        """Return the records of a batch, and its holes.

        Args:
            rows: Rows of the batch, b of them.
            step, num_steps, first_record: t, and the episode of each row, int64 [b].
            taken: Steps of the frames, int64 [b, F].
            sound: Mask of the rows that the index describes, bool [b]; others have no records.

        Returns:
            Records; bool [b, C, F], True for frames without a picture in the layout ``frames``, or None if no row has
            that layout.
        """
        pairs = self._is_pairs[rows.member]
        if pairs.all():
            return self._find_pairs(rows, step, taken, sound), None
        count, (cameras, frames) = len(rows), self._shape
        stored = self._stored[rows.member]
        for number, (key, choices, counts) in self._drawn.items():
            place = (uniform(key, rows.sample) * counts[rows.member]).astype(np.int64)
            stored[:, number] = choices[rows.member, place]
        record = (first_record[:, None] + stored * num_steps[:, None])[:, :, None] + taken[:, None, :]
        blank = self._blank[rows.member]
        wanted = ~blank & (sound & ~pairs)[:, None, None]
        # The first of several frames of one row and camera with the same record.
        same = (record[:, :, :, None] == record[:, :, None, :]) & wanted[:, :, None, :]
        first = same.argmax(axis=3)
        is_first = wanted & (first == np.arange(frames))
        record = np.where(is_first, record, -1)
        # A pair is one record of its row, whatever its frames are.
        record[pairs & sound, 0, 0] = rows.record[pairs & sound]
        row, camera, frame = np.nonzero(record >= 0)
        found = record[row, camera, frame]
        small, large = self._take(rows.split[row], found)
        is_hole = (small[:, 1] == len(HOLE)) & ~pairs[row]
        holes = np.zeros((count, cameras, frames), bool)
        holes[row[is_hole], camera[is_hole], frame[is_hole]] = True
        holes = np.take_along_axis(holes, first, axis=2) & wanted
        read = ~is_hole
        row, camera, frame, small, large = row[read], camera[read], frame[read], small[read], large[read]
        place = taken[row, frame] % self._gops[rows.member[row], stored[row, camera]]
        uses: list[tuple[Use, ...]]
        uses = [(use,) for use in zip(camera.tolist(), frame.tolist(), place.tolist(), strict=True)]
        if (self._gops > 1).any():
            # A chunk is read once for all of its frames, which are decoded in their order.
            order = np.lexsort((place, large[:, 0], row))
            row, small, large = row[order], small[order], large[order]
            is_next = (np.diff(row, prepend=-1) == 0) & (np.diff(large[:, 0], prepend=-1) == 0)
            begins = np.flatnonzero(~is_next)
            # None if no row has a frame.
            spans = itertools.pairwise([*begins.tolist(), len(order)])
            uses = [tuple(uses[o][0] for o in order[begin:end].tolist()) for begin, end in spans]
            row, small, large = row[begins], small[begins], large[begins]
        begins = np.searchsorted(row, np.arange(count + 1))
        shards = np.zeros(count, np.int64)
        shards[row] = small[:, 0]
        for number in np.flatnonzero(pairs[row]).tolist():
            uses[number] = self._uses(rows, int(row[number]), step, taken)
        missing = holes | (blank & sound[:, None, None])
        again = np.argwhere(wanted & ~is_first & ~holes)
        copies = [(r, c, f, int(first[r, c, f])) for r, c, f in again.tolist()]
        blanks = [(r, c, f) for r, c, f in np.argwhere(missing).tolist()]
        return self._frames(begins, shards, small, large, uses, copies, blanks), holes

    def _find_pairs(self, rows: Rows, step: np.ndarray, taken: np.ndarray, sound: np.ndarray) -> Frames:
        small, large = self._take(rows.split, rows.record)
        uses = [self._uses(rows, row, step, taken) for row in range(len(rows))]
        blanks = []
        if self._has_blanks:
            blanks = [(r, c, f) for r, c, f in np.argwhere(self._blank[rows.member]).tolist()]
        return self._frames(np.arange(len(rows) + 1), small[:, 0], small, large, uses, [], blanks)

    def _uses(self, rows: Rows, row: int, step: np.ndarray, taken: np.ndarray) -> tuple[Use, ...]:
        """Return the uses of the record of a pair."""
        member = rows.member[row]
        uses = self._pair_uses[member]
        if uses is None:
            places = self._places[member]
            uses = tuple(
                (camera, frame, places.get(distance, 0))
                for camera in range(self._shape[0])
                if self._stored[member, camera] >= 0
                for frame, distance in enumerate((taken[row] - step[row]).tolist())
                if self._used[member, frame]
            )
        return uses

    def _take(self, split: np.ndarray, record: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        small = self._index.int32[self._int32[split] + record[:, None]]
        return small, self._index.int64[self._int64[split] + record[:, None]]

    @staticmethod
    def _frames(
        begins: np.ndarray,
        shards: np.ndarray,
        small: np.ndarray,
        large: np.ndarray,
        uses: list[tuple[Use, ...]],
        copies: list[tuple[int, int, int, int]],
        blanks: list[tuple[int, int, int]],
    ) -> Frames:
        return Frames(
            begins=begins.tolist(),
            shards=shards.tolist(),
            num_bytes=small[:, 1].tolist(),
            positions=large[:, 0].tolist(),
            xxh3_64=large[:, 1].view(np.uint64).tolist(),
            uses=uses,
            copies=copies,
            blanks=blanks,
        )
