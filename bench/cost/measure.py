"""How long one core takes for a step of each dataset, measured on a sample with the true features and image sizes.

The sample's shards are converted twice in this process: whole, and only their first episodes. The difference is what
the other episodes take; what is left of the second is what a shard takes whatever is in it. Time is CPU time of the
process, the smallest of several repeats, so that other programs on the machine disturb it little.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from bench.cost.model import DatasetWork
from convert.errors import ConvertError
from convert.plan import Conversion, Options, ShardJob, plan_conversion
from convert.registry.registry import Selected
from convert.source.rlds import EpisodeParser
from convert.source.source import find_source
from convert.source.tfrecord import TFRecordFile
from convert.tasks.shard import convert_shard
from stream.storage.configs import CONFIGS


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Run:
    seconds: float
    steps: int
    pairs: int
    bytes_out: int
    passed: int


def measure(selected: Selected, source: Path, *, repeat: int) -> DatasetWork:
    """Measure one dataset on its sample and return its work as published.

    Raises:
        ConvertError: the sample has no such dataset, no two episodes in a shard, or nobody lists the dataset's size.
    """
    spec = selected.spec
    listed = published().get(spec.name)
    if listed is None:
        raise ConvertError(f"{spec.name}: configs/published.yaml has no size of it; name datasets of the mixture oxe29")
    found = find_source([str(source)], spec.tfds_name, spec.version)
    with _output() as output:
        conversion = plan_conversion(selected, found, Options(), output=str(output))
        whole = _least(conversion, conversion.jobs, repeat)
        firsts = [dataclasses.replace(job, spans=((0, 1),)) for job in conversion.jobs]
        first = _least(conversion, firsts, repeat)
    steps = whole.steps - first.steps
    if steps <= 0:
        raise ConvertError(f"{found.path}: no shard has two episodes; make the sample with more --episodes")
    per_step = max(whole.seconds - first.seconds, 0.0) / steps
    episodes = sum(spec.splits.values())
    return DatasetWork(
        name=spec.name,
        codec=_codec(conversion, passed=whole.passed > 0),
        source_bytes=listed["bytes"],
        shards=listed["shards"],
        episodes=episodes,
        published_steps=round(episodes * spec.steps_per_episode) if spec.steps_per_episode else None,
        seconds_per_step=per_step,
        seconds_per_shard=max(first.seconds - first.steps * per_step, 0.0) / len(conversion.jobs),
        offset=conversion.plan.offset,
        bytes_out_per_pair=whole.bytes_out / max(whole.pairs, 1),
        bytes_per_step=sum(job.shard.bytes for job in conversion.jobs) / whole.steps,
    )


def published() -> dict[str, dict[str, int]]:
    """Return bytes and shards of the datasets as published, by name."""
    content: dict[str, dict[str, int]] = yaml.safe_load(CONFIGS.joinpath("published.yaml").read_text())
    return content


@contextmanager
def _output() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-cost-") as folder:
        yield Path(folder) / "out"


def _least(conversion: Conversion, jobs: Sequence[ShardJob], repeat: int) -> _Run:
    return min((_convert(conversion, jobs) for _ in range(repeat)), key=lambda run: run.seconds)


def _convert(conversion: Conversion, jobs: Sequence[ShardJob]) -> _Run:
    shutil.rmtree(conversion.plan.output, ignore_errors=True)
    began = time.process_time()
    statuses = [convert_shard(job, conversion.plan) for job in jobs]
    seconds = time.process_time() - began
    done = [status for status in statuses if status]
    return _Run(
        seconds=seconds,
        steps=sum(status.entry.steps for status in done),
        pairs=sum(status.entry.records for status in done),
        bytes_out=sum(status.bytes_out for status in done),
        passed=sum(status.entry.passed for status in done),
    )


def _codec(conversion: Conversion, *, passed: bool) -> str:
    """What the frames are: the file says it, registry and features.json often do not."""
    shard = conversion.jobs[0].shard
    parser = EpisodeParser(conversion.plan.camera, ())
    with open(shard.path, "rb") as file:
        record = next(iter(TFRecordFile(file, name=shard.name, size=shard.bytes)))
    if not isinstance(record, bytes):
        raise ConvertError(f"{shard.path}: {record}")
    frame = parser.parse(record).frames[0]
    if isinstance(frame, bytes):
        if frame.startswith(b"\x89PNG"):
            return "PNG"
        if frame.startswith(b"\xff\xd8"):
            return "JPEG, passed through" if passed else "JPEG"
    return "raw"
