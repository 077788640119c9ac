"""Estimate of the result of a conversion from its first episodes, for ``--dry-run``."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from convert.errors import CorruptFrame, DamagedEpisode
from convert.plan import Conversion
from convert.shard.images import convert_frame
from convert.shard.pairs import first_steps

_EPISODES = 8


class Estimate(NamedTuple):
    """Estimated pairs and bytes of ArrayRecord of a conversion; None if no episode could be read."""

    pairs: int | None = None
    bytes: int | None = None


def estimate(conversion: Conversion) -> Estimate:
    """Estimate from the first eight episodes of the largest shard, scaled by bytes; one frame is converted.

    Pairs are exact where the metadata tell the length of each episode.
    """
    plan = conversion.plan
    episode_bytes = pairs = frame_bytes = 0
    shard = max((job.shard for job in conversion.jobs), key=lambda shard: shard.bytes, default=None)
    if shard is None:
        return Estimate()
    with shard.open(replace(plan.wanted, features=()), [(0, min(shard.records, _EPISODES))]) as reader:
        for _, num_bytes, episode in reader:
            if isinstance(episode, DamagedEpisode):
                continue
            try:
                if not frame_bytes and episode.num_steps:
                    frame_bytes = sum(
                        len(convert_frame(next(iter(frames)), camera.policy, channels=camera.channels).data)
                        for camera, frames in zip(plan.cameras, episode.cameras, strict=True)
                        if not isinstance(frames, DamagedEpisode | None)
                    )
            except CorruptFrame:
                continue
            episode_bytes += num_bytes
            pairs += len(first_steps(episode.num_steps, plan.offsets[-1]))
    if not episode_bytes:
        return Estimate()
    total = round(pairs / episode_bytes * sum(job.size for job in conversion.jobs))
    if all(len(job.shard.lengths) == job.shard.records for job in conversion.jobs):
        lengths = [
            length for job in conversion.jobs for span in job.spans for length in job.shard.lengths[slice(*span)]
        ]
        total = sum(len(first_steps(length, plan.offsets[-1])) for length in lengths)
    return Estimate(total * len(plan.cameras), total * frame_bytes * len(plan.offsets))
