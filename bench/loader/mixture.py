"""Plots of the shares of the datasets over the batches of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.measure.plots import colors, new_figure, save_figure

OVER_TIME = "mixture_over_time.svg"
WINDOWS = "mixture_windows_every_stride.svg"
WINDOW, STRIDE = 5, 100
_BINS = 200


def plot_mixture(folder: Path, composition: np.ndarray, names: Sequence[str]) -> None:
    """Plot the shares over the whole run, and batch by batch in windows of it, as SVG and PNG.

    Args:
        folder: Folder for the plots.
        composition: Rows of each dataset in each batch, int [batches, datasets].
        names: Names of the datasets.
    """
    batches = len(composition)
    width = -(-batches // _BINS)
    starts = np.arange(0, batches, width)
    title = f"share of each dataset, in bins of {width} batches" if width > 1 else "share of each dataset, each batch"
    labels = {int(start): str(start) for start in starts[:: -(-len(starts) // 8)]}
    bars = np.add.reduceat(composition, starts)
    _plot(folder / OVER_TIME, starts, bars, names, width=width, labels=labels, title=title)
    shown = [batch for batch in range(batches) if batch % STRIDE < WINDOW]
    # Windows stand side by side with a gap of one bar.
    places = [batch // STRIDE * (WINDOW + 1) + batch % STRIDE for batch in shown]
    labels = {batch // STRIDE * (WINDOW + 1): str(batch) for batch in shown if batch % STRIDE == 0}
    title = f"{WINDOW} batches in a row, every {STRIDE}"
    _plot(folder / WINDOWS, places, composition[shown], names, width=0.9, labels=labels, title=title)


def _plot(
    path: Path,
    places: Sequence[int] | np.ndarray,
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
        axes.bar(places, shares[:, number], width, bases[:, number], align="edge", color=color, label=label)
    axes.set(xlabel="batch", ylabel="share of rows", title=title, xlim=(0, max(places) + width), ylim=(0, 1))
    axes.set_xticks(list(labels), list(labels.values()))
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=6, frameon=False, reverse=True)
    save_figure(figure, path)
