"""``python -m bench.loader``: the speed of the loader, compared with only decoding the same frames, in one run.

Each repeat of each point runs in a fresh process; with ``--sweep`` a repeat goes through all points, in alternating
order. Figures are medians over the repeats.

``ratio`` is samples/s of the loader divided by samples/s of the limit: one process for each worker (or one thread for
each of the loader's threads) that decodes the same frames from memory, raw ones are copied
(`bench.measure.decode_limit`). Loader and limit are measured in turns, in slices of about a second
(`bench.loader.run`). On a busy machine compare CPU time instead: ``others' CPU`` is the share of other programs,
``CPU ratio`` the CPU time of decoding alone divided by that of the loader, trainer included. ``to first`` compares the
ratio of a point (samples/s without a limit) with that of the first point, within a repeat.

A point that fails is a row with its error. The other points are measured, and the exit code is 1.

``--out`` receives ``run.json`` (all figures, parameters, machine) and, for each point, ``batch_times.jsonl`` (a line a
batch) and plots of the mixture over the batches, from the point's last repeat. With ``--sweep`` each has a folder.

Memory is the proportional set size of trainer and workers, sampled between the slices; its growth is in bytes a batch.
The files come from the page cache unless they are larger than memory; MB/s is the rate at which they are read.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.loader.parameters import Parameters, open_loader
from bench.measure.child import ask
from bench.measure.options import option
from bench.measure.points import Point, Prepared, Repeated, prepare_sweep, study, sweep_over
from bench.measure.tables import Column, Table, colors, figure, new_figure, point_table, save_figure, spread
from stream.storage.files import write_atomically

OVER_TIME = "mixture_over_time.svg"
WINDOWS = "mixture_windows_every_stride.svg"
WINDOW, STRIDE = 5, 100
_BINS = 200


def plot_mixture(folder: Path, composition: np.ndarray, names: Sequence[str]) -> None:
    """Plot the shares over the whole run, and batch by batch in windows of it, as SVG and PNG."""
    batches = len(composition)
    width = -(-batches // _BINS)
    starts = np.arange(0, batches, width)
    title = f"share of each dataset, in bins of {width} batches" if width > 1 else "share of each dataset, each batch"
    labels = {int(start): str(start) for start in starts[:: -(-len(starts) // 8)]}
    bars = np.add.reduceat(composition, starts)
    _plot(folder / OVER_TIME, starts, bars, names, width=width, labels=labels, title=title)
    shown = [batch for batch in range(batches) if batch % STRIDE < WINDOW]
    # Windows stand side by side with a gap of one bar.
    positions = [batch // STRIDE * (WINDOW + 1) + batch % STRIDE for batch in shown]
    labels = {batch // STRIDE * (WINDOW + 1): str(batch) for batch in shown if batch % STRIDE == 0}
    title = f"{WINDOW} batches in a row, every {STRIDE}"
    _plot(folder / WINDOWS, positions, composition[shown], names, width=0.9, labels=labels, title=title)


def _plot(
    path: Path,
    positions: Any,
    rows: np.ndarray,
    names: Sequence[str],
    *,
    width: float,
    labels: dict[int, str],
    title: str,
) -> None:
    """Plot a stacked bar of shares at each place."""
    shares = rows / rows.sum(axis=1, keepdims=True)
    bases = np.cumsum(shares, axis=1) - shares
    figure, axes = new_figure(width=11, height=5)
    for number, color in enumerate(colors(len(names))):
        label = names[number].removesuffix("_converted_externally_to_rlds")
        axes.bar(positions, shares[:, number], width, bases[:, number], align="edge", color=color, label=label)
    axes.set(xlabel="batch", ylabel="share of rows", title=title, xlim=(0, max(positions) + width), ylim=(0, 1))
    axes.set_xticks(list(labels), list(labels.values()))
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=6, frameon=False, reverse=True)
    save_figure(figure, path)


RESULT_FILE = "run.json"
BATCHES_FILE = "batch_times.jsonl"
_QUIET = 0.05
_RAW = ("stats", "slices", "limit_slices", "memory_samples", "datasets")


@dataclass(frozen=True, kw_only=True)
class LoaderOptions(Parameters, Repeated):
    """Options of the command."""

    no_limit: bool = option(False, bool, "do not measure decoding alone")
    sweep: list[tuple[str, list[Any]]] | None = sweep_over(Parameters)

    def __post_init__(self) -> None:
        if self.no_limit:
            object.__setattr__(self, "limit_s", 0.0)


def _prepare(options: LoaderOptions) -> AbstractContextManager[Prepared]:
    def measure(point: Point, parameters: dict[str, Any]) -> dict[str, Any]:
        run = ask("bench.loader.run", parameters)
        log_lines = run.pop("batch_log")
        if options.out is not None and len(point.runs) == options.repeat - 1:
            write_point(options.out / _folder(point.name) if options.sweep else options.out, run["datasets"], log_lines)
        return run

    return prepare_sweep(options, Parameters, open_loader, measure)


def _folder(point_name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "=-_.," else "_" for letter in point_name.replace(" ", ","))


def _line(run: dict[str, Any]) -> str:
    limit = "" if run["ratio"] is None else f", {run['ratio']:.3f} of the limit ({run['cpu_ratio'] or 0:.3f} in CPU)"
    return f"{run['samples_per_s']:,.0f} samples/s{limit}, others' CPU {run['others_cpu_share']:.0%}"


def summarise_points(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the points for the result, each compared with the first one.

    ``to_first`` is the median over the repeats of the ratio divided by the first point's (samples/s without a limit),
    None if one of them failed.
    """
    summaries = []
    first = points[0].runs
    for point in points:
        limited = all(run["ratio"] is not None for run in [*first, *point.runs])
        speed = "ratio" if limited else "samples_per_s"
        compared = [run[speed] / first_run[speed] for run, first_run in zip(point.runs, first, strict=False)]
        to_first = statistics.median(compared) if compared else None
        summaries.append({**point.as_dict(leave_out=_RAW), "to_first": to_first})
    return summaries


def _growth(point: Mapping[str, Any]) -> str | None:
    rise, error = point["median"]["slope_bytes_per_batch"], point["median"]["slope_error"]
    return None if rise is None else f"{rise:,.0f}" + (f" ± {error:,.0f}" if error is not None else "")


_COLUMNS: dict[str, Column] = {
    "samples/s": figure("samples_per_s", form=",.0f"),
    "limit": figure("limit_samples_per_s", form=",.0f"),
    "ratio": figure("ratio", form=".3f"),
    "(range)": spread("ratio", ".3f"),
    "CPU ratio": figure("cpu_ratio", form=".3f"),
    "to first": lambda point: None if point["to_first"] is None else f"{point['to_first']:.3f}",
    "others' CPU": figure("others_cpu_share", form=".0%"),
    "step p50 ms": figure("step_ms", "p50", form=".1f"),
    "p99 ms": figure("step_ms", "p99", form=".1f"),
    "first batch s": figure("first_batch_s", form=".2f"),
    "end s": lambda point: f"{point['median']['close_s'] + point['median']['exit_s']:.2f}",
    "CPU s/1000": figure("cpu_s_per_1000_pairs", form=".3f"),
    "MB/s": figure("storage_bytes_per_s", form=",.0f", scale=1e-6),
    "memory MB": figure("peak_pss_bytes", form=",.0f", scale=1e-6),
    "growth B/batch": _growth,
}


def loader_table(result: Mapping[str, Any]) -> Table:
    """Return the table of a result."""
    parameters, machine = result["parameters"], result["machine"]
    medians = [point["median"] for point in result["points"] if point["median"] is not None]
    lowest = min((figures["lowest_available_bytes"] for figures in medians), default=0)
    notes = [
        f"Medians of {parameters['repeat']} on {machine['cores']} cores of {machine['cpu']}, {parameters['steps']:,} "
        f"batches of {parameters['batch_size']} each. MB are 10^6 bytes. At least {lowest / 1e9:.1f} GB of memory "
        "were left."
    ]
    busy = max((figures["others_cpu_share"] for figures in medians), default=0.0)
    if busy > _QUIET:
        notes.append(f"Other programs took {busy:.0%} of the machine: compare the CPU ratio, or repeat it when quiet.")
    return point_table(result["points"], _COLUMNS, notes)


def write_point(folder: Path, names: Sequence[str], log_lines: Sequence[dict[str, Any]]) -> None:
    """Write the times of the batches of a measurement, and plots of its mixture."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for entry in log_lines:
        rows = {name: count for name, count in zip(names, entry["rows"], strict=True) if count}
        lines.append(json.dumps({**entry, "rows": rows}) + "\n")
    write_atomically(folder / BATCHES_FILE, "".join(lines))
    plot_mixture(folder, np.array([entry["rows"] for entry in log_lines]), names)


COMMAND = study(
    name="loader",
    about="Measure the loader, compared with only decoding the same frames.",
    epilog="A point with the defaults takes about 15 s a repeat on two idle cores.",
    options=LoaderOptions,
    prepare=_prepare,
    describe=_line,
    summarise=summarise_points,
    table=loader_table,
    libraries=("array-record", "grain", "numpy", "pyarrow", "simplejpeg"),
    file=RESULT_FILE,
)
main = COMMAND.main
