"""The plot of a comparison: a bar of samples/s for each point, with the range of its repeats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.measure.plots import new_figure, save_figure
from bench.peers.table import rates


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Write the plot as SVG and PNG, or nothing if no point was measured; ``path`` has no suffix."""
    points = [point for point in result["points"] if point["repeats"] and not point["error"]]
    points.sort(key=lambda point: point["median"]["samples_per_s"])
    if not points:
        return
    middle = [point["median"]["samples_per_s"] for point in points]
    below = [rate - rates(point)[0] for rate, point in zip(middle, points, strict=True)]
    above = [rates(point)[1] - rate for rate, point in zip(middle, points, strict=True)]
    colours = ["tab:blue" if point["point"]["peer"] == "ours" else "tab:gray" for point in points]
    figure, axes = new_figure(width=8, height=1.6 + 0.4 * len(points))
    axes.barh([point["name"] for point in points], middle, xerr=[below, above], color=colours, capsize=4)
    for place, rate in enumerate(middle):
        axes.text(rate + above[place], place, f"  {rate:,.0f}", va="center")
    limits = [run["limit_samples_per_s"] for point in points for run in point["repeats"] if run["limit_samples_per_s"]]
    if limits:
        # A band, because the limit of a shared machine changes within a run.
        low, high = min(limits), max(limits)
        axes.axvspan(low, high, alpha=0.2, zorder=0, label=f"decoding alone: {low:,.0f} to {high:,.0f}")
        axes.legend(loc="lower right")
    axes.set_xlim(0, 1.2 * max([*middle, *limits]))
    height, width = result["shape"]
    axes.set_xlabel("samples/s (pairs of frames per second); bars: median, whiskers: lowest and highest")
    axes.set_title(f"{result['datasets']} datasets, {width}x{height} JPEG, {result['pairs']:,} pairs")
    save_figure(figure, path)
