"""Stored frames of an episode as the bytes that a browser shows: JPEGs as they are, depth maps in colours."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import simplejpeg

from stream.format.catalog import Dataset
from stream.format.depth import decode_depth, depth_shape
from stream.format.index import SplitIndex
from stream.format.names import HOLE, frame_views
from stream.format.record_file import RecordFile
from stream.storage.errors import ArgumentError, FormatError

_OPEN_FILES = 64
_SCALE_FRAMES = 5
"""Frames of an episode that give the range of its depth."""


@dataclass(frozen=True)
class EpisodeRows:
    """An episode of a split and its rows in the index.

    Attributes:
        dataset, index: Dataset and split.
        episode: Number in the split.
        steps, records: Its rows in ``steps`` and ``records``.
    """

    dataset: Dataset = field(compare=False)
    index: SplitIndex
    episode: int
    steps: range
    records: range

    @classmethod
    def find(cls, dataset: Dataset, index: SplitIndex, episode: int) -> EpisodeRows:
        """Return the rows of an episode.

        Raises:
            ArgumentError: The split has no such episode.
            FormatError: The index is damaged.
        """
        count = len(index.episodes)
        if not 0 <= episode < count:
            raise ArgumentError(f"dataset {index.dataset}, split {index.split}: no episode {episode}; it has {count:,}")
        row = np.array([episode])
        first_step, steps, first, records = (
            int(index.episodes.take(name, row)[0])
            for name in ("first_steps_row", "num_steps", "first_record", "num_records")
        )
        found = cls(dataset, index, episode, range(first_step, first_step + steps), range(first, first + records))
        for kind, rows in (("steps", found.steps), ("records", found.records)):
            if not 0 <= rows.start <= rows.stop <= len(index.steps if kind == "steps" else index.records):
                raise FormatError(f"{index.episodes.path}: episode {episode} leads outside of {kind}; it is damaged")
        return found

    def frame_steps(self) -> np.ndarray:
        """Return the steps with stored frames, int64, ascending; holes count as frames."""
        fields = self.dataset.fields
        if fields.layout == "frames":
            return np.arange(len(self.steps))
        first = self.index.records.take("step", np.asarray(self.records, np.int64)).astype(np.int64)
        return np.unique(first[:, None] + np.array(fields.frame_offsets, np.int64))

    def find_frame(self, camera: int, step: int) -> tuple[int, int]:
        """Return the record of a frame and its number in the record.

        Args:
            camera: Number in ``fields.stored_cameras``.
            step: Step of the episode.

        Raises:
            ArgumentError: There is no such camera, or no frame of this step.
        """
        fields = self.dataset.fields
        count = len(fields.stored_cameras)
        if not 0 <= camera < count:
            raise ArgumentError(f"dataset {self.index.dataset}: no camera {camera}; it has {count}")
        if fields.layout == "frames" and 0 <= step < len(self.steps):
            return self.records[camera * len(self.steps) + step], 0
        if fields.layout == "pairs":
            first = self.index.records.take("step", np.asarray(self.records, np.int64))
            for number, distance in enumerate(fields.frame_offsets):
                place = int(np.searchsorted(first, step - distance))
                if place < len(first) and first[place] == step - distance:
                    return self.records[place], number
        raise ArgumentError(
            f"dataset {self.index.dataset}, split {self.index.split}, episode {self.episode}: no frame of step {step}"
        )

    def read_frame(self, camera: int, step: int) -> bytes | None:
        """Return a frame as it is stored, or None for a hole.

        Raises:
            ArgumentError: As for ``find_frame``, or the shard was not fetched.
            FormatError: The record is damaged.
            OSError: The shard cannot be read.
        """
        record, number = self.find_frame(camera, step)
        row = np.array([record])
        shard, position, size, checksum = (
            int(self.index.records.take(name, row)[0]) for name in ("shard", "position", "num_bytes", "xxh3_64")
        )
        if size == len(HOLE):
            return None
        if not 0 <= shard < len(self.index.shards):
            raise FormatError(f"{self.index.records.path}: record {record} names shard {shard}; the index is damaged")
        fetched = self.dataset.fetched
        if fetched is not None and self.index.shards.stem(shard) not in fetched.shards:
            raise ArgumentError(
                f"{self.index.shards.stem(shard)} was not fetched; bring it from {fetched.source} with "
                "`python -m stream.fetch`"
            )
        path = self.index.record_path(shard)
        try:
            file = _open_file(path, int(self.index.shards.sizes[shard]))
            frames = frame_views(file.read(position, size, checksum))
        except FormatError as error:
            raise FormatError(
                f"dataset {self.index.dataset}, split {self.index.split}, episode {self.episode}, step {step}, record "
                f"{record}: {error}; check it with `python -m convert.verify`"
            ) from None
        if number >= len(frames):
            raise FormatError(f"{path}: record {record} has {len(frames)} frames, expected frame {number}")
        return bytes(frames[number])

    def read_picture(self, camera: int, step: int) -> bytes | None:
        """Return a frame as a JPEG, of a depth camera in colours, or None for a hole; raise as ``read_frame`` does."""
        stored = self.read_frame(camera, step)
        if stored is None or not self.dataset.fields.stored_cameras[camera].is_depth:
            return stored
        return simplejpeg.encode_jpeg(depth_colours(_depth(stored), *_depth_range(self, camera)), quality=90)


@lru_cache(256)
def _depth_range(rows: EpisodeRows, camera: int) -> tuple[float, float]:
    """Return the depths in millimetres between which the colours of an episode change."""
    steps = rows.frame_steps()
    chosen = steps[np.unique(np.linspace(0, len(steps) - 1, _SCALE_FRAMES).astype(int))]
    stored = [each for each in (rows.read_frame(camera, int(step)) for step in chosen) if each is not None]
    values = np.concatenate([np.zeros(0, np.uint16), *(_depth(each).ravel() for each in stored)])
    measured = values[values > 0]
    if not measured.size:
        return 0.0, 1.0
    near, far = np.percentile(measured, (1, 99))
    return float(near), float(max(far, near + 1))


def _depth(stored: bytes) -> np.ndarray:
    values = np.zeros(depth_shape(stored), np.uint16)
    decode_depth(stored, values)
    return values


def depth_colours(depth: np.ndarray, near: float, far: float) -> np.ndarray:
    """Return a depth map in colours, uint8 [H, W, 3]: red near, blue far, black where nothing was measured.

    The colours are the polynomials of Google's Turbo map (A. Mikhailov, 2019).

    Args:
        depth: uint16 [H, W], millimetres.
        near, far: Depths at either end of the colours.
    """
    place = 1 - np.clip((depth.astype(np.float32) - near) / (far - near), 0, 1)
    powers = place[..., None] ** np.arange(6, dtype=np.float32)
    colours = np.clip(powers @ _TURBO.T, 0, 1) * 255
    return np.ascontiguousarray(np.where(depth[..., None] > 0, colours, 0).astype(np.uint8))


_TURBO = np.array(
    [
        [0.13572138, 4.61539260, -42.66032258, 132.13108234, -152.94239396, 59.28637943],
        [0.09140261, 2.19418839, 4.84296658, -14.18503333, 4.27729857, 2.82956604],
        [0.10667330, 12.64194608, -60.58204836, 110.36276771, -89.90310912, 27.34824973],
    ],
    np.float32,
)


@lru_cache(_OPEN_FILES)
def _open_file(path: str, size: int) -> RecordFile:
    return RecordFile(path, size)
