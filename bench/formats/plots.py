"""Plots of the format study, as SVG and PNG; imported only when there is something to draw."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from bench.formats.stores import NAMES

_STYLES = {
    "jpeg": ("#0072B2", "o"),
    "webdataset": ("#E69F00", "s"),
    "tfrecord": ("#009E73", "^"),
    "lmdb": ("#CC79A7", "D"),
    "arrayrecord": ("#56B4E9", "v"),
    "ours": ("#D55E00", "*"),
}
_DPI = 130


def draw_plots(result: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Draw all plots into a folder; returns their captions by the name of their files, without suffix."""
    folder.mkdir(parents=True, exist_ok=True)
    repeat = result["parameters"]["repeat"]
    marks = f"Points are medians of {repeat}, bars the least and the most." if repeat > 1 else "Measured once."
    plots: dict[str, tuple[Any, str]] = {}
    rate, cores = "samples_per_s", "cpu_cores"
    if any(point["repeats"] and not point["error"] for point in result["points"]):
        plots["throughput_batch_size"] = (
            _grid(result, x="batch_size", panel="workers", value=rate, label="samples/s"),
            f"Throughput against batch size, a column for each number of workers. {marks}",
        )
        plots["throughput_workers"] = (
            _grid(result, x="workers", panel="batch_size", value=rate, label="samples/s"),
            f"Throughput against workers, a column for each batch size. {marks}",
        )
        plots["cpu_workers"] = (
            _grid(result, x="workers", panel="batch_size", value=cores, label="CPU use (cores)"),
            f"CPU time of the trainer and its workers for each second, a column for each batch size. {marks}",
        )
    if any(store["disk_bytes"] is not None for store in result["stores"].values()):
        plots["size"] = (_sizes(result), "Bytes on disk, in whole blocks, with the number of files, and time to write.")
    for name, (figure, _) in plots.items():
        # Names of shapes inside the SVG differ by plot, so that several can stand in one page.
        with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
            for suffix in ("svg", "png"):
                temporary = folder / f".{name}.tmp"
                metadata = {"Date": None} if suffix == "svg" else None
                figure.savefig(temporary, format=suffix, dpi=_DPI, metadata=metadata)
                temporary.replace(folder / f"{name}.{suffix}")
        plt.close(figure)
    return {name: caption for name, (_, caption) in plots.items()}


def _grid(result: Mapping[str, Any], *, x: str, panel: str, value: str, label: str) -> Any:
    """Lines of all formats over ``x``: a row for each order, a column for each value of ``panel``."""
    options = result["parameters"]
    orders, columns = options["orders"], options[_option(panel)]
    size = (max(5.5, 0.8 + 2.6 * len(columns)), 1.2 + 2.5 * len(orders))
    figure, axes = plt.subplots(
        len(orders), len(columns), figsize=size, sharex=True, sharey="row", squeeze=False, layout="constrained"
    )
    handles: dict[str, Any] = {}
    for axis_row, order in zip(axes, orders, strict=True):
        for axis, chosen in zip(axis_row, columns, strict=True):
            for name in options["formats"]:
                points = _points(result, {"format": name, "order": order, panel: chosen})
                if points:
                    handles[name] = _line(axis, points, name, x=x, value=value)
            _dress(axis, options[_option(x)], log=x == "batch_size")
            axis.set_title(f"{order}, {_title(panel, chosen)}", fontsize=9)
        axis_row[0].set_ylabel(label)
        axis_row[0].set_ylim(bottom=0)
    for axis in axes[-1]:
        text = "batch size (pairs)" if x == "batch_size" else "workers (processes; tf.data: threads)"
        axis.set_xlabel(text, fontsize=8)
    figure.legend(
        handles.values(),
        [NAMES[name] for name in handles],
        loc="outside lower center",
        ncols=min(len(handles), int(size[0] / 1.8)),
        fontsize=9,
        frameon=False,
    )
    return figure


def _points(result: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Any]:
    """The points without an error that have these parameters."""
    return [
        point
        for point in result["points"]
        if point["repeats"] and not point["error"] and wanted.items() <= point["point"].items()
    ]


def _line(axis: Any, points: list[Any], name: str, *, x: str, value: str) -> Any:
    points = sorted(points, key=lambda point: point["point"][x])
    middle = [point["median"][value] for point in points]
    every = [[run[value] for run in point["repeats"]] for point in points]
    below = [m - min(values) for m, values in zip(middle, every, strict=True)]
    above = [max(values) - m for m, values in zip(middle, every, strict=True)]
    colour, marker = _STYLES[name]
    return axis.errorbar(
        [point["point"][x] for point in points],
        middle,
        yerr=[below, above],
        color=colour,
        marker=marker,
        markersize=8 if marker == "*" else 5,
        linewidth=1.4,
        capsize=2.5,
    )


def _dress(axis: Any, places: list[int], *, log: bool) -> None:
    if log:
        axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(places), [str(place) for place in sorted(places)])
    axis.minorticks_off()
    axis.margins(x=0.12)
    axis.grid(alpha=0.3)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}")
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def _sizes(result: Mapping[str, Any]) -> Any:
    """Two bar charts side by side: megabytes on disk, with the number of files, and seconds of writing."""
    known = {name: store for name, store in result["stores"].items() if store["disk_bytes"] is not None}
    names = [NAMES[name] for name in known][::-1]
    stores, colours = list(known.values())[::-1], [_STYLES[name][0] for name in known][::-1]
    height = 1.1 + 0.42 * len(names)
    figure, (sizes, times) = plt.subplots(1, 2, figsize=(10, height), sharey=True, layout="constrained")
    megabytes = [store["disk_bytes"] / 1e6 for store in stores]
    seconds = [store["write_s"] for store in stores]
    texts = [f"{store['files']:,} file{'s' if store['files'] > 1 else ''}" for store in stores]
    sizes.bar_label(sizes.barh(names, megabytes, color=colours), texts, padding=3, fontsize=8)
    jpegs = result["pairs"]["bytes"] / 1e6
    sizes.axvline(jpegs, color="black", linewidth=1, linestyle=":")
    sizes.set_xlabel("on disk (MB, 10⁶ bytes); dotted: the JPEGs alone")
    texts = [f"{value:.2g} s" for value in seconds]
    times.bar_label(times.barh(names, seconds, color=colours), texts, padding=3, fontsize=8)
    times.set_xlabel("time to write (s)")
    for axis, most in ((sizes, max([*megabytes, jpegs])), (times, max(seconds))):
        axis.set_xlim(0, 1.25 * most)
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _option(key: str) -> str:
    return "batch_sizes" if key == "batch_size" else key


def _title(panel: str, value: int) -> str:
    return f"batch {value}" if panel == "batch_size" else f"{value} worker{'' if value == 1 else 's'}"
