"""What a conversion will give, from its first episodes: for ``--dry-run`` and for the ETA."""

from __future__ import annotations

from dataclasses import dataclass

from convert.errors import CorruptFrame, MalformedEpisode
from convert.plan import Conversion
from convert.shard.images import convert_frame
from convert.shard.pairs import first_steps, frame_offsets
from convert.source.rlds import EpisodeParser
from convert.source.tfrecord import TFRecordFile

_EPISODES = 8


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimated pairs and bytes of ArrayRecord of a whole conversion; None where no episode could be read."""

    pairs: int | None
    bytes: int | None


def estimate(conversion: Conversion) -> Estimate:
    """Estimate from the first eight episodes of the first shard, scaled by bytes; one frame is converted."""
    plan = conversion.plan
    parser = EpisodeParser(plan.camera, ())
    record_bytes = steps = pairs = frame_bytes = 0
    shard = max((job.shard for job in conversion.jobs), key=lambda shard: shard.bytes, default=None)
    if shard is None:
        return Estimate(pairs=None, bytes=None)
    with shard.open() as file:
        for position, record in enumerate(TFRecordFile(file, name=shard.name, size=shard.bytes)):
            if position >= _EPISODES or not isinstance(record, bytes):
                break
            try:
                episode = parser.parse(record)
                if not frame_bytes and episode.num_steps:
                    frame_bytes = len(convert_frame(episode.frames[0], plan.policy, channels=plan.channels).data)
            except (MalformedEpisode, CorruptFrame):
                continue
            record_bytes += len(record)
            steps += episode.num_steps
            pairs += len(first_steps(episode.num_steps, plan.offset))
    if not record_bytes:
        return Estimate(pairs=None, bytes=None)
    total = round(pairs / record_bytes * sum(job.size for job in conversion.jobs))
    return Estimate(pairs=total, bytes=total * frame_bytes * len(frame_offsets(plan.frames, plan.offset)))
