"""Plots in one style; matplotlib is imported when a plot is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(*, width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes, sizes in inches, without a window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def colors(count: int) -> list[Any]:
    """Return ``count`` colours; neighbours differ."""
    from matplotlib import colormaps

    if count <= 10:
        return [colormaps["tab10"](number) for number in range(count)]
    if count <= 20:
        return [colormaps["tab20"](number) for number in range(count)]
    spread = colormaps["turbo"]
    return [spread(number * 0.618034 % 1) for number in range(count)]


def save_figure(figure: Figure, path: Path, *, png: bool = True) -> None:
    """Write a figure as SVG, the same bytes for the same content, and with ``png`` also as PNG."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "pairstream", "svg.fonttype": "none"}):
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    if png:
        figure.savefig(path.with_suffix(".png"), dpi=120)
