"""``docs/benchmarks.md``: results of the studies as a page, every table beside its command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.loader.sweep import label
from bench.measure.tables import markdown_table, megabytes, number
from bench.report.studies import Study

LEAST_BATCHES = 160


@dataclass
class Outcome:
    """What became of a study: its command, its result, or the error that it ended with."""

    study: Study
    command: list[str]
    result: dict[str, Any] | None = None
    error: str | None = None
    date: str = ""
    kept: bool = False
    """Whether the result was there already."""
    page: str = ""
    """A part of the page that the command wrote itself."""
    plots: tuple[str, ...] = ()
    """Pictures, relative to the page."""


def format_page(outcomes: Sequence[Outcome]) -> str:
    """Return the page."""
    machines = [outcome.result["machine"] for outcome in outcomes if outcome.result and "machine" in outcome.result]
    machine = machines[0] if machines else None
    parts = [_HEAD]
    if machine is not None:
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
        parts.append(
            f"Machine: {machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / 1e9:.0f} GB of memory, "
            f"{machine['system']}, Python {machine['python']}; {versions}.\n"
        )
    for outcome in outcomes:
        parts.append(_section(outcome))
    return "\n".join(parts)


_HEAD = """# Benchmarks

`make bench` wrote this page: every table comes from the command above it, run on the date beside it.
`python -m bench.report --help` tells how to make single tables again, or longer runs.

The data are the sample of `make demo`: synthetic moving pictures with the true schema of all 29 datasets, 256x256 JPEG
frames at quality 95. *Limit* is the speed of as many processes that only decode the same JPEGs from memory, measured in
turns in the same run; *ratio* is samples/s to that, *CPU ratio* the part of the loader's CPU time that decoding alone
takes. *to first* compares a point with the first one of its table, within a repeat. Values are medians over the
repeats, ranges are from the least to the most. MB are 10^6 bytes, memory is the proportional set size of all processes
together. *Source project* is what the tf.data pipeline that this replaces had measured, on another machine.
"""


def _section(outcome: Outcome) -> str:
    study = outcome.study
    lines = [f"## {study.title}", ""]
    if study.seen != "-":
        lines += [f"Source project: {study.seen}", ""]
    command = shlex.join(["python", "-m", study.module, *outcome.command])
    lines += [f"`{command}`{f', {outcome.date}' if outcome.date else ''}", ""]
    if outcome.error is not None:
        lines += [f"Not measured: {outcome.error}", ""]
    if outcome.result is not None:
        lines += [outcome.page or _TABLES[study.kind](outcome.result), ""]
    for plot in outcome.plots:
        lines += [f"![{study.title}]({plot})", ""]
    return "\n".join(lines)


def loader_table(result: Mapping[str, Any]) -> str:
    """Return the table of a result of `bench.loader`, and a sentence on what disturbs it."""
    header = ["", "samples/s", "limit", "ratio (range)", "CPU ratio", "to first", "step p50 ms", "p99 ms"]
    header += ["first batch s", "end s", "MB", "growth B/batch"]
    rows = []
    for point in result["points"]:
        name, figures = _short(point["point"]), point["median"]
        if figures is None:
            rows.append([name, f"failed: {point['error']}", *["-"] * (len(header) - 2)])
            continue
        ratios = [run["ratio"] for run in point["repeats"] if run["ratio"] is not None]
        rise, error = figures["slope_bytes_per_batch"], figures["slope_error"]
        rows.append(
            [
                name,
                f"{figures['samples_per_s']:,.0f}",
                number(figures["limit_samples_per_s"], ",.0f"),
                f"{figures['ratio']:.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-",
                number(figures["cpu_ratio"], ".2f"),
                number(point["to_first"], ".2f"),
                f"{figures['step_ms']['p50']:.1f}",
                f"{figures['step_ms']['p99']:.1f}",
                f"{figures['first_batch_s']:.2f}",
                f"{figures['close_s'] + figures['exit_s']:.2f}",
                megabytes(figures["peak_pss_bytes"]),
                number(rise, ",.0f") + (f" ± {error:,.0f}" if error is not None else ""),
            ]
        )
    given = result["parameters"]
    batches = max(given["steps"], LEAST_BATCHES)
    told = f"{batches:,} batches of {given['batch_size']} a repeat, {given['repeat']} repeats."
    busy = max((point["median"]["others_cpu_share"] for point in result["points"] if point["median"]), default=0.0)
    if busy > 0.05:
        told += f" Other programs took {busy:.0%} of the machine meanwhile: go by the CPU ratio."
    return f"{markdown_table(header, rows)}\n\n{told}"


def train_table(result: Mapping[str, Any]) -> str:
    """Return the table of a result of `bench.train`."""
    header = ["", "steps/s", "samples/s", "waiting (range)", "step p50 ms", "p99 ms", "first step s"]
    header += ["validation s", "its first batch s", "step after it ms", "GPU use", "MB"]
    rows = []
    for point in result["points"]:
        figures = point["median"]
        if figures is None:
            rows.append([_short(point["point"]), f"failed: {point['error']}", *["-"] * (len(header) - 2)])
            continue
        shares = [run["wait_share"] for run in point["repeats"]]
        validation = figures["validation"]
        rows.append(
            [
                _short(point["point"]),
                f"{figures['steps_per_s']:.2f}",
                f"{figures['samples_per_s']:,.0f}",
                f"{figures['wait_share']:.1%} ({min(shares):.1%} to {max(shares):.1%})",
                f"{figures['step_ms']['p50']:.1f}",
                f"{figures['step_ms']['p99']:.1f}",
                f"{figures['first_step_s']:.2f}",
                number(validation["seconds"], ".2f"),
                number(validation["first_batch_s"], ".2f"),
                number(validation["step_after_s"], ".1f", scale=1000),
                number(figures["gpu_use"], ".0%"),
                megabytes(figures["peak_pss_bytes"]),
            ]
        )
    given = result["parameters"]
    work = "The model is trained" if given["step_ms"] is None else "A step is a sleep, in place of a device's work"
    return f"{markdown_table(header, rows)}\n\n{work}; {given['steps']:,} steps of {given['batch_size']} a repeat."


def _short(point: Mapping[str, Any]) -> str:
    """A point's name, of roots only the folder."""
    return label({name: Path(value).name if name == "root" else value for name, value in point.items()})


def _written(result: Mapping[str, Any]) -> str:
    raise ValueError("the command wrote no page")


_TABLES = {"loader": loader_table, "train": train_table, "formats": _written, "peers": _written}
