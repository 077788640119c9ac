"""``python -m bench.cost``: how long converting takes and what it costs: workstation, Slurm cluster, Dataflow.

Measured, here and now: what one core takes for a step of each dataset, on a sample with the datasets' true features and
image sizes (`make demo` leaves one; see `bench.cost.measure`). Published: bytes, shards, episodes and, for most, steps.
Assumed: prices and rates of reading, which all have options. What is stored later (`--measured`, the file that `--json`
gave) need not be measured again to try other prices.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.cost.measure import measure
from bench.cost.model import Cost, DatasetWork, Place, Prices, cost
from bench.measure.command import print_result, run_command
from bench.measure.machine import describe_machine
from bench.measure.tables import markdown_table
from convert.errors import ConvertError
from convert.registry.registry import load_registry
from stream.storage.arguments import Parser, whole

_LIBRARIES = ("array-record", "numpy", "opencv-python-headless", "pyarrow", "simplejpeg")
_PRICES = {
    "core-hour": (0.056, "a Dataflow batch worker's core for an hour"),
    "memory-hour": (0.003557, "a GB of its memory for an hour"),
    "disk-hour": (0.000054, "a GB of its disk for an hour"),
    "storage-month": (0.020, "a GB of output in the bucket for a month"),
    "egress": (0.12, "a GB of output taken out of the cloud"),
    "cluster-core-hour": (0.0, "a core of the Slurm cluster for an hour"),
}
_ASSUMED = "assumed in November 2026, not looked up; check today's price"


def _measure(options: argparse.Namespace) -> tuple[list[DatasetWork], dict[str, Any]]:
    if options.measured is not None:
        return _read(options.measured)
    works = []
    for selected in load_registry().resolve(options.datasets):
        works.append(measure(selected, options.source, repeat=options.repeat))
        work = works[-1]
        print(
            f"{work.name}: {work.codec}, {work.seconds_per_step * 1e3:.2f} ms a step, "
            f"{work.seconds_per_shard * 1e3:.0f} ms a shard",
            file=sys.stderr,
            flush=True,
        )
    return works, describe_machine(_LIBRARIES)


def _read(path: Path) -> tuple[list[DatasetWork], dict[str, Any]]:
    try:
        found = json.loads(path.read_text())
        return [DatasetWork(**entry["work"]) for entry in found["datasets"]], found["machine"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConvertError(f"{path}: not what --json of this command prints ({error!r})") from None


def run_benchmark(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, or read what was measured, and return what ``--json`` prints."""
    works, machine = _measure(options)
    cloud = Prices(
        core_hour=options.core_hour,
        memory_hour=options.memory_hour,
        disk_hour=options.disk_hour,
        storage_month=options.storage_month,
        egress=options.egress,
    )
    own = dataclasses.replace(cloud, core_hour=0.0, memory_hour=0.0, disk_hour=0.0)
    cluster = dataclasses.replace(own, core_hour=options.cluster_core_hour)
    costs = [cost(works, place, prices) for place, prices in zip(_places(options), (own, cluster, cloud), strict=True)]
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
        "places": [dataclasses.asdict(one) for one in costs],
        "bytes_in": sum(work.source_bytes for work in works),
        "bytes_out": out,
        "storage_dollars_a_month": out / 1e9 * cloud.storage_month,
        "egress_dollars": out / 1e9 * cloud.egress,
    }


def _places(options: argparse.Namespace) -> list[Place]:
    return [
        Place(
            name="workstation",
            workers=1,
            cores_per_worker=options.workstation_cores,
            read=options.workstation_read * 1e6,
            busy=options.busy,
        ),
        Place(
            name="Slurm",
            workers=options.slurm_tasks,
            cores_per_worker=options.slurm_cores,
            read=options.cluster_read * 1e6,
            busy=options.busy,
        ),
        Place(
            name="Dataflow",
            workers=options.dataflow_workers,
            cores_per_worker=options.dataflow_cores,
            read=options.cloud_read * 1e6,
            busy=options.busy,
            memory=options.dataflow_memory,
            disk=options.dataflow_disk,
        ),
    ]


def format_result(result: dict[str, Any]) -> str:
    """Return the tables of a whole result, in Markdown."""
    works = [DatasetWork(**entry["work"]) for entry in result["datasets"]]
    options, machine = result["parameters"], result["machine"]
    lines = [
        _places_table([Cost(**place) for place in result["places"]]),
        "",
        f"In: {result['bytes_in'] / 1e12:.2f} TB. Out: about {result['bytes_out'] / 1e12:.2f} TB, which in a bucket "
        f"costs ${result['storage_dollars_a_month']:,.0f} a month and to take out of the cloud "
        f"${result['egress_dollars']:,.0f}.",
        "",
        _codec_table(works),
        "",
        f"Rates: CPU time of one core of {machine['cpu']}, load average {machine['load_average'][0]:.1f} on "
        f"{machine['cores']} cores, smallest of {options['repeat']}.",
        "",
        f"Prices ({_ASSUMED}): "
        + "; ".join(f"${_plain(options[name.replace('-', '_')])} {what}" for name, (_, what) in _PRICES.items())
        + f". Reading (assumed): {options['workstation_read']:g}, {options['cluster_read']:g} and "
        f"{options['cloud_read']:g} MB/s. Cores convert {options['busy']:.0%} of the time (assumed).",
    ]
    if guessed := [work for work in works if work.published_steps is None]:
        share = sum(work.core_seconds for work in guessed) / max(sum(work.core_seconds for work in works), 1e-9)
        lines += [
            "",
            f"Steps of {', '.join(work.name for work in guessed)} are not published: their bytes, divided by those "
            f"of a step of the sample ({share:.0%} of all core hours).{_sample_note(works)}",
        ]
    if none := [work.name for work in works if not work.pairs]:
        lines += [
            "",
            f"No output is counted for {', '.join(none)}: by these steps the mean episode is shorter than a pair, so "
            "only the longer ones give any.",
        ]
    return "\n".join([*lines, "", _datasets_table(works)])


def _plain(amount: float) -> str:
    return f"{amount:.6f}".rstrip("0").rstrip(".")


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


def _places_table(costs: Sequence[Cost]) -> str:
    rows = [
        [
            one.place,
            f"{one.cores:,}",
            f"{one.core_hours:,.0f}",
            f"{one.compute_hours:,.1f}",
            f"{one.read_hours:,.1f}",
            f"{one.hours:,.1f}",
            f"${one.dollars:,.0f}" if one.dollars else "own",
        ]
        for one in costs
    ]
    return markdown_table(["place", "cores", "core hours", "computing h", "reading h", "takes h", "machines"], rows)


def _codec_table(works: Sequence[DatasetWork]) -> str:
    rows = []
    for codec in sorted({work.codec for work in works}):
        group = [work for work in works if work.codec == codec]
        rates = sorted(1 / max(work.seconds_per_step, 1e-9) for work in group)
        hours = sum(work.core_seconds for work in group) / 3600
        median = f"{statistics.median(rates):,.0f}"
        rows.append([codec, len(group), median, f"{rates[0]:,.0f} to {rates[-1]:,.0f}", f"{hours:,.0f}"])
    return markdown_table(["frames", "datasets", "steps/s a core, median", "range", "core hours"], rows)


def _datasets_table(works: Sequence[DatasetWork]) -> str:
    rows = [
        [
            work.name,
            work.codec,
            f"{work.source_bytes / 1e9:,.0f}",
            f"{work.episodes:,}",
            f"{work.steps / 1e6:,.2f}" + ("" if work.published_steps else " (est.)"),
            f"{1 / max(work.seconds_per_step, 1e-9):,.0f}",
            f"{work.core_seconds / 3600:,.1f}",
            f"{work.bytes_out / 1e9:,.0f}",
        ]
        for work in sorted(works, key=lambda work: -work.core_seconds)
    ]
    header = ["dataset", "frames", "GB in", "episodes", "10^6 steps", "steps/s a core", "core hours", "GB out"]
    return markdown_table(header, rows)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m bench.cost",
        description="Hours and dollars of converting datasets, from rates measured on a sample of them.",
        epilog=f"Prices and rates of reading: {_ASSUMED}.",
    )
    work = parser.add_mutually_exclusive_group(required=True)
    work.add_argument("--source", type=Path, metavar="DIR", help="a sample, as `make demo` leaves in build/demo/source")
    work.add_argument("--measured", type=Path, metavar="FILE", help="what --json printed; nothing is measured")
    parser.add_argument("--datasets", default="oxe29", help="a mixture, or names with commas between (default: oxe29)")
    parser.add_argument("--repeat", type=whole(1), default=3, help="measurements of each dataset (default: 3)")
    places = parser.add_argument_group("places")
    for name, default, what in (
        ("workstation-cores", 16, "its cores"),
        ("slurm-tasks", 64, "tasks at a time"),
        ("slurm-cores", 4, "cores of a task"),
        ("dataflow-workers", 64, "workers"),
        ("dataflow-cores", 4, "cores of a worker"),
    ):
        places.add_argument(f"--{name}", type=whole(1), default=default, help=f"{what} (default: {default})")
    for name, number, what in (
        ("dataflow-memory", 16.0, "GB of a worker"),
        ("dataflow-disk", 30.0, "GB of a worker"),
        ("workstation-read", 500.0, "MB/s of source in all"),
        ("cluster-read", 5000.0, "MB/s of source in all"),
        ("cloud-read", 5000.0, "MB/s of source in all"),
    ):
        places.add_argument(f"--{name}", type=_positive, default=number, help=f"{what} (default: {number:g})")
    places.add_argument(
        "--busy", type=_share, default=0.85, help="part of the time that cores convert (default: 0.85, assumed)"
    )
    prices = parser.add_argument_group("prices in dollars")
    for name, (number, what) in _PRICES.items():
        prices.add_argument(f"--{name}", type=_amount, default=number, help=f"{what} (default: {number:g})")
    parser.add_argument("--json", action="store_true", help="print all figures instead of tables")
    return parser


def _number(text: str, low: float, high: float, expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high or value == float("inf"):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {expected}")
    return value


def _amount(text: str) -> float:
    return _number(text, 0.0, float("inf"), "an amount of 0 or more")


def _positive(text: str) -> float:
    return _number(text, 1e-9, float("inf"), "a number above 0")


def _share(text: str) -> float:
    return _number(text, 1e-3, 1.0, "a part above 0, at most 1")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(arguments)

    def work() -> int:
        print_result(run_benchmark(options), format_result, as_json=options.json)
        return 0

    return run_command(work, place=options.source or options.measured)


if __name__ == "__main__":
    sys.exit(main())
