"""Pictures of a batch: one cell for each row, with its frames, origin and actions."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from stream.order.reference import SampleRef
from stream.storage.arguments import printable

ROWS_PER_PAGE = 64
"""Most rows of a picture."""

_COLUMNS = 8
_CELL, _FRAME, _PLOT = 320, 160, 50
"""Least width of a cell, height of a frame and of a plot, in pixels."""
_LETTERS = 52
"""Letters in a line of a cell."""
_MARGIN, _GAP, _LINE, _TITLE = 5, 4, 17, 22
_PAPER, _INK, _FAINT, _TILE = (255, 255, 255), (25, 25, 25), (125, 125, 125), (240, 241, 244)
_CURVE, _RED = (20, 90, 180), (200, 20, 30)
_font = cache(ImageFont.load_default)


def write_sheets(
    folder: Path, name: str, batch: Mapping[str, Any], refs: Sequence[SampleRef], **further: Any
) -> list[Path]:
    """Write the pictures of a batch as PNG: ``name.png``, or ``name-1.png``, ``name-2.png``, ... for several.

    Args:
        folder: Folder, created if missing. Files with these names are replaced.
        name: File name without suffix.
        batch: As for ``draw_sheets``.
        refs: As for ``draw_sheets``.
        further: Other arguments of ``draw_sheets``.

    Returns:
        Paths of the files, in order.

    Raises:
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, sheet in enumerate(draw_sheets(batch, refs, **further), start=1):
        paths.append(folder / (f"{name}-{number}.png" if len(refs) > ROWS_PER_PAGE else f"{name}.png"))
        sheet.save(paths[-1], compress_level=1)
    return paths


def draw_sheets(
    batch: Mapping[str, Any],
    refs: Sequence[SampleRef],
    *,
    title: str = "",
    replaced: Collection[int] = (),
) -> Iterator[Image.Image]:
    """Draw a batch, page by page.

    Below the frames of a row are its number, dataset, episode, steps and instruction, and a small plot of each
    dimension of the action: a curve over the steps of the window, or a bar if the action was reduced. The middle of a
    plot is 0, and the number above it is its half height. All bars of a row have the same scale. Letters beyond Latin-1
    are written as ``\\u628a``.

    Args:
        batch: Batch of a loader without transforms; the frames of all cameras with their masks, ``action`` and
            ``action_mask`` are drawn. Depth is gray: what is near is light, what was not measured black.
        refs: Origin of each row.
        title: Line at the top of each page.
        replaced: Rows to mark in red.

    Yields:
        Pages of at most ``ROWS_PER_PAGE`` rows.
    """
    columns = min(_COLUMNS, math.ceil(math.sqrt(2 * len(refs))))
    for first in range(0, len(refs), ROWS_PER_PAGE):
        rows = range(first, min(first + ROWS_PER_PAGE, len(refs)))
        cells = [_draw_cell(batch, row, refs[row], replaced=row in replaced) for row in rows]
        width, height = cells[0].size
        sheet = Image.new("RGB", (columns * width, _TITLE + math.ceil(len(rows) / columns) * height), _PAPER)
        part = f", rows {rows[0]} to {rows[-1]}" if len(rows) < len(refs) else ""
        _write(ImageDraw.Draw(sheet), (_MARGIN, _MARGIN), title + part, _INK)
        for number, cell in enumerate(cells):
            line, column = divmod(number, columns)
            sheet.paste(cell, (column * width, _TITLE + line * height))
        yield sheet


def _draw_cell(batch: Mapping[str, Any], row: int, ref: SampleRef, *, replaced: bool) -> Image.Image:
    """Draw a row; texts are cut at the edge of the cell."""
    keys = [key for key in batch if key.partition("/")[0] in ("frames", "depth")]
    pixels = [frame for key in keys for frame in _picture(np.asarray(batch[key][row]))]
    masks = [re.sub("^(frames|depth)", r"\1_mask", key) for key in keys]
    is_real = [real for mask in masks for real in batch[mask][row]] if masks[0] in batch else [True] * len(pixels)
    width = max(_CELL, 100 * len(pixels))
    step = (width + _GAP) // len(pixels)
    frames = [ImageOps.contain(Image.fromarray(each), (step - _GAP, _FRAME), Image.Resampling.BOX) for each in pixels]
    below = _MARGIN + frames[0].height + 3
    plots = below + 4 * _LINE
    height = plots + _MARGIN + (_PLOT + _MARGIN if "action" in batch else 0)
    cell = Image.new("RGB", (width + 2 * _MARGIN, height), _PAPER)
    for number, frame in enumerate(frames):
        if is_real[number]:
            cell.paste(frame, (_MARGIN + number * step, _MARGIN))
    draw = ImageDraw.Draw(cell)
    if replaced:
        right = _MARGIN + step * (len(frames) - 1) + frames[0].width
        draw.rectangle((_MARGIN - 3, _MARGIN - 3, right + 2, below - 1), outline=_RED, width=3)
    instruction = textwrap.wrap(printable(ref.language, latin=True), _LETTERS, max_lines=2, placeholder="...")
    origin = f"episode {ref.episode}, steps {ref.step}..{ref.step + ref.offset}{', replaced' if replaced else ''}"
    lines = [
        (f"{row} {ref.dataset}"[:_LETTERS], _INK),
        (origin, _RED if replaced else _FAINT),
        *((line, _INK) for line in instruction or ["(no instruction)"]),
    ]
    for number, (text, ink) in enumerate(lines):
        _write(draw, (_MARGIN, below + number * _LINE), text, ink)
    if "action" in batch:
        _draw_action(draw, plots, width, np.asarray(batch["action"][row]), np.asarray(batch["action_mask"][row]))
    return cell


def _picture(frames: np.ndarray) -> np.ndarray:
    """Return frames as colours, uint8 [F, H, W, 3]; all depth maps of a camera have the same scale."""
    if frames.dtype == np.uint8:
        return frames
    measured = frames[frames > 0]
    near, far = np.percentile(measured, (1, 99)) if measured.size else (0, 0)
    light = 255 - 225 * np.clip((frames - near) / max(far - near, 1), 0, 1)
    return np.repeat(np.where(frames, light, 0).astype(np.uint8)[..., None], 3, axis=3)


def _draw_action(draw: ImageDraw.ImageDraw, top: int, width: int, action: np.ndarray, mask: np.ndarray) -> None:
    mask = np.atleast_2d(mask)
    values = np.atleast_2d(action)[mask.any(1)][:, mask.any(0)].astype(np.float64)
    if not values.size:
        _write(draw, (_MARGIN, top), "(no action)", _FAINT, 10)
        return
    magnitudes = np.abs(values).max(0)
    finite = np.isfinite(magnitudes)
    largest = magnitudes[finite].max(initial=0)
    head, bottom = top + 13, top + _PLOT
    middle, half = (head + bottom) / 2, (bottom - head) / 2 - 2
    tile = min(72.0, (width + 2) / values.shape[1])
    for dim, column in enumerate(values.T):
        left, right = _MARGIN + dim * tile, _MARGIN + (dim + 1) * tile - 2
        draw.rectangle((left, head, right, bottom), fill=_TILE)
        draw.line((left, middle, right, middle), fill=(200, 202, 208))
        if not finite[dim]:
            _write(draw, (left, top), "nan", _RED, 10)
            continue
        label = f"{magnitudes[dim]:.2g}"
        if _font(10).getlength(label) <= tile:
            _write(draw, (left, top), label, _FAINT, 10)
        heights = middle - half * column / ((largest if action.ndim == 1 else magnitudes[dim]) or 1)
        if len(column) == 1:
            low, high = sorted((middle, float(heights[0])))
            draw.rectangle((left + tile / 4, low, right - tile / 4, high), fill=_CURVE)
        else:
            across = np.linspace(left + 2, right - 2, len(column))
            draw.line(np.stack([across, heights], axis=1).ravel().tolist(), fill=_CURVE, width=2)


def _write(
    draw: ImageDraw.ImageDraw, corner: tuple[float, float], text: str, ink: tuple[int, int, int], size: int = 12
) -> None:
    draw.text(corner, printable(text, latin=True), ink, font=_font(size))
