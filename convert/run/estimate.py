"""Estimate of the result of a conversion from its first episodes, for ``--dry-run``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from convert.errors import CorruptFrame, DamagedEpisode
from convert.index.derived import vector_field
from convert.plan import Conversion, PlannedCamera
from convert.shard.language import step_language
from convert.shard.pairs import first_steps
from convert.shard.part_rows import PartRows
from convert.shard.video import encode_chunk
from convert.source.episode import Episode, Frames
from convert.source.protocol import clip
from stream.format.names import TableKind

_EPISODES = 8
_RESIZED = {"stretch": "stretched", "crop": "cropped", "pad": "padded"}
_NO_PLACES = {"position": np.int64, "num_bytes": np.int32, "xxh3_64": np.uint64}


class Estimate(NamedTuple):
    """Estimated result of a conversion; None if no episode was read.

    Attributes:
        records: Count of pairs, or of frames.
        bytes: Size of the shards and the index.
        sizes: Size of the stored frames by camera, and what it does to another aspect ratio.
    """

    records: int | None = None
    bytes: int | None = None
    sizes: Mapping[str, str] = {}


def estimate(conversion: Conversion) -> Estimate:
    """Estimate from the first eight episodes of the largest shard, scaled by bytes; one frame is converted.

    Pairs are exact where the metadata tell the length of each episode. Of a dataset that would have to be fetched for
    this, the estimate has them alone.
    """
    plan = conversion.plan
    episode_bytes = frame_bytes = index_bytes = 0
    sizes: dict[str, str] = {}
    shard = max((job.shard for job in conversion.jobs), key=lambda shard: shard.bytes, default=None)
    if shard is None or shard.is_fetched:
        return Estimate(_exact_records(conversion))

    def measure(kind: TableKind, batch: pa.RecordBatch) -> None:
        nonlocal index_bytes
        index_bytes += batch.nbytes

    rows = PartRows(plan.features, source_file=shard.name, offset=plan.offset, write=measure)
    with shard.open(plan.wanted, clip([shard.every], 0, _EPISODES)) as reader:
        for position, num_bytes, episode in reader:
            if not isinstance(episode, Episode):
                continue
            try:
                if not frame_bytes and episode.num_steps:
                    found = zip(plan.cameras, episode.cameras, strict=True)
                    frame_bytes = sum(_frame_bytes(camera, frames, sizes) for camera, frames in found)
            except CorruptFrame:
                continue
            episode_bytes += num_bytes
            starts = first_steps(episode.num_steps, plan.offsets[-1])
            rows.add(
                episode,
                position,
                status="ok",
                language=step_language(episode, plan.language, encoding=plan.language_encoding),
                robot=plan.robot,
                starts=list(starts) * len(plan.cameras),
                cameras=np.repeat(range(len(plan.cameras)), len(starts)).tolist(),
            )
    if not episode_bytes:
        return Estimate()
    rows.finish({name: np.zeros(rows.num_records, dtype) for name, dtype in _NO_PLACES.items()})
    derived = [vector_field(name, vector).type for name, vector in plan.vectors.items()]
    index_bytes += rows.num_steps * sum(getattr(kind, "list_size", 1) * 4 for kind in derived)
    scale = sum(job.size for job in conversion.jobs) / episode_bytes
    exact = _exact_records(conversion)
    records = round(rows.num_records * scale) if exact is None else exact
    stored = records // len(plan.cameras) * frame_bytes * len(plan.offsets)
    return Estimate(records, round(stored + index_bytes * scale), sizes)


def _exact_records(conversion: Conversion) -> int | None:
    """Return the count of pairs or frames, None where the metadata do not tell the length of each episode."""
    plan, jobs = conversion.plan, conversion.jobs
    if any(len(job.shard.lengths) != job.shard.records for job in jobs):
        return None
    lengths = [length for job in jobs for span in job.spans for length in job.shard.lengths[slice(*span)]]
    return sum(len(first_steps(length, plan.offsets[-1])) for length in lengths) * len(plan.cameras)


def _frame_bytes(camera: PlannedCamera, frames: Frames | DamagedEpisode | None, sizes: dict[str, str]) -> int:
    """Return the bytes of a frame in the first record of a camera, and note its size."""
    if isinstance(frames, DamagedEpisode | None):
        return 0
    first = list(map(camera.convert, islice(frames, camera.policy.gop)))
    frame = first[0]
    (height, width), (old_height, old_width) = frame.size, frame.source_size
    sizes[camera.name] = f"{height}x{width}"
    if height * old_width != width * old_height:
        sizes[camera.name] += f", {_RESIZED[camera.policy.resize]} from {old_height}x{old_width}"
    chunk, _ = encode_chunk(first, camera.policy) if frame.video is not None else (None, None)
    return len(frame.data) if chunk is None else len(chunk) // len(first)
