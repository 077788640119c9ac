"""``docs/benchmarks.md``: the results of the studies as a page, each table below its command, and plots beside it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.loader.command import loader_table
from bench.measure.command import Result
from bench.measure.plots import colors, new_figure, save_figure
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
_TABLES = {"loader": loader_table, "train": train_table, "formats": comparison_table, "peers": comparison_table}


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


def add_plots(outcome: Outcome, folder: Path, page: Path) -> None:
    """Put the plots of a study beside the page, in ``benchmarks/``."""
    pictures = page.parent / "benchmarks"
    pictures.mkdir(parents=True, exist_ok=True)
    study, plots = outcome.study, []
    if outcome.result is None:
        return
    if study.plot is not None:
        plots.append(f"{study.key}.svg")
        plot_sweep(outcome.result, study.plot, pictures / plots[0], title=study.title)
    for file in study.files:
        if (folder / file).is_file():
            plots.append(file if study.key == Path(file).stem else f"{study.key}-{file}")
            shutil.copy(folder / file, pictures / plots[-1])
    outcome.plots = tuple(f"benchmarks/{name}" for name in plots)


def plot_sweep(result: Result, parameter: str, path: Path, *, title: str) -> None:
    """Draw samples/s of the loader and of decoding alone over a parameter, with a bar for the range of the repeats.

    Args:
        result: Result of `bench.loader`, swept over ``parameter``.
        parameter: Swept parameter; its values stand at even distances.
        path: SVG to write.
        title: Title of the plot.
    """
    points = [point for point in result["points"] if point["median"] is not None]
    places = list(range(len(points)))
    figure, axes = new_figure(width=6, height=3.6)
    series = {"samples_per_s": "the loader", "limit_samples_per_s": "decoding alone"}
    for color, (key, name) in zip(colors(2), series.items(), strict=True):
        runs = [[run[key] for run in point["repeats"] if run[key] is not None] for point in points]
        if not all(runs):
            continue
        middle = [point["median"][key] for point in points]
        low = [level - min(values) for level, values in zip(middle, runs, strict=True)]
        high = [max(values) - level for level, values in zip(middle, runs, strict=True)]
        axes.errorbar(places, middle, [low, high], label=name, color=color, marker="o", capsize=4)
    axes.set_xticks(places, [str(point["point"][parameter]) for point in points])
    axes.set(xlabel=parameter.replace("_", " "), ylabel="pairs/s", title=title)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="lower right")
    save_figure(figure, path, png=False)
