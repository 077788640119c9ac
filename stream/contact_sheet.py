"""Pictures of a batch: its frames in a grid, with the actions and where each row comes from below."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from stream.reference import SampleRef
from stream.whole_file import write_whole

ROWS_PER_PAGE = 64
"""Rows on one picture at most; fewer if the frames of a row are many or tall."""

_PAGE_WIDTH, _PAGE_HEIGHT = 2200, 2400
_CELL_WIDTH = (240, 800)
_MARGIN, _GAP = 10, 4
_TEXT, _SMALL = 13, 10
_LINE = 17
_LETTER = 6.5
"""Width of an average letter in pixels."""
_PLOT = 50
_PAPER, _INK, _FAINT, _TILE = (255, 255, 255), (25, 25, 25), (125, 125, 125), (240, 241, 244)
_CURVE, _RED = (20, 90, 180), (200, 20, 30)


def write_sheets(
    folder: Path,
    name: str,
    batch: Mapping[str, Any],
    refs: Sequence[SampleRef],
    **further: Any,
) -> list[Path]:
    """Write the pictures of a batch as PNG: ``name.png``, or ``name-1.png``, ``name-2.png``, ... if it takes several.

    Args:
        folder: Folder, which is made if it is missing. Files of these names are replaced.
        name: Name without ending.
        batch, refs, further: Arguments of ``draw_sheets``.

    Returns:
        The files, in order.

    Raises:
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    several = len(refs) > _layout(np.asarray(batch["frames"]), "action" in batch).rows_per_page
    paths = []
    for number, sheet in enumerate(draw_sheets(batch, refs, **further), start=1):
        path = folder / (f"{name}-{number}.png" if several else f"{name}.png")
        content = io.BytesIO()
        sheet.save(content, "PNG", compress_level=1)
        write_whole(path, content.getvalue())
        paths.append(path)
    return paths


def draw_sheets(
    batch: Mapping[str, Any],
    refs: Sequence[SampleRef],
    *,
    title: str = "",
    replaced: Collection[int] = (),
) -> Iterator[Image.Image]:
    """Draw a batch, page by page.

    Below the frames of a row stand its number, dataset, episode, steps and instruction, and a small plot of each
    dimension of the action: a curve over the steps of the window, or a bar if the action was reduced. The middle of
    a plot is 0; its full height is the number above it, either side (of bars the largest of the row). Letters beyond
    Latin-1, such as Chinese ones, are written as ``\\u628a``.

    Args:
        batch: Batch of a loader without transforms; of its keys frames, frames_mask, action and action_mask are drawn.
        refs: Origin of each row.
        title: Line at the top of each page.
        replaced: Numbers of rows to mark in red.
    """
    layout = _layout(np.asarray(batch["frames"]), "action" in batch)
    for first in range(0, len(refs), layout.rows_per_page):
        rows = range(first, min(first + layout.rows_per_page, len(refs)))
        part = f", rows {rows[0]} to {rows[-1]}" if len(rows) < len(refs) else ""
        columns = min(layout.columns, len(refs))
        lines = -(-len(rows) // columns)
        width = _MARGIN + columns * (layout.cell_width + _MARGIN)
        sheet = Image.new("RGB", (width, _MARGIN + _LINE + lines * layout.cell_height), _PAPER)
        draw = ImageDraw.Draw(sheet)
        _write(draw, (_MARGIN, 6), cut(printable(title + part), width - 2 * _MARGIN), _INK)
        for place, row in enumerate(rows):
            line, column = divmod(place, columns)
            corner = (_MARGIN + column * (layout.cell_width + _MARGIN), _MARGIN + _LINE + line * layout.cell_height)
            _draw_frames(sheet, corner, layout, batch, row)
            if row in replaced:
                right, bottom = corner[0] + layout.frames_width, corner[1] + layout.frame[1]
                draw.rectangle((corner[0] - 3, corner[1] - 3, right + 2, bottom + 2), outline=_RED, width=3)
            below = corner[1] + layout.frame[1] + 3
            _draw_caption(draw, (corner[0], below), layout.cell_width, refs[row], row=row, replaced=row in replaced)
            if layout.plots:
                mask = np.asarray(batch["action_mask"][row])
                _draw_action(
                    draw, (corner[0], below + 4 * _LINE + 2), layout.cell_width, np.asarray(batch["action"][row]), mask
                )
        yield sheet


def printable(text: str) -> str:
    r"""Return a text in one line, with letters beyond Latin-1 and control characters as escapes.

    >>> print(printable("put 红 there"))
    put \u7ea2 there
    """
    line = " ".join(text.split())
    return "".join(c if c.isprintable() and ord(c) < 256 else c.encode("unicode_escape").decode() for c in line)


def cut(text: str, width: int, *, size: int = _TEXT) -> str:
    """Return a text, or its beginning and three dots if it is wider than a number of pixels."""
    if _length(text, size) <= width:
        return text
    text = text[:width]
    while _length(f"{text}...", size) > width:
        text = text[:-1].rstrip()
    return f"{text}..."


@dataclass(frozen=True)
class _Layout:
    """Sizes in pixels. frame: (width, height) as drawn."""

    frame: tuple[int, int]
    frames_width: int
    cell_width: int
    cell_height: int
    columns: int
    rows_per_page: int
    plots: bool


def _layout(frames: np.ndarray, plots: bool) -> _Layout:
    count, number, height, width, _ = frames.shape
    wanted = 256 if count <= 4 else 160 if count <= 16 else 128
    narrow = (_CELL_WIDTH[1] - (number - 1) * _GAP) / number / width
    scale = min(wanted / height, max(narrow, 1 / max(height, width)))
    if scale > 1:
        scale = int(scale)  # small frames show their pixels
    frame = (max(1, round(width * scale)), max(1, round(height * scale)))
    frames_width = number * frame[0] + (number - 1) * _GAP
    cell_width = max(_CELL_WIDTH[0], frames_width)
    cell_height = frame[1] + 4 * _LINE + (_PLOT + 4 if plots else 0) + 14
    columns = max(1, min(count, 8, math.ceil(math.sqrt(2 * count)), _PAGE_WIDTH // (cell_width + _MARGIN)))
    rows = min(ROWS_PER_PAGE, columns * max(1, _PAGE_HEIGHT // cell_height))
    return _Layout(frame, frames_width, cell_width, cell_height, columns, rows, plots)


def _draw_frames(
    sheet: Image.Image, corner: tuple[int, int], layout: _Layout, batch: Mapping[str, Any], row: int
) -> None:
    mask = batch.get("frames_mask")
    for number, pixels in enumerate(np.asarray(batch["frames"][row])):
        if mask is not None and not mask[row, number]:
            continue
        frame = Image.fromarray(np.ascontiguousarray(pixels))
        if frame.size != layout.frame:
            larger = layout.frame[0] > frame.width
            method = Image.Resampling.NEAREST if larger else Image.Resampling.BOX
            frame = frame.resize(layout.frame, method, reducing_gap=None if larger else 1.0)
        sheet.paste(frame, (corner[0] + number * (layout.frame[0] + _GAP), corner[1]))


def _draw_caption(
    draw: ImageDraw.ImageDraw, corner: tuple[int, int], width: int, ref: SampleRef, *, row: int, replaced: bool
) -> None:
    left, top = corner
    mark = " replaced" if replaced else ""
    name = cut(printable(f"{row}  {ref.dataset}"), width - math.ceil(_length(mark)))
    _write(draw, (left, top), name, _INK)
    _write(draw, (left + _length(name), top), mark, _RED)
    where = f"episode {ref.episode}, steps {ref.step}..{ref.step + ref.offset}"
    _write(draw, (left, top + _LINE), cut(where, width), _FAINT)
    text = printable(ref.language)
    letters = int(width / _LETTER)
    for number, line in enumerate(textwrap.wrap(text, letters, max_lines=2, placeholder="...") or ["(no instruction)"]):
        _write(draw, (left, top + (2 + number) * _LINE), cut(line, width), _INK if text else _FAINT)


def _draw_action(
    draw: ImageDraw.ImageDraw, corner: tuple[int, int], width: int, action: np.ndarray, mask: np.ndarray
) -> None:
    left, top = corner
    reduced = action.ndim == 1
    values = np.where(mask, action, np.nan).astype(np.float64)
    values = values[None] if reduced else values
    mask = mask[None] if reduced else mask
    values = values[mask.any(1)][:, mask.any(0)]
    if not values.size:
        _write(draw, (left, top), "(no action)", _FAINT, _SMALL)
        return
    dims = values.shape[1]
    magnitudes = np.where(np.isfinite(values), np.abs(values), 0).max(0)
    bottom = top + _PLOT - 2
    head = top + 12
    middle, half = (head + bottom) / 2, (bottom - head) / 2 - 2
    tile = min(72.0, (width + 2) / dims)
    for dim in range(dims):
        begin, end = left + dim * tile, left + (dim + 1) * tile - 2
        draw.rectangle((begin, head, end, bottom), fill=_TILE)
        draw.line((begin, middle, end, middle), fill=(200, 202, 208))
        column = values[:, dim]
        if not np.isfinite(column).all():
            _write(draw, (begin, top), "nan", _RED, _SMALL)
        elif _length(label := f"{magnitudes[dim]:.2g}", _SMALL) <= tile:
            _write(draw, (begin, top), label, _FAINT, _SMALL)
        scale = half / (magnitudes.max() if reduced else magnitudes[dim] or 1.0) if magnitudes.max() else 0.0
        heights = middle - column * scale
        if len(column) == 1:
            if np.isfinite(heights[0]):
                low, high = sorted((middle, float(heights[0])))
                draw.rectangle((begin + (end - begin) * 0.25, low, end - (end - begin) * 0.25, high), fill=_CURVE)
            continue
        places = np.linspace(begin + 2, end - 2, len(column))
        for step in range(len(column) - 1):
            if np.isfinite(heights[step : step + 2]).all():
                points = [(float(places[s]), float(heights[s])) for s in (step, step + 1)]
                draw.line(points, fill=_CURVE, width=2)


@lru_cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise OSError("this Pillow was built without FreeType, so it cannot write text; install the wheel from PyPI")
    # Not the layout library that may be there or not: pictures are to be the same everywhere.
    return font.font_variant(layout_engine=ImageFont.Layout.BASIC)


def _length(text: str, size: int = _TEXT) -> float:
    """Return the width of a text in pixels."""
    return _font(size).getlength(text)


def _write(
    draw: ImageDraw.ImageDraw, corner: tuple[float, float], text: str, ink: tuple[int, int, int], size: int = _TEXT
) -> None:
    draw.text(corner, text, ink, font=_font(size))
