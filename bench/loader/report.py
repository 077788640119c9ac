"""The figures of `bench.loader` as a table and as files."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.loader.mixture import SUMMARY, format_mixture, plot_mixture, summarise_mixture
from bench.loader.sweep import label
from bench.measure.points import Point
from bench.measure.points import median as medians_of
from bench.measure.tables import megabytes, number
from convert.report import format_table
from stream.storage.files import write_whole

RESULT_FILE = "run.json"
BATCHES_FILE = "batch_times.jsonl"
_QUIET = 0.05
_LARGE = ("batch_log",)
_RAW = (*_LARGE, "stats", "slices", "limit_slices", "memory_samples", "datasets", "weights", "decode_costs")


def summarise_points(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return for each point its swept parameters, the medians over the repeats, its comparison with the first point,
    the repeats, and its error, None if there is none.

    to_first: median over the repeats of ratio / ratio of the first point (of samples/s, if there is no limit);
    cpu_to_first: of its CPU time per pair, the first point's to this one's. None if either has failed.
    """
    summaries = []
    first = points[0].runs if points else []
    for point in points:
        runs = point.runs
        speed = "ratio" if all(run["ratio"] is not None for run in [*first, *runs]) else "samples_per_s"
        pairs = list(zip(runs, first, strict=False))
        summaries.append(
            {
                "point": point.parameters,
                "median": medians_of(runs, leave_out=_RAW) if runs else None,
                "to_first": _middle([run[speed] / other[speed] for run, other in pairs]),
                "cpu_to_first": _middle(
                    [other["cpu_s_per_1000_pairs"] / max(1e-9, run["cpu_s_per_1000_pairs"]) for run, other in pairs]
                ),
                "repeats": [{key: run[key] for key in run if key not in _LARGE} for run in runs],
                "error": point.error,
            }
        )
    return summaries


def _middle(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def format_result(result: dict[str, Any]) -> str:
    """Return the table of a whole result."""
    header = ["point", "batches/s", "samples/s", "limit", "ratio", "(range)", "to first", "CPU ratio", "others' CPU"]
    header += [
        "step ms",
        "p50",
        "p90",
        "p99",
        "max",
        "first batch s",
        "CPU s/1000",
        "MB/s",
        "PSS MB",
        "slope B/batch",
        "end s",
    ]
    rows = []
    for point in result["points"]:
        median, runs = point["median"], point["repeats"]
        if median is None:
            rows.append([label(point["point"]), "failed", *["-"] * (len(header) - 2)])
            continue
        step = median["step_ms"]
        ratios = [run["ratio"] for run in runs if run["ratio"] is not None]
        rise, error = median["slope_bytes_per_batch"], median["slope_error"]
        rows.append(
            [
                label(point["point"]),
                f"{median['batches_per_s']:.1f}",
                round(median["samples_per_s"]),
                number(median["limit_samples_per_s"], ",.0f"),
                number(median["ratio"], ".3f"),
                f"{min(ratios):.3f}-{max(ratios):.3f}" if ratios else "-",
                number(point["to_first"], ".3f"),
                number(median["cpu_ratio"], ".3f"),
                f"{median['others_cpu_share']:.0%}",
                *(f"{step[key]:.1f}" for key in ("mean", "p50", "p90", "p99", "max")),
                f"{median['first_batch_s']:.2f}",
                f"{median['cpu_s_per_1000_pairs']:.3f}",
                round(median["storage_bytes_per_s"] / 1e6),
                megabytes(median["peak_pss_bytes"]),
                number(rise, ",.0f") + (f" ± {error:,.0f}" if error is not None else ""),
                f"{median['close_s'] + median['exit_s']:.2f}",
            ]
        )
    machine = result["machine"]
    medians = [point["median"] for point in result["points"] if point["median"] is not None]
    lowest = min(figures["lowest_available_bytes"] for figures in medians)
    lines = [
        format_table(header, rows),
        f"medians of {result['parameters']['repeat']} on {machine['cores']} cores of {machine['cpu']}; MB are 10^6 "
        f"bytes; the machine had {lowest / 1e9:.1f} GB of memory left at least",
    ]
    lines += [
        f"{label(point['point'])} failed: {point['error']}" for point in result["points"] if point["error"] is not None
    ]
    if max(figures["others_cpu_share"] for figures in medians) > _QUIET:
        lines.append("the machine was busy with other things too: go by the CPU ratio, or measure when it is quiet")
    return "\n".join(lines)


def write_point(folder: Path, run: dict[str, Any]) -> None:
    """Write what one measurement was made of: times of its batches, and mixture.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names, log = run["datasets"], run["batch_log"]
    lines = []
    for entry in log:
        rows = {name: count for name, count in zip(names, entry["rows"], strict=True) if count}
        lines.append(json.dumps({**entry, "rows": rows}) + "\n")
    write_whole(folder / BATCHES_FILE, "".join(lines))
    composition = np.array([entry["rows"] for entry in log])
    summary = summarise_mixture(composition, names, run["weights"], run["decode_costs"])
    write_whole(folder / SUMMARY, format_mixture(summary))
    plot_mixture(folder, composition, names)
