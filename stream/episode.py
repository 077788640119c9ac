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
    offsets = data.datasets[member].manifest.parameters["frame_offsets"]
    encoded = _read_frames(index, first, count, offsets)
    frames = np.zeros((len(encoded), *data.spec.frame_shape, 3), np.uint8)
    for place, (step, jpeg) in enumerate(sorted(encoded.items())):
        try:
            simplejpeg.decode_jpeg(jpeg, buffer=frames[place])
        except ValueError as error:
            raise FormatError(f"{dataset} {split} episode {episode}: frame of step {step}: {error}") from None
    table = index.steps.arrow().slice(steps_row, steps)
    return Episode(table, frames, np.array(sorted(encoded), np.int64))


def _read_frames(index: SplitIndex, first: int, count: int, offsets: list[int]) -> dict[int, bytes]:
    """Return the encoded frame of each step that records hold."""
    rows = np.arange(first, first + count)
    shard, step, position, size, checksum = (
        index.records.take(name, rows).tolist() for name in ("shard", "step", "position", "num_bytes", "xxh3_64")
    )
    files: dict[int, RecordFile] = {}
    found: dict[int, bytes] = {}
    for row in range(count):
        number = shard[row]
        if number not in files:
            files[number] = RecordFile(index.record_path(number), int(index.shards.sizes[number]))
        frames = frame_views(files[number].read(position[row], size[row], checksum[row]))
        for offset, frame in zip(offsets, frames, strict=True):
            found.setdefault(step[row] + offset, bytes(frame))
    return found
