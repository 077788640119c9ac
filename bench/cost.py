"""``python -m bench.cost``: hours and dollars of converting datasets on a workstation, a Slurm cluster and Dataflow.

- Measured here: seconds of one core for a step of each dataset, on a sample with the datasets' true features and image
  sizes (`make demo` leaves one; see ``measure``).
- Published: bytes, shards, episodes and, for most datasets, steps.
- Assumed: prices and rates of reading; all have options.

``--measured FILE`` takes the output of ``--json`` to try other prices without measuring again.
"""

from __future__ import annotations

import dataclasses
import json
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
from bench.measure.machine import describe_machine
from bench.measure.options import number, option, options_of
from bench.measure.tables import markdown_table
from convert.errors import ConvertError, DamagedEpisode
from convert.journal.status import ShardStatus
from convert.plan import Conversion, Options, ShardJob, plan_conversion
from convert.registry.registry import Selected, load_registry
from convert.source.rlds.dataset import find_dataset
from convert.tasks.shard import convert_shard
from stream.storage.arguments import whole
from stream.storage.configs import CONFIGS
from stream.storage.errors import ArgumentError

_LIBRARIES = ("array-record", "numpy", "opencv-python-headless", "pyarrow", "simplejpeg")
_ASSUMED = "assumed in November 2026, not looked up; check today's price"
_PRICES = ("core_hour", "memory_hour", "disk_hour", "storage_month", "egress", "cluster_core_hour")
"""Options that are prices in dollars."""


@dataclass(frozen=True, kw_only=True)
class CostOptions(Output):
    """Options of the command."""

    source: str | None = option(None, str, "sample, as `make demo` leaves in build/demo/source", metavar="DIR")
    measured: Path | None = option(None, Path, "output of --json, instead of measuring", metavar="FILE")
    datasets: str = option("oxe29", str, "mixture, or names separated by commas")
    repeat: int = option(3, whole(1), "measurements of each dataset")
    busy: float = option(0.85, number(0.001, 1), "share of time in which cores convert")
    workstation_cores: int = option(16, whole(1), "cores of the workstation")
    slurm_tasks: int = option(64, whole(1), "Slurm tasks at a time")
    slurm_cores: int = option(4, whole(1), "cores of a Slurm task")
    dataflow_workers: int = option(64, whole(1), "Dataflow workers")
    dataflow_cores: int = option(4, whole(1), "cores of a Dataflow worker")
    dataflow_memory: float = option(16.0, number(0.001), "GB of memory of a Dataflow worker")
    dataflow_disk: float = option(30.0, number(0.001), "GB of disk of a Dataflow worker")
    workstation_read: float = option(500.0, number(0.001), "MB/s of source that the workstation reads")
    cluster_read: float = option(5000.0, number(0.001), "MB/s of source that the cluster reads")
    cloud_read: float = option(5000.0, number(0.001), "MB/s of source that Dataflow reads")
    core_hour: float = option(0.056, number(0), "a Dataflow batch worker's core for an hour")
    memory_hour: float = option(0.003557, number(0), "a GB of its memory for an hour")
    disk_hour: float = option(0.000054, number(0), "a GB of its disk for an hour")
    storage_month: float = option(0.020, number(0), "a GB of output in the bucket for a month")
    egress: float = option(0.12, number(0), "a GB of output taken out of the cloud")
    cluster_core_hour: float = option(0.0, number(0), "a core of the Slurm cluster for an hour")

    def __post_init__(self) -> None:
        if (self.source is None) == (self.measured is None):
            raise ArgumentError("give one of --source and --measured")

    @property
    def places(self) -> list[Place]:
        """Return the places to convert at."""
        cloud = self.dataflow_cores * self.core_hour
        cloud += self.dataflow_memory * self.memory_hour + self.dataflow_disk * self.disk_hour
        slurm = self.slurm_cores * self.cluster_core_hour
        sizes = [
            ("workstation", 1, self.workstation_cores, self.workstation_read, 0.0),
            ("Slurm", self.slurm_tasks, self.slurm_cores, self.cluster_read, slurm),
            ("Dataflow", self.dataflow_workers, self.dataflow_cores, self.cloud_read, cloud),
        ]
        return [
            Place(name=name, workers=workers, cores_per_worker=cores, read=read * 1e6, busy=self.busy, worker_hour=hour)
            for name, workers, cores, read, hour in sizes
        ]


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
    def core_seconds(self) -> float:
        """Return the seconds of one core."""
        return self.steps * self.seconds_per_step + self.shards * self.seconds_per_shard

    @property
    def bytes_out(self) -> float:
        """Return the bytes written."""
        return self.pairs * self.bytes_out_per_pair


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place to convert at.

    Attributes:
        name: Name in the table.
        workers, cores_per_worker: Counts.
        read: Bytes of source that the place reads in a second, over all workers.
        busy: Share of the time in which cores convert; they also start, wait for files and for the last shards.
        worker_hour: Dollars of a worker for an hour.
    """

    name: str
    workers: int
    cores_per_worker: int
    read: float
    busy: float
    worker_hour: float = 0.0


def cost(works: Sequence[DatasetWork], place: Place) -> dict[str, Any]:
    """Return the hours of computing, of reading, and in all, and the dollars of converting all datasets at a place.

    Reading and computing overlap. No conversion takes less time than a shard of mean size on one core.

    >>> work = DatasetWork(name="a", codec="png", source_bytes=10**12, shards=100, episodes=1000, offset=5,
    ...     published_steps=360_000, seconds_per_step=0.1, seconds_per_shard=0.0, bytes_out_per_pair=1.0,
    ...     bytes_per_step=1.0)
    >>> found = cost([work], Place(name="here", workers=2, cores_per_worker=4, read=1e9, busy=1.0))
    >>> round(found["hours"], 2), round(found["read_hours"], 2)
    (1.25, 0.28)
    """
    cores = place.workers * place.cores_per_worker
    core_hours = sum(work.core_seconds for work in works) / 3600
    compute = core_hours / cores / place.busy
    read = sum(work.source_bytes for work in works) / place.read / 3600
    hours = max(compute, read, *(work.core_seconds / work.shards / 3600 for work in works))
    return {
        "place": place.name,
        "cores": cores,
        "compute_hours": compute,
        "read_hours": read,
        "hours": hours,
        "core_hours": core_hours,
        "dollars": hours * place.workers * place.worker_hour,
    }


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
    """Yield the costs, of new measurements or of earlier ones."""
    works: list[DatasetWork] = []
    machine = describe_machine(_LIBRARIES)
    if given.measured is not None:
        works, machine = _read(given.measured)
    else:
        for selected in load_registry().resolve(given.datasets):
            work = measure(selected, Path(str(given.source)), repeat=given.repeat)
            works.append(work)
            rates = f"{work.seconds_per_step * 1e3:.2f} ms a step, {work.seconds_per_shard * 1e3:.0f} ms a shard"
            say(f"{work.name}: {work.codec}, {rates}")
    out = sum(work.bytes_out for work in works)
    yield {
        "machine": machine,
        "datasets": [
            {
                "work": dataclasses.asdict(work),
                "steps": work.steps,
                "pairs": work.pairs,
                "core_hours": work.core_seconds / 3600,
                "bytes_out": work.bytes_out,
            }
            for work in works
        ],
        "places": [cost(works, place) for place in given.places],
        "bytes_in": sum(work.source_bytes for work in works),
        "bytes_out": out,
        "storage_dollars_a_month": out / 1e9 * given.storage_month,
        "egress_dollars": out / 1e9 * given.egress,
    }


def _read(path: Path) -> tuple[list[DatasetWork], dict[str, Any]]:
    try:
        found = json.loads(path.read_text())
        return [DatasetWork(**entry["work"]) for entry in found["datasets"]], found["machine"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConvertError(f"{path}: not the output of --json of this command ({error!r})") from None


def format_result(result: Result) -> str:
    """Return the tables of a result, in Markdown."""
    works = [DatasetWork(**entry["work"]) for entry in result["datasets"]]
    given, machine = result["parameters"], result["machine"]
    what = {field.name: field.metadata["what"] for field in options_of(CostOptions)}
    prices = [f"${f'{given[name]:.6f}'.rstrip('0').rstrip('.')} {what[name]}" for name in _PRICES]
    paragraphs = [
        _places_table(result["places"]),
        f"In: {result['bytes_in'] / 1e12:.2f} TB. Out: about {result['bytes_out'] / 1e12:.2f} TB, which in a bucket "
        f"costs ${result['storage_dollars_a_month']:,.0f} a month and to take out of the cloud "
        f"${result['egress_dollars']:,.0f}.",
        _codec_table(works),
        f"Rates: CPU time of one core of {machine['cpu']}, load average {machine['load_average'][0]:.1f} on "
        f"{machine['cores']} cores, smallest of {given['repeat']}.",
        f"Prices ({_ASSUMED}): {'; '.join(prices)}. Reading (assumed): {given['workstation_read']:g}, "
        f"{given['cluster_read']:g} and {given['cloud_read']:g} MB/s. Cores convert {given['busy']:.0%} of the time "
        "(assumed).",
    ]
    if guessed := [work for work in works if work.published_steps is None]:
        share = sum(work.core_seconds for work in guessed) / max(sum(work.core_seconds for work in works), 1e-9)
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


def _places_table(costs: Sequence[dict[str, Any]]) -> str:
    rows = []
    for one in costs:
        hours = [f"{one[key]:,.1f}" for key in ("compute_hours", "read_hours", "hours")]
        dollars = f"${one['dollars']:,.0f}" if one["dollars"] else "own"
        rows.append([one["place"], f"{one['cores']:,}", f"{one['core_hours']:,.0f}", *hours, dollars])
    return markdown_table(["place", "cores", "core hours", "computing h", "reading h", "takes h", "machines"], rows)


def _codec_table(works: Sequence[DatasetWork]) -> str:
    rows = []
    for codec in sorted({work.codec for work in works}):
        group = [work for work in works if work.codec == codec]
        rates = sorted(_rate(work) for work in group)
        hours = sum(work.core_seconds for work in group) / 3600
        spread = f"{rates[0]:,.0f} to {rates[-1]:,.0f}"
        rows.append([codec, len(group), f"{statistics.median(rates):,.0f}", spread, f"{hours:,.0f}"])
    return markdown_table(["frames", "datasets", "steps/s a core, median", "range", "core hours"], rows)


def _datasets_table(works: Sequence[DatasetWork]) -> str:
    rows = [
        [
            work.name,
            work.codec,
            f"{work.source_bytes / 1e9:,.0f}",
            f"{work.episodes:,}",
            f"{work.steps / 1e6:,.2f}" + ("" if work.published_steps else " (est.)"),
            f"{_rate(work):,.0f}",
            f"{work.core_seconds / 3600:,.1f}",
            f"{work.bytes_out / 1e9:,.0f}",
        ]
        for work in sorted(works, key=lambda work: -work.core_seconds)
    ]
    header = ["dataset", "frames", "GB in", "episodes", "10^6 steps", "steps/s a core", "core hours", "GB out"]
    return markdown_table(header, rows)


def _rate(work: DatasetWork) -> float:
    return 1 / max(work.seconds_per_step, 1e-9)


COMMAND = Command(
    name="cost",
    about="Estimate hours and dollars of converting datasets, from rates measured on a sample of them.",
    epilog=f"Prices in dollars, and rates of reading: {_ASSUMED}.",
    options=CostOptions,
    work=_work,
    show=format_result,
    libraries=_LIBRARIES,
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
