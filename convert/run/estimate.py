"""Estimate of the result of a conversion from its first episodes, for ``--dry-run``."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from convert.errors import CorruptFrame, MalformedEpisode
from convert.plan import Conversion, PlannedCamera
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
    cameras = plan.cameras or (PlannedCamera(name="", feature=plan.camera, channels=plan.channels, policy=plan.policy),)
    parser = EpisodeParser(plan.camera, (), [camera.feature for camera in cameras[1:]])
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
                    frame_bytes = sum(
                        len(convert_frame(frames[0], camera.policy, channels=camera.channels).data)
                        for camera, frames in zip(cameras, (episode.frames, *episode.others), strict=True)
                        if frames
                    )
            except (MalformedEpisode, CorruptFrame):
                continue
            record_bytes += len(record)
            pairs += len(first_steps(episode.num_steps, 0 if plan.layout == "frames" else plan.offset))
    if not record_bytes:
        return Estimate()
    total = round(pairs / record_bytes * sum(job.size for job in conversion.jobs))
    if plan.layout == "frames":
        return Estimate(total * len(cameras), total * frame_bytes)
    return Estimate(total, total * frame_bytes * len(frame_offsets(plan.frames, plan.offset)))
