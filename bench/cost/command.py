"""``python -m bench.cost``: hours and dollars of converting datasets on a workstation, a Slurm cluster and Dataflow.

- Measured here: seconds of one core for a step of each dataset, on a sample with the datasets' true features and image
  sizes (`make demo` leaves one; see `bench.cost.measure`).
- Published: bytes, shards, episodes and, for most datasets, steps.
- Assumed: prices and rates of reading; all have options.

``--measured FILE`` takes the output of ``--json`` to try other prices without measuring again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.cost.measure import measure
from bench.cost.model import DatasetWork, Place, cost
from bench.measure.command import print_result, run_command
from bench.measure.machine import describe_machine
from bench.measure.tables import markdown_table
from convert.errors import ConvertError
from convert.registry.registry import load_registry
from stream.storage.arguments import Parser, whole

_LIBRARIES = ("array-record", "numpy", "opencv-python-headless", "pyarrow", "simplejpeg")
_COUNTS = {
    "workstation-cores": (16, "cores of the workstation"),
    "slurm-tasks": (64, "Slurm tasks at a time"),
    "slurm-cores": (4, "cores of a Slurm task"),
    "dataflow-workers": (64, "Dataflow workers"),
    "dataflow-cores": (4, "cores of a Dataflow worker"),
}
_SIZES = {
    "dataflow-memory": (16.0, "GB of memory of a Dataflow worker"),
    "dataflow-disk": (30.0, "GB of disk of a Dataflow worker"),
    "workstation-read": (500.0, "MB/s of source that the workstation reads"),
    "cluster-read": (5000.0, "MB/s of source that the cluster reads"),
    "cloud-read": (5000.0, "MB/s of source that Dataflow reads"),
}
_PRICES = {
    "core-hour": (0.056, "a Dataflow batch worker's core for an hour"),
    "memory-hour": (0.003557, "a GB of its memory for an hour"),
    "disk-hour": (0.000054, "a GB of its disk for an hour"),
    "storage-month": (0.020, "a GB of output in the bucket for a month"),
    "egress": (0.12, "a GB of output taken out of the cloud"),
    "cluster-core-hour": (0.0, "a core of the Slurm cluster for an hour"),
}
_ASSUMED = "assumed in November 2026, not looked up; check today's price"


def run_benchmark(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, or read earlier measurements, and return the content of ``--json``."""
    if options.measured is not None:
        works, machine = _read(options.measured)
    else:
        works, machine = [], describe_machine(_LIBRARIES)
        for selected in load_registry().resolve(options.datasets):
            work = measure(selected, options.source, repeat=options.repeat)
            works.append(work)
            rates = f"{work.seconds_per_step * 1e3:.2f} ms a step, {work.seconds_per_shard * 1e3:.0f} ms a shard"
            print(f"{work.name}: {work.codec}, {rates}", file=sys.stderr, flush=True)
    out = sum(work.bytes_out for work in works)
    return {
        "parameters": {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()},
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
        "places": [cost(works, place) for place in _places(options)],
        "bytes_in": sum(work.source_bytes for work in works),
        "bytes_out": out,
        "storage_dollars_a_month": out / 1e9 * options.storage_month,
        "egress_dollars": out / 1e9 * options.egress,
    }


def _read(path: Path) -> tuple[list[DatasetWork], dict[str, Any]]:
    try:
        found = json.loads(path.read_text())
        return [DatasetWork(**entry["work"]) for entry in found["datasets"]], found["machine"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConvertError(f"{path}: not the output of --json of this command ({error!r})") from None


def _places(given: argparse.Namespace) -> list[Place]:
    cloud_hour = given.dataflow_cores * given.core_hour
    cloud_hour += given.dataflow_memory * given.memory_hour + given.dataflow_disk * given.disk_hour
    sizes = [
        ("workstation", 1, given.workstation_cores, given.workstation_read, 0.0),
        (
            "Slurm",
            given.slurm_tasks,
            given.slurm_cores,
            given.cluster_read,
            given.slurm_cores * given.cluster_core_hour,
        ),
        ("Dataflow", given.dataflow_workers, given.dataflow_cores, given.cloud_read, cloud_hour),
    ]
    return [
        Place(name=name, workers=workers, cores_per_worker=cores, read=read * 1e6, busy=given.busy, worker_hour=hour)
        for name, workers, cores, read, hour in sizes
    ]


def format_result(result: dict[str, Any]) -> str:
    """Return the tables of a result, in Markdown."""
    works = [DatasetWork(**entry["work"]) for entry in result["datasets"]]
    given, machine = result["parameters"], result["machine"]
    prices = [f"${f'{given[_key(name)]:.6f}'.rstrip('0').rstrip('.')} {what}" for name, (_, what) in _PRICES.items()]
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


def _key(option: str) -> str:
    return option.replace("-", "_")


def _number(least: float, most: float = 1e12) -> Callable[[str], float]:
    """Return a reader of numbers in a range; it raises argparse.ArgumentTypeError."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"found {text!r}, expected a number from {least:g} to {most:g}")
        return value

    return read


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m bench.cost",
        description="Estimate hours and dollars of converting datasets, from rates measured on a sample of them.",
        epilog=f"Prices and rates of reading: {_ASSUMED}.",
    )
    work = parser.add_mutually_exclusive_group(required=True)
    work.add_argument("--source", type=Path, metavar="DIR", help="sample, as `make demo` leaves in build/demo/source")
    work.add_argument("--measured", type=Path, metavar="FILE", help="output of --json, instead of measuring")
    parser.add_argument("--datasets", default="oxe29", help="mixture, or names separated by commas (default: oxe29)")
    parser.add_argument("--repeat", type=whole(1), default=3, help="measurements of each dataset (default: 3)")
    parser.add_argument(
        "--busy", type=_number(0.001, 1), default=0.85, help="share of time in which cores convert (0.85)"
    )
    groups: tuple[tuple[str, dict[str, Any], Callable[[str], Any]], ...] = (
        ("places", _COUNTS, whole(1)),
        ("sizes and rates", _SIZES, _number(0.001)),
        ("prices in dollars", _PRICES, _number(0)),
    )
    for title, numbers, read in groups:
        group = parser.add_argument_group(title)
        for name, (default, what) in numbers.items():
            group.add_argument(f"--{name}", type=read, default=default, help=f"{what} (default: {default:g})")
    parser.add_argument("--json", action="store_true", help="print all figures instead of tables")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)

    def work() -> int:
        print_result(run_benchmark(options), format_result, as_json=options.json)
        return 0

    return run_command(work, place=options.source or options.measured)
