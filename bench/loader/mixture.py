"""What a run was made of: shares of datasets over its batches, as plots and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.measure.plots import colors, new_figure, save_figure
from convert.report import format_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OVER_TIME = "mixture_over_time.svg"
WINDOWS = "mixture_windows_every_stride.svg"
SUMMARY = "mixture_summary.txt"
WINDOW, STRIDE = 5, 100
_BINS = 200
_SHOWN = 12


def summarise_mixture(
    composition: np.ndarray, names: Sequence[str], weights: Sequence[float], costs: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    """Return what can be said of a run's mixture.

    Args:
        composition: int [batches, datasets], rows of each dataset in each batch.
        names, weights: of the datasets; weights add up to 1.
        costs: of the datasets, ``decode_ms`` and ``bytes`` of a pair.

    Returns:
        batches, rows; unique: least, mean and most datasets in a batch; dominant: batches in which a dataset has more
        rows than any other (the first of equals); switch_rate: of all batches but the first, those with another
        dominant dataset than the one before; shares; deviation: the largest of rows / all rows - weight, and whose;
        rows_off: the largest distance, after any batch, of a dataset's rows so far to weight * rows so far;
        costs: by dataset, the slowest to decode first.
    """
    counts = composition.sum(axis=0)
    rows = int(counts.sum())
    unique = (composition > 0).sum(axis=1)
    dominant = composition.argmax(axis=1)
    wanted = np.asarray(weights)
    off = np.abs(composition.cumsum(axis=0) - composition.sum(axis=1).cumsum()[:, None] * wanted)
    worst = int(np.abs(counts / rows - wanted).argmax())
    order = sorted(range(len(names)), key=lambda number: -costs[number]["decode_ms"])
    return {
        "batches": len(composition),
        "rows": rows,
        "unique": {"least": int(unique.min()), "mean": float(unique.mean()), "most": int(unique.max())},
        "dominant": {names[number]: int((dominant == number).sum()) for number in np.unique(dominant).tolist()},
        "switch_rate": float((np.diff(dominant) != 0).mean()) if len(dominant) > 1 else 0.0,
        "shares": {name: int(count) / rows for name, count in zip(names, counts, strict=True)},
        "deviation": {"dataset": names[worst], "share": float(counts[worst] / rows - wanted[worst])},
        "rows_off": float(off.max()),
        "costs": {names[number]: dict(costs[number]) for number in order},
    }


def format_mixture(summary: Mapping[str, Any]) -> str:
    """Return the text of ``mixture_summary.txt``."""
    unique, deviation = summary["unique"], summary["deviation"]
    dominant = sorted(summary["dominant"].items(), key=lambda item: -item[1])
    lines = [
        f"{summary['batches']:,} batches, {summary['rows']:,} rows",
        f"datasets in a batch: {unique['least']} to {unique['most']}, mean {unique['mean']:.1f} of "
        f"{len(summary['shares'])}",
        "dominant dataset (most rows of a batch, the first of equals): "
        + ", ".join(f"{name} {count:,}" for name, count in dominant[:_SHOWN])
        + (f", {len(dominant) - _SHOWN} more" if len(dominant) > _SHOWN else ""),
        f"dominant dataset switches in {summary['switch_rate']:.1%} of the batches",
        f"largest deviation from the wanted share: {deviation['share']:+.6f} ({deviation['dataset']})",
        f"largest distance of a dataset's rows to weight * rows, after any batch: {summary['rows_off']:.2f}",
        "",
        "slowest datasets (decoding a pair alone, one thread):",
        format_table(
            ["dataset", "share", "ms a pair", "KB a pair"],
            [
                [name, f"{summary['shares'][name]:.4f}", f"{cost['decode_ms']:.3f}", f"{cost['bytes'] / 1e3:.1f}"]
                for name, cost in summary["costs"].items()
            ],
        ),
    ]
    return "\n".join(lines) + "\n"


def plot_mixture(folder: Path, composition: np.ndarray, names: Sequence[str]) -> None:
    """Write both plots, as SVG, and as PNG to look at.

    Args:
        composition: int [batches, datasets], rows of each dataset in each batch.
    """
    batches = len(composition)
    width = max(1, -(-batches // _BINS))
    bins = [composition[start : start + width].sum(axis=0) for start in range(0, batches, width)]
    shares = np.array([part / part.sum() for part in bins])
    edges = np.append(np.arange(0, batches, width), batches)
    title = f"share of each dataset, in bins of {width} batches" if width > 1 else "share of each dataset, each batch"
    figure, axes = new_figure(width=11, height=5)
    # The last value is repeated, so that its step has a width.
    axes.stackplot(edges, np.vstack([shares, shares[-1:]]).T, step="post", colors=colors(len(names)), labels=names)
    axes.set(xlabel="batch", title=title, xlim=(0, batches))
    _finish(figure, axes, folder / OVER_TIME)
    windows = [(start, composition[start : start + WINDOW]) for start in range(0, batches, STRIDE)]
    places, labels, bars = [], [], []
    for number, (start, rows) in enumerate(windows):
        for inside, row in enumerate(rows):
            places.append(number * (WINDOW + 1) + inside)
            labels.append(str(start + inside) if inside == 0 else "")
            bars.append(row / row.sum())
    figure, axes = new_figure(width=11, height=5)
    base = np.zeros(len(places))
    for number, color in enumerate(colors(len(names))):
        heights = np.array(bars)[:, number]
        axes.bar(places, heights, 0.9, base, align="edge", color=color, label=names[number])
        base = base + heights
    axes.set(xlabel="batch", title=f"{WINDOW} batches in a row, every {STRIDE}", xlim=(0, max(places) + 0.9))
    axes.set_xticks(np.array(places) + 0.45, labels)
    axes.tick_params(axis="x", length=0)
    _finish(figure, axes, folder / WINDOWS)


def _finish(figure: Figure, axes: Axes, path: Path) -> None:
    axes.set(ylabel="share of rows", ylim=(0, 1))
    handles, names = axes.get_legend_handles_labels()
    short = [name.removesuffix("_converted_externally_to_rlds") for name in names]
    style: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "fontsize": 6, "frameon": False}
    axes.legend(handles[::-1], short[::-1], **style)
    save_figure(figure, path)
