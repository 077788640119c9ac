"""Estimate of the result of a conversion from its first episodes, for ``--dry-run``."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from convert.errors import CorruptFrame, MalformedEpisode
from convert.plan import Conversion
from convert.shard.images import convert_frame
from convert.shard.pairs import first_steps, frame_offsets
from convert.source.rlds import EpisodeParser
from convert.source.tfrecord import TFRecordFile

_EPISODES = 8


class Estimate(NamedTuple):
    """Estimated pairs and bytes of ArrayRecord of a conversion; None if no episode could be read."""

    pairs: int | None = None
    bytes: int | None = None


def estimate(conversion: Conversion) -> Estimate:
    """Estimate from the first eight episodes of the largest shard, scaled by bytes; one frame is converted."""
    plan = conversion.plan
    parser = EpisodeParser(plan.camera, ())
    record_bytes = pairs = frame_bytes = 0
    shard = max((job.shard for job in conversion.jobs), key=lambda shard: shard.bytes, default=None)
    if shard is None:
        return Estimate()
    with shard.open() as file:
        for record in islice(TFRecordFile(file, name=shard.name, size=shard.bytes), _EPISODES):
            if not isinstance(record, bytes):
                break
            try:
                episode = parser.parse(record)
                if not frame_bytes and episode.num_steps:
                    frame_bytes = len(convert_frame(episode.frames[0], plan.policy, channels=plan.channels).data)
            except (MalformedEpisode, CorruptFrame):
                continue
            record_bytes += len(record)
            pairs += len(first_steps(episode.num_steps, plan.offset))
    if not record_bytes:
        return Estimate()
    total = round(pairs / record_bytes * sum(job.size for job in conversion.jobs))
    return Estimate(total, total * frame_bytes * len(frame_offsets(plan.frames, plan.offset)))
