"""Plots of sweeps: a line, with a bar from the least to the most of the repeats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.measure.plots import colors, new_figure, save_figure

_NAMES = {"num_workers": "worker processes", "datasets": "datasets", "batch_size": "rows of a batch"}


def plot_sweep(result: Mapping[str, Any], parameter: str, path: Path, *, title: str) -> None:
    """Draw samples/s of the loader and of decoding alone over a parameter.

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
    axes.set(xlabel=_NAMES.get(parameter, parameter), ylabel="pairs/s", title=title)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="lower right")
    save_figure(figure, path, png=False)
