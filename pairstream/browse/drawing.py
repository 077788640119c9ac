"""Small drawings as SVG text: histograms side by side, bars, and shares over time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from pairstream.browse.histograms import Comparison, Histogram

_WIDE, _HIGH, _GAP, _LEFT, _TOP = 132, 34, 12, 210, 34
_INK, _FAINT, _MARKED, _PLAIN = "#1b1e24", "#667", "#1553a5", "#9aa7b8"
_COLOURS = (
    *("#1553a5", "#c2571a", "#2c8a4b", "#8b3fa0", "#b58900"),
    *("#0f8a8a", "#b3264a", "#5b6abf", "#6b7a1f", "#7a5230"),
)


def draw_comparison(comparison: Comparison) -> str:
    """Return histograms as a grid: a row for each dataset, the first one marked, a column for each dimension."""
    lefts = [_LEFT + number * (_WIDE + _GAP) for number in range(len(comparison.names))]
    bottom = _TOP + len(comparison.rows) * (_HIGH + _GAP) + 4
    elements = [_open(_LEFT + len(lefts) * (_WIDE + _GAP), bottom + 12)]
    for left, label in zip(lefts, comparison.names, strict=True):
        elements.append(_text(left, 14, _cut(label.rpartition("/")[2], 18), title=label, weight=600))
    for row_number, (dataset, histograms) in enumerate(comparison.rows.items()):
        top, is_first = _TOP + row_number * (_HIGH + _GAP), row_number == 0
        elements.append(_text(0, top + _HIGH - 4, _cut(dataset, 30), title=dataset, weight=600 if is_first else 400))
        for left, label, histogram in zip(lefts, comparison.names, histograms, strict=True):
            if histogram is not None:
                colour = _MARKED if is_first else _PLAIN
                elements.append(_bars(histogram, left, top, colour, f"{dataset}, {label}"))
    # All histograms of a column have the same bins, so the ends of any of them are written below it.
    for left, column in zip(lefts, zip(*comparison.rows.values(), strict=True), strict=False):
        if histogram := next(filter(None, column), None):
            elements.append(_text(left, bottom, f"{histogram.low:.3g}", colour=_FAINT))
            elements.append(_text(left + _WIDE, bottom, f"{histogram.high:.3g}", colour=_FAINT, anchor="end"))
    return "".join([*elements, "</svg>"])


def _bars(histogram: Histogram, left: float, top: float, colour: str, label: str) -> str:
    heights = _HIGH * histogram.shares / histogram.shares.max()
    bar_width = _WIDE / len(heights)
    outline = "".join(
        f"M{left + bin_number * bar_width:.1f} {top + _HIGH:.1f}v{-height:.1f}h{bar_width:.1f}v{height:.1f}z"
        for bin_number, height in enumerate(heights)
        if height > 0
    )
    tooltip = f"{label}: {histogram.least:.4g} to {histogram.most:.4g}"
    tooltip += f", {histogram.nonfinite:,} not finite" if histogram.nonfinite else ""
    baseline = f'<path d="M{left} {top + _HIGH}h{_WIDE}" stroke="#d5d9df"/>'
    hover_area = _rect(left, top, _WIDE, _HIGH, tooltip, fill="transparent")
    return f'<g>{_title(tooltip)}{hover_area}{baseline}<path d="{outline}" fill="{colour}"/></g>'


def draw_counts(counts: np.ndarray, edges: np.ndarray, *, unit: str) -> str:
    """Return one histogram of counts, int [n], between edges [n + 1]."""
    width, height, top = 620, 150, 10
    elements = [_open(width, height + 30)]
    bar_width = width / max(1, len(counts))
    shown_width = max(1, min(bar_width, 60) - 1)
    for bin_number, count in enumerate(counts.tolist()):
        if count:
            bar_height = max(1.0, height * count / counts.max())
            tooltip = f"{edges[bin_number]:,.0f} to {edges[bin_number + 1]:,.0f} {unit}: {count:,}"
            left, bar_top = bin_number * bar_width, top + height - bar_height
            elements.append(_rect(left, bar_top, shown_width, bar_height, tooltip, fill=_MARKED))
    elements.append(_text(0, height + 26, f"{edges[0]:,.0f} {unit}", colour=_FAINT))
    elements.append(_text(width, height + 26, f"{edges[-1]:,.0f}", colour=_FAINT, anchor="end"))
    return "".join([*elements, "</svg>"])


def draw_shares(member_names: Sequence[str], phases: Sequence[Sequence[float]], phase_ends: Sequence[int]) -> str:
    """Return the share of each member over the steps, stacked, one block for each phase; the last has no end."""
    width, height, margin = 620, 220, 10
    end_steps = [*phase_ends, int((phase_ends[-1] if phase_ends else 1) * 1.25)]
    elements = [_open(width + margin + 230, height + 40)]
    start = 0
    for phase_number, (shares, end) in enumerate(zip(phases, end_steps, strict=True)):
        left, block_width = margin + width * start / end_steps[-1], width * (end - start) / end_steps[-1]
        top, is_last = 10.0, phase_number == len(phase_ends)
        for (name, share), colour in zip(zip(member_names, shares, strict=True), itertools.cycle(_COLOURS)):
            block_height = height * share
            tooltip = f"{name}: {share:.2%} from step {start:,} {'on' if is_last else f'to {end:,}'}"
            look = {"fill": colour, "stroke": "white"}
            elements.append(_rect(left, top, block_width - 1, block_height, tooltip, **look))
            if is_last and block_height >= 11:
                elements.append(_text(margin + width + 8, top + block_height / 2 + 4, f"{_cut(name, 24)} {share:.1%}"))
            top += block_height
        elements.append(_text(left, height + 26, f"step {start:,}", colour=_FAINT))
        start = end
    return "".join([*elements, "</svg>"])


def _open(width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="system-ui, sans-serif" font-size="12">'
    )


def _rect(left: float, top: float, width: float, height: float, tooltip: str, **look: str) -> str:
    attributes = " ".join(f'{name}="{value}"' for name, value in look.items())
    geometry = f'x="{left:.1f}" y="{top:.2f}" width="{width:.1f}" height="{height:.2f}"'
    return f'<rect {geometry} {attributes} stroke-width="0.5">{_title(tooltip)}</rect>'


def _text(left: float, baseline: float, text: str, *, title: str = "", colour: str = _INK, **look: Any) -> str:
    attributes = f'fill="{colour}" font-weight="{look.get("weight", 400)}" text-anchor="{look.get("anchor", "start")}"'
    tooltip = _title(title) if title else ""
    return f'<text x="{left:.1f}" y="{baseline:.1f}" {attributes}>{tooltip}{escape(text)}</text>'


def _title(tooltip: str) -> str:
    return f"<title>{escape(tooltip)}</title>"


def _cut(text: str, max_letters: int) -> str:
    return text if len(text) <= max_letters else f"{text[: max_letters - 1]}…"
