"""``docs/benchmarks.md``: the results of the studies as a page, each table below its command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.loader.report import loader_table
from bench.peers.table import comparison_table
from bench.report.studies import Study
from bench.train.command import train_table


@dataclass
class Outcome:
    """The outcome of a study.

    Attributes:
        study: The study.
        command: Arguments of its command.
        result: Result of the command, if it has one.
        error: Error that ended the command, if any.
        date: Date of the measurement.
        kept: Whether the result is from an earlier run.
        plots: Pictures, relative to the page.
    """

    study: Study
    command: list[str]
    result: dict[str, Any] | None = None
    error: str | None = None
    date: str = ""
    kept: bool = False
    plots: tuple[str, ...] = ()


def format_page(outcomes: Sequence[Outcome]) -> str:
    """Return the page."""
    parts = [_HEAD]
    machine = next((outcome.result["machine"] for outcome in outcomes if outcome.result), None)
    if machine is not None:
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
        parts.append(
            f"Machine: {machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / 1e9:.0f} GB of memory, "
            f"{machine['system']}, Python {machine['python']}; {versions}.\n"
        )
    return "\n".join([*parts, *map(_section, outcomes)])


_HEAD = """# Benchmarks

`make bench` wrote this page: every table comes from the command above it, run on the date beside it.
`python -m bench.report --help` tells how to repeat single tables, or to run longer.

The data are the sample of `make demo`: synthetic moving pictures with the true schema of all 29 datasets, 256x256 JPEG
frames at quality 95. *Limit* is the speed of as many processes that only decode the same JPEGs from memory, measured in
turns in the same run. *Ratio* is samples/s divided by the limit. *CPU ratio* is the part of the loader's CPU time that
decoding alone takes. *to first* compares a point with the first one of its table, within a repeat. Values are medians
over the repeats, ranges are from the least to the most. MB are 10^6 bytes, memory is the proportional set size of all
processes together. *Source project* is the tf.data pipeline that this loader replaces, measured on another machine.
"""
_TABLES = {
    "loader": loader_table,
    "train": train_table,
    "formats": comparison_table,
    "peers": comparison_table,
}


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
        lines += [_TABLES[study.kind](outcome.result).markdown(), ""]
    for plot in outcome.plots:
        lines += [f"![{study.title}]({plot})", ""]
    return "\n".join(lines)
