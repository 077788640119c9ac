"""Small drawings as SVG text, with the colours of the page: histograms side by side, and counts."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from pairstream.browse.histograms import Comparison, Histogram

_WIDE, _HIGH, _GAP, _LEFT, _TOP = 132, 34, 18, 210, 46


def draw_comparison(comparison: Comparison) -> str:
    """Return histograms as a grid: a row for each dataset, the first one marked, a column for each dimension."""
    lefts = [_LEFT + number * (_WIDE + _GAP) for number in range(len(comparison.names))]
    bottom = _TOP + len(comparison.rows) * (_HIGH + _GAP) + 4
    elements = [_open(_LEFT + len(lefts) * (_WIDE + _GAP), bottom + 12)]
    # All histograms of a column have the same bins, so one axis serves them, above the first row and below the last.
    columns = zip(*comparison.rows.values(), strict=True)
    for left, label, column in zip(lefts, comparison.names, columns, strict=True):
        elements.append(_text(left, 14, _cut(label.rpartition("/")[2], 18), title=label, weight=600))
        if histogram := next(filter(None, column), None):
            ends = histogram.low, (histogram.low + histogram.high) / 2, histogram.high
            for share, anchor, value in zip((0, 0.5, 1), ("start", "middle", "end"), ends, strict=True):
                for baseline in (28, bottom):
                    elements.append(_text(left + share * _WIDE, baseline, f"{value:.2g}", tick=True, anchor=anchor))
    for row_number, (dataset, histograms) in enumerate(comparison.rows.items()):
        top, is_first = _TOP + row_number * (_HIGH + _GAP), row_number == 0
        elements.append(_text(0, top + _HIGH - 4, _cut(dataset, 30), title=dataset, weight=600 if is_first else 400))
        for left, label, histogram in zip(lefts, comparison.names, histograms, strict=True):
            if histogram is not None:
                look = "bar" if is_first else "other"
                elements.append(_bars(histogram, left, top, look, f"{dataset}, {label}"))
    return "".join([*elements, "</svg>"])


def _bars(histogram: Histogram, left: float, top: float, look: str, label: str) -> str:
    heights = _HIGH * histogram.shares / histogram.shares.max()
    bar_width = _WIDE / len(heights)
    outline = "".join(
        f"M{left + bin_number * bar_width:.1f} {top + _HIGH:.1f}v{-height:.1f}h{bar_width:.1f}v{height:.1f}z"
        for bin_number, height in enumerate(heights)
        if height > 0
    )
    tooltip = f"{label}: {histogram.least:.4g} to {histogram.most:.4g}"
    tooltip += f", {histogram.nonfinite:,} not finite" if histogram.nonfinite else ""
    baseline = f'<path d="M{left} {top + _HIGH}h{_WIDE}" class="line"/>'
    peak = _text(left + _WIDE, top - 2, f"{histogram.shares.max():.0%}", tick=True, anchor="end")
    hover_area = _rect(left, top, _WIDE, _HIGH, tooltip, fill="transparent")
    return f'<g>{_title(tooltip)}{hover_area}{baseline}<path d="{outline}" class="{look}"/>{peak}</g>'


def draw_counts(counts: np.ndarray, edges: np.ndarray, *, unit: str, counted: str) -> str:
    """Return one histogram of counts, int [n], between edges [n + 1] in a unit, with numbers and names of both axes."""
    left, width, height, top = 50, 620, 150, 28
    elements = [_open(left + width + 40, top + height + 35), _text(0, 12, counted, tick=True)]
    bar_width, most = width / max(1, len(counts)), int(counts.max(initial=1))
    for share in (0, 0.5, 1) if most > 1 else (0, 1):
        baseline = top + height * (1 - share)
        elements.append(f'<path d="M{left} {baseline:.1f}h{width}" class="line"/>')
        elements.append(_text(left - 6, baseline + 4, f"{most * share:,.0f}", tick=True, anchor="end"))
    for bin_number, count in enumerate(counts.tolist()):
        if count:
            bar_height = max(1.0, height * count / most)
            tooltip = f"{edges[bin_number]:,.0f} to {edges[bin_number + 1]:,.0f} {unit}: {count:,}"
            bar_left, bar_top = left + bin_number * bar_width, top + height - bar_height
            elements.append(_rect(bar_left, bar_top, max(1, bar_width - 1), bar_height, tooltip, **{"class": "bar"}))
    for tick in np.unique(np.linspace(edges[0], edges[-1], 5).round()).tolist():
        tick_left = left + width * (tick - edges[0]) / (edges[-1] - edges[0])
        elements.append(_text(tick_left, top + height + 15, f"{tick:,.0f}", tick=True, anchor="middle"))
    elements.append(_text(left + width / 2, top + height + 31, unit, tick=True, anchor="middle"))
    return "".join([*elements, "</svg>"])


def _open(width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" class="plot">'
    )


def _rect(left: float, top: float, width: float, height: float, tooltip: str, **look: str) -> str:
    attributes = " ".join(f'{name}="{value}"' for name, value in look.items())
    geometry = f'x="{left:.1f}" y="{top:.2f}" width="{width:.1f}" height="{height:.2f}"'
    return f'<rect {geometry} {attributes} stroke-width="0.5">{_title(tooltip)}</rect>'


def _text(left: float, baseline: float, text: str, *, title: str = "", tick: bool = False, **look: Any) -> str:
    attributes = f'style="font-weight: {look.get("weight", 400)}" text-anchor="{look.get("anchor", "start")}"'
    attributes += ' class="tick"' if tick else ""
    tooltip = _title(title) if title else ""
    return f'<text x="{left:.1f}" y="{baseline:.1f}" {attributes}>{tooltip}{escape(text)}</text>'


def _title(tooltip: str) -> str:
    return f"<title>{escape(tooltip)}</title>"


def _cut(text: str, max_letters: int) -> str:
    return text if len(text) <= max_letters else f"{text[: max_letters - 1]}…"
