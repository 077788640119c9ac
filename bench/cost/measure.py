"""Seconds of one core for a step of each dataset, measured on a sample with the true features and image sizes.

The sample's shards are converted twice in this process: complete, and only their first episodes. The difference is the
time of the other episodes; the rest of the second is the time of a shard apart from its episodes. Time is CPU time of
the process, the smallest of several repeats, because other programs disturb CPU time less than the clock.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from bench.cost.model import DatasetWork
from convert.errors import ConvertError, DamagedEpisode
from convert.journal.status import ShardStatus
from convert.plan import Conversion, Options, ShardJob, plan_conversion
from convert.registry.registry import Selected
from convert.source.source import find_source
from convert.tasks.shard import convert_shard
from stream.storage.configs import CONFIGS


def measure(selected: Selected, source: Path, *, repeat: int) -> DatasetWork:
    """Measure one dataset on its sample and return its work as published.

    Raises:
        ConvertError: The sample lacks the dataset or has no two episodes in a shard, or the dataset's size is unknown.
    """
    spec = selected.spec
    listed = published().get(spec.name)
    if listed is None:
        raise ConvertError(f"{spec.name}: configs/published.yaml lacks its size; name datasets of the mixture oxe29")
    found = find_source([str(source)], spec.tfds_name, spec.version)
    with tempfile.TemporaryDirectory(prefix="bench-cost-") as folder:
        conversion = plan_conversion(selected, found, Options(), output=str(Path(folder, "out")))
        all_seconds, statuses = _convert(conversion, conversion.jobs, repeat)
        firsts = [dataclasses.replace(job, spans=((0, 1),)) for job in conversion.jobs]
        first_seconds, first_statuses = _convert(conversion, firsts, repeat)
    all_steps, first_steps = (sum(status.entry.steps for status in each) for each in (statuses, first_statuses))
    if all_steps <= first_steps:
        raise ConvertError(f"{found.path}: no shard has two episodes; make the sample with more --episodes")
    per_step = max(all_seconds - first_seconds, 0.0) / (all_steps - first_steps)
    episodes = sum(spec.splits.values())
    return DatasetWork(
        name=spec.name,
        codec=_codec(conversion, passed=any(status.entry.passed for status in statuses)),
        source_bytes=listed["bytes"],
        shards=listed["shards"],
        episodes=episodes,
        published_steps=round(episodes * spec.steps_per_episode) if spec.steps_per_episode else None,
        seconds_per_step=per_step,
        seconds_per_shard=max(first_seconds - first_steps * per_step, 0.0) / len(conversion.jobs),
        offset=conversion.plan.offset,
        bytes_out_per_pair=sum(status.bytes_out for status in statuses)
        / max(sum(status.entry.records for status in statuses), 1),
        bytes_per_step=sum(job.shard.bytes for job in conversion.jobs) / all_steps,
    )


def published() -> dict[str, dict[str, int]]:
    """Return bytes and shards of the published datasets, by name."""
    content: dict[str, dict[str, int]] = yaml.safe_load(CONFIGS.joinpath("published.yaml").read_text())
    return content


def _convert(conversion: Conversion, jobs: Sequence[ShardJob], repeat: int) -> tuple[float, list[ShardStatus]]:
    """Return the smallest CPU time of several repeats, and the statuses of the shards."""
    times = []
    for _ in range(repeat):
        shutil.rmtree(conversion.plan.output, ignore_errors=True)
        began = time.process_time()
        statuses = [status for job in jobs if (status := convert_shard(job, conversion.plan))]
        times.append(time.process_time() - began)
    return min(times), statuses


def _codec(conversion: Conversion, *, passed: bool) -> str:
    """Return the codec of the source's frames, read from a frame: registry and features.json often lack it."""
    with conversion.jobs[0].shard.open(conversion.plan.wanted, [(0, 1)]) as reader:
        episode = next(iter(reader)).content
        if isinstance(episode, DamagedEpisode):
            raise episode
        frame = next(iter(episode.frames))
    start = frame[:4] if isinstance(frame, bytes) else b""
    if start.startswith(b"\xff\xd8"):
        return "JPEG, passed through" if passed else "JPEG"
    return "PNG" if start == b"\x89PNG" else "raw"
