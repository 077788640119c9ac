"""What the format study leaves: ``summary.csv``, ``sysinfo.json``, the table on the terminal, plots and guide."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.formats.guide import best_point, guide_blocks, render_html, render_markdown
from bench.formats.stores import NAMES
from convert.report import format_table
from stream.storage.files import write_whole

SUMMARY, SYSINFO, GUIDE, PLOTS = "summary.csv", "sysinfo.json", "guide", "plots"

COLUMNS = (
    *("format", "order", "batch_size", "workers", "error", "repeats"),
    *("samples_per_s", "samples_per_s_min", "samples_per_s_max", "first_batch_s"),
    *("step_ms_p50", "step_ms_p90", "step_ms_p99", "peak_pss_bytes", "peak_rss_bytes"),
    *("cpu_cores", "machine_cpu_cores", "gpu_percent", "processes"),
    *("write_s", "files", "file_bytes", "disk_bytes", "checked", "note"),
)
"""Of summary.csv: medians over the repeats; a figure that is not known is empty."""


def summary_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of summary.csv, one a point, failed ones included; keys are ``COLUMNS``."""
    return [_row(point, result) for point in result["points"]]


def _row(point: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    name = point["point"]["format"]
    middle, store = point["median"] or {}, result["stores"][name]
    rates = [run["samples_per_s"] for run in point["repeats"]]
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row.update({key: value for key, value in middle.items() if key in COLUMNS})
    row.update({f"step_ms_{key}": value for key, value in middle.get("step_ms", {}).items() if key[0] == "p"})
    row.update({key: store[key] for key in ("write_s", "files", "file_bytes", "disk_bytes", "checked")})
    row.update(point["point"])
    row.update(error=point["error"], repeats=len(rates), note=result["notes"][name])
    row.update(samples_per_s_min=min(rates, default=None), samples_per_s_max=max(rates, default=None))
    return row


def write_summary(out: Path, result: Mapping[str, Any]) -> None:
    """Write summary.csv and sysinfo.json into a folder; a reader finds the old or the new one, never half of it."""
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(summary_rows(result))
    write_whole(out / SUMMARY, text.getvalue())
    system = {key: result[key] for key in ("machine", "parameters", "pairs", "stores", "notes")}
    write_whole(out / SYSINFO, json.dumps(system, indent=1))


def write_guide(out: Path, result: Mapping[str, Any]) -> None:
    """Draw the plots and write guide.md and guide.html. Without matplotlib the guide has no plots, and says so."""
    try:
        from bench.formats.plots import draw_plots

        plots = draw_plots(result, out / PLOTS)
    except ModuleNotFoundError as error:
        plots = None
        missing = f"No plots: {error.name} is not installed (pip install -c constraints.txt {error.name})."
    blocks = guide_blocks(result, plots=plots or {}, remark=None if plots is not None else missing)
    write_whole(out / f"{GUIDE}.md", render_markdown(blocks, folder=PLOTS))
    write_whole(out / f"{GUIDE}.html", render_html(blocks, folder=out / PLOTS))


def describe_run(run: Mapping[str, Any]) -> str:
    """Return one line of what a measurement gave."""
    return (
        f"{run['samples_per_s']:,.0f} samples/s, p99 {run['step_ms']['p99']:.1f} ms, {run['cpu_cores']:.1f} of "
        f"{run['machine_cpu_cores']:.1f} busy cores"
    )


def format_result(result: Mapping[str, Any]) -> str:
    """Return the table for the terminal: the best point of each format and order, and the errors."""
    header = ["format", "order", "samples/s", "(range)", "batch", "workers", "p99 ms", "first s", "PSS MB", "cores"]
    rows: list[Sequence[object]] = []
    for order in result["parameters"]["orders"]:
        for name in result["parameters"]["formats"]:
            point = best_point(result, name, order)
            if point is None:
                continue
            rates, middle = [run["samples_per_s"] for run in point["repeats"]], point["median"]
            pss = middle["peak_pss_bytes"]
            rows.append(
                [
                    NAMES[name],
                    order,
                    round(middle["samples_per_s"]),
                    f"{min(rates):,.0f}-{max(rates):,.0f}",
                    point["point"]["batch_size"],
                    point["point"]["workers"],
                    f"{middle['step_ms']['p99']:.1f}",
                    f"{middle['first_batch_s']:.2f}",
                    "-" if pss is None else round(pss / 1e6),
                    f"{middle['cpu_cores']:.1f}",
                ]
            )
    machine, pairs = result["machine"], result["pairs"]
    lines = [format_table(header, rows)] if rows else ["no point could be measured"]
    lines.append(
        f"best batch size and workers of each; medians of {result['parameters']['repeat']}; {pairs['count']:,} pairs "
        f"of {pairs['height']}x{pairs['width']} on {machine['cores']} cores of {machine['cpu']}"
    )
    lines += [f"{point['name']}: error: {point['error']}" for point in result["points"] if point["error"]]
    return "\n".join(lines)
