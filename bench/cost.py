"""``python -m bench.cost``: core hours of converting datasets, and the bytes that come out.

- Measured here: seconds of one core for a step of each dataset, on a sample with the datasets' true features and image
  sizes (`make demo` leaves one; see ``measure``).
- Published: bytes, shards, episodes and, for most datasets, steps.
"""

from __future__ import annotations

import dataclasses
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.measure.command import Command, Output, Result, say
from bench.measure.options import option
from bench.measure.tables import markdown_table
from convert.errors import ConvertError, DamagedEpisode
from convert.jobs import ShardJob
from convert.journal.status import ShardStatus
from convert.plan import Conversion, ConvertConfig, plan_conversion
from convert.registry.registry import Selected, load_registry
from convert.source.rlds.dataset import find_dataset
from convert.tasks.shard import convert_shard
from stream.base.arguments import whole
from stream.base.configs import CONFIGS

_LIBRARIES = ("array-record", "numpy", "opencv-python-headless", "pyarrow", "simplejpeg")


@dataclass(frozen=True, kw_only=True)
class CostOptions(Output):
    """Options of the command."""

    source: str = option("build/demo/source", str, "sample, as `make demo` leaves it", metavar="DIR")
    datasets: str = option("oxe29", str, "mixture, or names separated by commas")
    repeat: int = option(3, whole(1), "measurements of each dataset")


@dataclass(frozen=True, kw_only=True)
class DatasetWork:
    """A dataset to convert: its published size, and rates measured on a sample.

    Attributes:
        name: Name in the registry.
        codec: Codec of the stored frames.
        source_bytes, shards, episodes: Published counts.
        published_steps: Published count, or None if unknown.
        seconds_per_step, seconds_per_shard: Measured seconds of one core.
        offset: Offset of a pair in steps.
        bytes_out_per_pair: Bytes written for a pair of the sample.
        bytes_per_step: Bytes of a step in the sample's source.
    """

    name: str
    codec: str
    source_bytes: int
    shards: int
    episodes: int
    published_steps: int | None
    seconds_per_step: float
    seconds_per_shard: float
    offset: int
    bytes_out_per_pair: float
    bytes_per_step: float

    @property
    def steps(self) -> int:
        """Return the steps of all episodes; if unpublished, bytes divided by the bytes of a step in the sample."""
        return self.published_steps or round(self.source_bytes / self.bytes_per_step)

    @property
    def pairs(self) -> int:
        """Return the number of pairs, if no episode is shorter than the offset."""
        return max(0, self.steps - self.episodes * self.offset)

    @property
    def core_hours(self) -> float:
        """Return the hours of one core."""
        return (self.steps * self.seconds_per_step + self.shards * self.seconds_per_shard) / 3600

    @property
    def bytes_out(self) -> float:
        """Return the bytes written."""
        return self.pairs * self.bytes_out_per_pair


def measure(selected: Selected, source: Path, *, repeat: int) -> DatasetWork:
    """Measure one dataset on its sample and return its work as published.

    The sample's shards are converted twice in this process: complete, and only their first episodes. The difference is
    the time of the other episodes; the rest of the second is the time of a shard apart from its episodes. Time is CPU
    time of the process, the smallest of several repeats, because other programs disturb CPU time less than the clock.

    Raises:
        ConvertError: The sample lacks the dataset or has no two episodes in a shard, or the dataset's size is unknown.
    """
    spec = selected.spec
    listed = published().get(spec.name)
    if listed is None:
        raise ConvertError(f"{spec.name}: configs/published.yaml lacks its size; name datasets of the mixture oxe29")
    found = find_dataset([str(source)], spec.tfds_name, spec.version)
    with tempfile.TemporaryDirectory(prefix="bench-cost-") as folder:
        conversion = plan_conversion(selected, found, ConvertConfig(), output_folder=str(Path(folder, "out")))
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
        bytes_out_per_pair=sum(status.entry.file.bytes for status in statuses)
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
        conversion.journal.begin(conversion.parameters)
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


def _work(given: CostOptions) -> Iterator[dict[str, Any]]:
    """Yield the work on all datasets."""
    works: list[DatasetWork] = []
    for selected in load_registry().resolve(given.datasets):
        work = measure(selected, Path(given.source), repeat=given.repeat)
        works.append(work)
        rates = f"{work.seconds_per_step * 1e3:.2f} ms a step, {work.seconds_per_shard * 1e3:.0f} ms a shard"
        say(f"{work.name}: {work.codec}, {rates}")
    totals = ("core_hours", "source_bytes", "bytes_out")
    yield {
        **{name: sum(getattr(work, name) for work in works) for name in totals},
        "datasets": [
            {
                "work": dataclasses.asdict(work),
                "steps": work.steps,
                "pairs": work.pairs,
                "core_hours": work.core_hours,
                "bytes_out": work.bytes_out,
            }
            for work in works
        ],
    }


def format_result(result: Result) -> str:
    """Return the table of a result, in Markdown."""
    works = [DatasetWork(**entry["work"]) for entry in result["datasets"]]
    machine = result["machine"]
    paragraphs = [
        f"{result['core_hours']:,.0f} core hours. In: {result['source_bytes'] / 1e12:.2f} TB. Out: about "
        f"{result['bytes_out'] / 1e12:.2f} TB.",
        f"Rates: CPU time of one core of {machine['cpu']}, load average {machine['load_average'][0]:.1f} on "
        f"{machine['cores']} cores, smallest of {result['parameters']['repeat']}.",
    ]
    if guessed := [work for work in works if work.published_steps is None]:
        share = sum(work.core_hours for work in guessed) / max(result["core_hours"], 1e-9)
        paragraphs.append(
            f"Steps of {', '.join(work.name for work in guessed)} are not published: their bytes, divided by those "
            f"of a step of the sample ({share:.0%} of all core hours).{_sample_note(works)}"
        )
    if short := [work.name for work in works if not work.pairs]:
        paragraphs.append(
            f"No output is counted for {', '.join(short)}: by these steps the mean episode is shorter than a pair, so "
            "only the longer ones give any."
        )
    return "\n\n".join([*paragraphs, _datasets_table(works)])


def _sample_note(works: Sequence[DatasetWork]) -> str:
    ratios = sorted(
        work.bytes_per_step * work.published_steps / work.source_bytes for work in works if work.published_steps
    )
    if not ratios:
        return ""
    return (
        f" Where they are, a step of the sample has {statistics.median(ratios):.2f} times the bytes of a real one "
        f"(median; {ratios[0]:.2f} to {ratios[-1]:.2f})."
    )


def _datasets_table(works: Sequence[DatasetWork]) -> str:
    rows = [
        [
            work.name,
            work.codec,
            f"{work.source_bytes / 1e9:,.0f}",
            f"{work.episodes:,}",
            f"{work.steps / 1e6:,.2f}" + ("" if work.published_steps else " (est.)"),
            f"{1 / max(work.seconds_per_step, 1e-9):,.0f}",
            f"{work.core_hours:,.1f}",
            f"{work.bytes_out / 1e9:,.0f}",
        ]
        for work in sorted(works, key=lambda work: -work.core_hours)
    ]
    header = ["dataset", "frames", "GB in", "episodes", "10^6 steps", "steps/s a core", "core hours", "GB out"]
    return markdown_table(header, rows)


COMMAND = Command(
    name="cost",
    about="Estimate the core hours of converting datasets, from rates measured on a sample of them.",
    options=CostOptions,
    work=_work,
    show=format_result,
    libraries=_LIBRARIES,
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
