"""One episode of a loader's data: its steps and its frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import simplejpeg

from stream.errors import ArgumentError, closest
from stream.format import FormatError, frame_views
from stream.index import SplitIndex
from stream.record_reader import RecordFile

if TYPE_CHECKING:
    import pyarrow as pa

    from stream.mixed import MixedData


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode.

    Attributes:
        table: Its rows of ``steps``, all columns, one row a step.
        frames: Frames that records hold, uint8 [n, H, W, 3], RGB, in the order of ``frame_steps``.
        frame_steps: Step of each frame, int64 [n].
    """

    table: pa.Table
    frames: np.ndarray
    frame_steps: np.ndarray


def read_episode(data: MixedData, dataset: str, episode: int, *, split: str | None = None) -> Episode:
    """Read an episode.

    Args:
        data: Mixture.
        dataset: Name of a member.
        episode: Number of the episode in its split, as in batches.
        split: Name of the split, needed if the member has samples of several.

    Raises:
        ArgumentError: There is no such dataset, split or episode.
        stream.format.FormatError: A record is damaged.
    """
    if dataset not in data.names:
        raise ArgumentError(f"dataset {dataset!r}: {closest(dataset, data.names, noun='members')}")
    member = data.names.index(dataset)
    splits = {index.split: index for index in data.views.splits_of(member)}
    if split is None and len(splits) == 1:
        (split,) = splits
    if split not in splits:
        raise ArgumentError(f"dataset {dataset}: split={split!r}; give one of {', '.join(splits)}")
    index = splits[split]
    if not 0 <= episode < len(index.episodes):
        raise ArgumentError(f"dataset {dataset}, split {split}: episode {episode} of {len(index.episodes):,}")
    first, count, steps_row, steps = (
        int(index.episodes.array(name)[episode])
        for name in ("first_record", "num_records", "first_steps_row", "num_steps")
    )
    if not (
        0 <= first <= first + count <= len(index.records) and 0 <= steps_row <= steps_row + steps <= len(index.steps)
    ):
        raise FormatError(f"{index.episodes.path}: episode {episode} leads outside of records or steps; it is damaged")
    offsets = data.datasets[member].manifest.parameters["frame_offsets"]
    encoded = dict(sorted(_read_frames(index, first, count, offsets).items()))
    shape = (*data.spec.frame_shape, 3)
    frames = np.zeros((len(encoded), *shape), np.uint8)
    for step, jpeg, place in zip(encoded, encoded.values(), frames, strict=True):
        try:
            decoded = simplejpeg.decode_jpeg(jpeg, buffer=place)
            if decoded.shape != shape:
                raise ValueError(f"it is {decoded.shape}, the manifest says {shape}")
        except ValueError as error:
            where = f"dataset {dataset}, split {split}, episode {episode}"
            raise FormatError(f"{where}: the frame of step {step} cannot be decoded ({error})") from None
    table = index.steps.arrow().slice(steps_row, steps)
    return Episode(table, frames, np.array(list(encoded), np.int64))


def _read_frames(index: SplitIndex, first: int, count: int, offsets: list[int]) -> dict[int, bytes]:
    """Return the encoded frame of each step that records hold."""
    rows = np.arange(first, first + count)
    columns = (
        index.records.take(name, rows).tolist() for name in ("shard", "step", "position", "num_bytes", "xxh3_64")
    )
    files: dict[int, RecordFile] = {}
    found: dict[int, bytes] = {}
    for row, (shard, step, *location) in enumerate(zip(*columns, strict=True), first):
        try:
            if not 0 <= shard < len(index.shards):
                raise FormatError(f"the index says shard {shard} of {len(index.shards)}")
            if shard not in files:
                files[shard] = RecordFile(index.record_path(shard), int(index.shards.sizes[shard]))
            frames = frame_views(files[shard].read(*location))
            if len(frames) != len(offsets):
                raise FormatError(f"holds {len(frames)} frames, expected {len(offsets)}")
        except (FormatError, OSError) as error:
            raise FormatError(f"dataset {index.dataset}, split {index.split}, row {row} of records: {error}") from None
        for offset, frame in zip(offsets, frames, strict=True):
            found.setdefault(step + offset, bytes(frame))
    return found
