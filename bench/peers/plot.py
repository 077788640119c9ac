"""A picture of the peers: bars of samples/s with the range of the repeats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.peers.table import span


def plot(result: Mapping[str, Any], paths: list[Path]) -> None:
    """Write the same picture to each path, in the format of its suffix; nothing if no point has figures."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = [point for point in result["points"] if point["repeats"] and not point["error"]]
    points.sort(key=lambda point: point["median"]["samples_per_s"])
    if not points:
        return
    rates = [point["median"]["samples_per_s"] for point in points]
    below = [rate - span(point)[0] for rate, point in zip(rates, points, strict=True)]
    above = [span(point)[1] - rate for rate, point in zip(rates, points, strict=True)]
    own = [point["point"]["peer"] == "ours" for point in points]
    figure, axes = pyplot.subplots(figsize=(8, 1.6 + 0.4 * len(points)), layout="constrained")
    colours = ["tab:blue" if mine else "tab:gray" for mine in own]
    names = [point["name"] for point in points]
    axes.barh(names, rates, xerr=[below, above], color=colours, capsize=4)
    for place, rate in enumerate(rates):
        axes.text(rates[place] + above[place], place, f"  {rate:,.0f}", va="center")
    limits = [run["limit_samples_per_s"] for point in points for run in point["repeats"] if run["limit_samples_per_s"]]
    if limits:
        # A band, not a line: on a shared machine the limit itself changes within a run.
        low, high = min(limits), max(limits)
        axes.axvspan(low, high, alpha=0.2, zorder=0, label=f"decoding alone: {low:,.0f} to {high:,.0f}")
        axes.legend(loc="lower right")
    axes.set_xlim(0, 1.2 * max([*rates, *limits]))
    axes.set_xlabel("samples/s (pairs of frames per second); bars: median, whiskers: lowest and highest")
    parameters = result["parameters"]
    height, width = result["shape"]
    axes.set_title(
        f"{result['datasets']} datasets, {width}x{height} JPEG, batch {parameters['batch_size']}, "
        f"{parameters['num_workers']} workers"
    )
    for path in paths:
        temporary = path.with_name(f".{path.name}")
        figure.savefig(temporary, format=path.suffix[1:], dpi=120)
        temporary.replace(path)
    pyplot.close(figure)
