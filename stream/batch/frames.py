"""Location of the frames of a batch: the records to read, and the images in the batch that their frames fill."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from stream.base.random_numbers import make_key, uniform
from stream.batch.mapped import MappedIndex
from stream.batch.spec import BatchSpec
from stream.format.names import HOLE
from stream.order.rows import Rows

ImageIndex = tuple[int, int, int]
"""Row, camera and frame of an image in the batch."""
Use = tuple[int, int, int]
"""Camera and frame of the batch, and number of the frame in its record."""


@dataclass
class Frames:
    """Records of a batch, sorted by row, and the images that they fill.

    ``stream.format.schema.RECORD_FIELDS`` describes the columns.

    Attributes:
        row_starts: First record of each row, and the count of records.
        shards: Shard of each row's records.
        num_bytes: Size of each record.
        positions: Byte offset of each record in its shard.
        xxh3_64: Checksum of each record.
        uses: Images that each record fills.
        copies: Row, camera, frame, and the frame of the same row and camera that has the same picture.
        black: Images without a picture.
    """

    row_starts: list[int]
    shards: list[int]
    num_bytes: list[int]
    positions: list[int]
    xxh3_64: list[int]
    uses: list[tuple[Use, ...]]
    copies: list[tuple[int, int, int, int]] = field(default_factory=list)
    black: list[ImageIndex] = field(default_factory=list)


class _Locations(NamedTuple):
    """Locations of n records.

    Attributes:
        shard_and_size: Shard and size in bytes, int32 [n, 2].
        position_and_hash: Byte offset in the shard and checksum, int64 [n, 2].
    """

    shard_and_size: np.ndarray
    position_and_hash: np.ndarray

    def select(self, records: np.ndarray) -> _Locations:
        """Return the locations of some records, by mask or by number."""
        return _Locations(self.shard_and_size[records], self.position_and_hash[records])


class FrameFinder:
    """Finder of the frames of a spec's batches, safe to use from several threads."""

    def __init__(self, spec: BatchSpec, mapped_index: MappedIndex) -> None:
        self._index = mapped_index
        record_tables = [split_index.records for split_index in spec.splits]
        int32_starts = [mapped_index.starts(record_tables, name, 4) for name in ("shard", "num_bytes")]
        int64_starts = [mapped_index.starts(record_tables, name, 8) for name in ("position", "xxh3_64")]
        self._int32_starts, self._int64_starts = np.stack(int32_starts, axis=1), np.stack(int64_starts, axis=1)
        self._is_pairs = np.array([layout == "pairs" for layout in spec.layouts])
        # The first stored camera, [M, C]; -1 for none.
        first_cameras = [[(*indices, -1)[0] for indices in camera.stored] for camera in spec.cameras]
        self._camera_index = np.array(first_cameras, np.int64).T
        self._drawn_cameras = {
            camera_number: (make_key(spec.seed, "camera", camera.suffix), *_padded(camera.stored))
            for camera_number, camera in enumerate(spec.cameras)
            if camera.is_drawn
        }
        self._record_frames = _record_frames(spec)
        self._has_chunks = bool((self._record_frames > 1).any())
        self._is_used = spec.window_table.used
        self._absent = (self._camera_index < 0)[:, :, None] | ~self._is_used[:, None, :]
        self._pairs_have_absent = bool(self._absent[self._is_pairs].any())
        # Number of a frame in its record by its distance from t; of equal distances the first counts.
        self._numbers_in_pair = [
            {distance: number for number, distance in reversed(list(enumerate(offsets)))}
            for offsets in spec.record_offsets
        ]
        self._fixed_uses = [
            self._uses_at(member, window.fixed) if self._is_pairs[member] and len(window.fixed) == len(window) else None
            for member, window in enumerate(spec.windows)
        ]

    def find(
        self,
        rows: Rows,
        *,
        sample_steps: np.ndarray,
        episode_steps: np.ndarray,
        first_record: np.ndarray,
        frame_steps: np.ndarray,
        valid: np.ndarray,
        dropped: np.ndarray | None = None,
    ) -> tuple[Frames, np.ndarray | None]:
        """Return the records of a batch, and its missing frames.

        Args:
            rows: Rows of the batch, b of them.
            sample_steps: Step t of each row, int64 [b].
            episode_steps: Steps of the episode of each row, int64 [b].
            first_record: First record of the episode of each row, int64 [b].
            frame_steps: Steps of the frames, int64 [b, F].
            valid: Mask of the rows that the index describes, bool [b]; others have no records.
            dropped: Mask of the frames that dropout makes black, bool [b, F], or None. Pairs have none.

        Returns:
            Records; bool [b, C, F], True for frames without a picture in the layout ``frames``, or None if no row has
            that layout.
        """
        is_pair = self._is_pairs[rows.member]
        if is_pair.all():
            return self._find_pairs(rows, sample_steps, frame_steps), None
        absent = self._absent[rows.member]
        if dropped is not None:
            absent = absent | dropped[:, None]
        requested = ~absent & (valid & ~is_pair)[:, None, None]
        # The layout ``frames`` stores an episode camera after camera, with one record a step.
        camera_index = self._choose_cameras(rows)
        first_of_camera = first_record[:, None] + camera_index * episode_steps[:, None]
        record = first_of_camera[:, :, None] + frame_steps[:, None, :]

        # A window may show one step several times: its first frame is read, and the others are copied from it.
        is_same = (record[:, :, :, None] == record[:, :, None, :]) & requested[:, :, None, :]
        source_frame = is_same.argmax(axis=3)
        is_read = requested & (source_frame == np.arange(record.shape[2]))
        # A pair is one record of its row, whatever its frames are.
        valid_pairs = valid & is_pair
        is_read[valid_pairs, 0, 0], record[valid_pairs, 0, 0] = True, rows.record[valid_pairs]
        row, camera, frame = np.nonzero(is_read)
        locations = self._locate(rows.split[row], record[row, camera, frame])

        # A step without a picture is stored as an empty record, which its size shows without a read.
        is_empty = (locations.shard_and_size[:, 1] == len(HOLE)) & ~is_pair[row]
        missing = np.zeros(record.shape, bool)
        missing[row, camera, frame] = is_empty
        missing = np.take_along_axis(missing, source_frame, axis=2) & requested
        row, camera, frame = row[~is_empty], camera[~is_empty], frame[~is_empty]
        locations = locations.select(~is_empty)

        # A chunk of video is one record of several steps; other records have one frame, number 0.
        record_frames = self._record_frames[rows.member[row], camera_index[row, camera]]
        number = frame_steps[row, frame] % record_frames
        uses: list[tuple[Use, ...]]
        uses = [(use,) for use in zip(camera.tolist(), frame.tolist(), number.tolist(), strict=True)]
        if self._has_chunks:
            row, locations, uses = _group_chunks(row, locations, number, uses)
        for position in np.flatnonzero(is_pair[row]).tolist():
            uses[position] = self._pair_uses(rows, int(row[position]), sample_steps, frame_steps)
        copied = _indices(requested & ~is_read & ~missing)
        shards = np.zeros(len(rows), np.int64)
        shards[row] = locations.shard_and_size[:, 0]
        frames = _make_frames(
            np.searchsorted(row, np.arange(len(rows) + 1)),
            shards,
            locations,
            uses,
            copies=[(*image, int(source_frame[image])) for image in copied],
            black=_indices(missing | (absent & valid[:, None, None])),
        )
        return frames, missing

    def _find_pairs(self, rows: Rows, sample_steps: np.ndarray, frame_steps: np.ndarray) -> Frames:
        locations = self._locate(rows.split, rows.record)
        uses = [self._pair_uses(rows, row, sample_steps, frame_steps) for row in range(len(rows))]
        black = _indices(self._absent[rows.member]) if self._pairs_have_absent else []
        shards = locations.shard_and_size[:, 0]
        return _make_frames(np.arange(len(rows) + 1), shards, locations, uses, black=black)

    def _choose_cameras(self, rows: Rows) -> np.ndarray:
        """Return the stored camera of each row and camera of the batch, int64 [b, C]; -1 where a member has none."""
        camera_index = self._camera_index[rows.member]
        for camera_number, (random_key, choices, camera_counts) in self._drawn_cameras.items():
            choice = (uniform(random_key, rows.sample) * camera_counts[rows.member]).astype(np.int64)
            camera_index[:, camera_number] = choices[rows.member, choice]
        return camera_index

    def _pair_uses(self, rows: Rows, row: int, sample_steps: np.ndarray, frame_steps: np.ndarray) -> tuple[Use, ...]:
        """Return the images that the record of a pair fills."""
        member = rows.member[row]
        uses = self._fixed_uses[member]
        return self._uses_at(member, (frame_steps[row] - sample_steps[row]).tolist()) if uses is None else uses

    def _uses_at(self, member: int, distances: Sequence[int]) -> tuple[Use, ...]:
        """Return the images that a pair fills if its frames have these distances from t."""
        numbers = self._numbers_in_pair[member]
        return tuple(
            (camera, frame, numbers.get(distance, 0))
            for camera in np.flatnonzero(self._camera_index[member] >= 0).tolist()
            for frame, distance in enumerate(distances)
            if self._is_used[member, frame]
        )

    def _locate(self, split: np.ndarray, record: np.ndarray) -> _Locations:
        int32, int64 = self._index.int32, self._index.int64
        record = record[:, None]
        return _Locations(int32[self._int32_starts[split] + record], int64[self._int64_starts[split] + record])


def _padded(stored: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the stored cameras of each member, int64 [M, K], padded with -1, and their counts, int64 [M]."""
    camera_counts = np.array(list(map(len, stored)), np.int64)
    return np.array(
        [[*indices, *[-1] * (camera_counts.max() - len(indices))] for indices in stored], np.int64
    ), camera_counts


def _record_frames(spec: BatchSpec) -> np.ndarray:
    """Return the frames of a record by member and stored camera, int64 [M, K]; several in a chunk of video."""
    record_frames = np.ones((len(spec.layouts), max(spec.stored_cameras)), np.int64)
    for camera in spec.cameras:
        for member, (indices, sources) in enumerate(zip(camera.stored, camera.sources, strict=True)):
            record_frames[member, list(indices)] = [source.gop for source in sources]
    return record_frames


def _group_chunks(
    row_numbers: np.ndarray, locations: _Locations, record_frames: np.ndarray, uses: Sequence[tuple[Use, ...]]
) -> tuple[np.ndarray, _Locations, list[tuple[Use, ...]]]:
    """Return rows, locations and uses with each chunk of video once, as it is read once for all of its frames.

    Args:
        row_numbers: Row of each frame, ascending, int64 [n].
        locations: Record of each frame.
        record_frames: Number of each frame in its record, int64 [n].
        uses: Image that each frame fills.
    """
    # A decoder reads the frames of a chunk in their order.
    position = locations.position_and_hash[:, 0]
    decode_order = np.lexsort((record_frames, position, row_numbers))
    row_numbers, position = row_numbers[decode_order], position[decode_order]
    continues = (np.diff(row_numbers, prepend=-1) == 0) & (np.diff(position, prepend=-1) == 0)
    chunk_starts = np.flatnonzero(~continues)
    # There are no chunks if no row has a frame.
    spans = itertools.pairwise([*chunk_starts.tolist(), len(decode_order)])
    grouped = [tuple(uses[frame][0] for frame in decode_order[start:stop].tolist()) for start, stop in spans]
    return row_numbers[chunk_starts], locations.select(decode_order[chunk_starts]), grouped


def _indices(image_mask: np.ndarray) -> list[ImageIndex]:
    """Return where a mask [b, C, F] is True."""
    return [(row, camera, frame) for row, camera, frame in np.argwhere(image_mask).tolist()]


def _make_frames(
    row_starts: np.ndarray,
    shards: np.ndarray,
    locations: _Locations,
    uses: list[tuple[Use, ...]],
    *,
    copies: Sequence[tuple[int, int, int, int]] = (),
    black: Sequence[ImageIndex] = (),
) -> Frames:
    return Frames(
        row_starts=row_starts.tolist(),
        shards=shards.tolist(),
        num_bytes=locations.shard_and_size[:, 1].tolist(),
        positions=locations.position_and_hash[:, 0].tolist(),
        xxh3_64=locations.position_and_hash[:, 1].view(np.uint64).tolist(),
        uses=uses,
        copies=list(copies),
        black=list(black),
    )
