"""The figures of `bench.loader` as a table and as files."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.loader.mixture import plot_mixture
from bench.measure.points import Point
from bench.measure.tables import Column, Table, figure, point_table, spread
from stream.storage.files import write_whole

RESULT_FILE = "run.json"
BATCHES_FILE = "batch_times.jsonl"
_QUIET = 0.05
_RAW = ("batch_log", "stats", "slices", "limit_slices", "memory_samples", "datasets")


def summarise_points(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the points for the result, each compared with the first one.

    ``to_first`` is the median over the repeats of the ratio divided by the first point's (samples/s without a limit),
    None if one of them failed.
    """
    summaries = []
    first = points[0].runs
    for point in points:
        runs = point.runs
        speed = "ratio" if all(run["ratio"] is not None for run in [*first, *runs]) else "samples_per_s"
        pairs = list(zip(runs, first, strict=False))
        summaries.append(
            {
                **point.as_dict(leave_out=_RAW),
                "to_first": _middle([run[speed] / other[speed] for run, other in pairs]),
                "repeats": [{key: run[key] for key in run if key != "batch_log"} for run in runs],
            }
        )
    return summaries


def _middle(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _to_first(point: Mapping[str, Any]) -> str | None:
    return None if point["to_first"] is None else f"{point['to_first']:.3f}"


def _growth(point: Mapping[str, Any]) -> str | None:
    rise, error = point["median"]["slope_bytes_per_batch"], point["median"]["slope_error"]
    return None if rise is None else f"{rise:,.0f}" + (f" ± {error:,.0f}" if error is not None else "")


_COLUMNS: dict[str, Column] = {
    "samples/s": figure("samples_per_s", form=",.0f"),
    "limit": figure("limit_samples_per_s", form=",.0f"),
    "ratio": figure("ratio", form=".3f"),
    "(range)": spread("ratio", ".3f"),
    "CPU ratio": figure("cpu_ratio", form=".3f"),
    "to first": _to_first,
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
    given, machine = result["parameters"], result["machine"]
    medians = [point["median"] for point in result["points"] if point["median"] is not None]
    lowest = min((figures["lowest_available_bytes"] for figures in medians), default=0)
    notes = [
        f"Medians of {given['repeat']} on {machine['cores']} cores of {machine['cpu']}, {given['steps']:,} batches of "
        f"{given['batch_size']} each. MB are 10^6 bytes. The machine had {lowest / 1e9:.1f} GB of memory left at least."
    ]
    busy = max((figures["others_cpu_share"] for figures in medians), default=0.0)
    if busy > _QUIET:
        notes.append(f"Other programs took {busy:.0%} of the machine: compare the CPU ratio, or repeat it when quiet.")
    return point_table(result["points"], _COLUMNS, notes)


def write_point(folder: Path, run: Mapping[str, Any]) -> None:
    """Write the times of the batches of a measurement, and plots of its mixture.

    Raises:
        OSError: The folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names, log = run["datasets"], run["batch_log"]
    lines = []
    for entry in log:
        rows = {name: count for name, count in zip(names, entry["rows"], strict=True) if count}
        lines.append(json.dumps({**entry, "rows": rows}) + "\n")
    write_whole(folder / BATCHES_FILE, "".join(lines))
    plot_mixture(folder, np.array([entry["rows"] for entry in log]), names)
