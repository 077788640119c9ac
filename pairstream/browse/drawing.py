"""Small drawings as SVG text: histograms side by side, bars, and shares over time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from pairstream.browse.histograms import Comparison, Histogram

_WIDE, _HIGH, _GAP, _LEFT, _TOP = 132, 34, 12, 210, 34
_INK, _FAINT, _OWN, _OTHER = "#1b1e24", "#667", "#1553a5", "#9aa7b8"
_COLOURS = (
    *("#1553a5", "#c2571a", "#2c8a4b", "#8b3fa0", "#b58900"),
    *("#0f8a8a", "#b3264a", "#5b6abf", "#6b7a1f", "#7a5230"),
)


def draw_comparison(found: Comparison) -> str:
    """Return histograms as a grid: a row for each dataset, the first one marked, a column for each dimension."""
    width = _LEFT + len(found.names) * (_WIDE + _GAP)
    height = _TOP + len(found.rows) * (_HIGH + _GAP) + 16
    parts = [_open(width, height)]
    for dim, name in enumerate(found.names):
        parts.append(_text(_LEFT + dim * (_WIDE + _GAP), 14, _cut(name.rpartition("/")[2], 18), title=name, weight=600))
    for row, (dataset, histograms) in enumerate(found.rows.items()):
        top = _TOP + row * (_HIGH + _GAP)
        parts.append(_text(0, top + _HIGH - 4, _cut(dataset, 30), title=dataset, weight=600 if row == 0 else 400))
        for dim, histogram in enumerate(histograms):
            if histogram is not None:
                colour = _OWN if row == 0 else _OTHER
                told = f"{dataset}, {found.names[dim]}"
                parts.append(_bars(histogram, _LEFT + dim * (_WIDE + _GAP), top, colour, told))
    bottom = _TOP + len(found.rows) * (_HIGH + _GAP) + 4
    for dim in range(len(found.names)):
        shown = next((each for row in found.rows.values() if (each := row[dim]) is not None), None)
        if shown is not None:
            left = _LEFT + dim * (_WIDE + _GAP)
            parts.append(_text(left, bottom, f"{shown.low:.3g}", ink=_FAINT))
            parts.append(_text(left + _WIDE, bottom, f"{shown.high:.3g}", ink=_FAINT, anchor="end"))
    return "".join([*parts, "</svg>"])


def _bars(found: Histogram, left: float, top: float, colour: str, told: str) -> str:
    heights = _HIGH * found.shares / found.shares.max()
    step = _WIDE / len(heights)
    path = "".join(
        f"M{left + number * step:.1f} {top + _HIGH:.1f}v{-height:.1f}h{step:.1f}v{height:.1f}z"
        for number, height in enumerate(heights)
        if height > 0
    )
    title = f"{told}: {found.least:.4g} to {found.most:.4g}"
    title += f", {found.nonfinite:,} not finite" if found.nonfinite else ""
    base = f'<path d="M{left} {top + _HIGH}h{_WIDE}" stroke="#d5d9df"/>'
    area = f'<rect x="{left}" y="{top}" width="{_WIDE}" height="{_HIGH}" fill="transparent"/>'
    return f'<g>{_title(title)}{area}{base}<path d="{path}" fill="{colour}"/></g>'


def draw_counts(counts: np.ndarray, edges: np.ndarray, *, unit: str) -> str:
    """Return one histogram of counts, int [n], between edges [n + 1]."""
    width, height, top = 620, 150, 10
    parts = [_open(width, height + 30)]
    step = width / max(1, len(counts))
    for number, count in enumerate(counts.tolist()):
        if count:
            tall = max(1.0, height * count / counts.max())
            told = f"{edges[number]:,.0f} to {edges[number + 1]:,.0f} {unit}: {count:,}"
            parts.append(
                f'<rect x="{number * step:.1f}" y="{top + height - tall:.1f}" width="{max(1, min(step, 60) - 1):.1f}" '
                f'height="{tall:.1f}" fill="{_OWN}">{_title(told)}</rect>'
            )
    parts.append(_text(0, height + 26, f"{edges[0]:,.0f} {unit}", ink=_FAINT))
    parts.append(_text(width, height + 26, f"{edges[-1]:,.0f}", ink=_FAINT, anchor="end"))
    return "".join([*parts, "</svg>"])


def draw_shares(names: Sequence[str], phases: Sequence[Sequence[float]], until: Sequence[int]) -> str:
    """Return the share of each member over the steps, stacked, one block for each phase.

    Args:
        names: Members.
        phases: Share of each member in each phase.
        until: Step at which each phase but the last ends.
    """
    wide, high, left = 620, 220, 10
    ends = [*until, int((until[-1] if until else 1) * 1.25)]
    parts = [_open(wide + left + 230, high + 40)]
    begin = 0
    for number, (shares, end) in enumerate(zip(phases, ends, strict=True)):
        x, across = left + wide * begin / ends[-1], wide * (end - begin) / ends[-1]
        y = 10.0
        for place, (name, share) in enumerate(zip(names, shares, strict=True)):
            tall = high * share
            last = "on" if number == len(until) else f"to {end:,}"
            told = f"{name}: {share:.2%} from step {begin:,} {last}"
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.2f}" width="{across - 1:.1f}" height="{tall:.2f}" stroke="white" '
                f'stroke-width="0.5" fill="{_COLOURS[place % len(_COLOURS)]}">{_title(told)}</rect>'
            )
            if number == len(until) and tall >= 11:
                parts.append(_text(left + wide + 8, y + tall / 2 + 4, f"{_cut(name, 24)} {share:.1%}"))
            y += tall
        parts.append(_text(x, high + 26, f"step {begin:,}", ink=_FAINT))
        begin = end
    return "".join([*parts, "</svg>"])


def _open(width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="system-ui, sans-serif" font-size="12">'
    )


def _text(
    x: float, y: float, text: str, *, title: str = "", ink: str = _INK, weight: int = 400, anchor: str = "start"
) -> str:
    told = _title(title) if title else ""
    look = f'fill="{ink}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{told}{escape(text)}</text>'


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
