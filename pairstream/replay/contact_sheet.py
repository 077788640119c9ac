"""Pictures of a batch: one cell for each row, with its frames, origin, faults and actions."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from pairstream.replay.fonts import text_width, wrap_text, write_text
from pairstream.replay.pictures import Pictures, find_pictures
from pairstream.view.window import steps_text
from stream.order.reference import SampleRef
from stream.storage.remote import check_local

ROWS_PER_PAGE = 64
"""Most rows of a picture."""

_COLUMNS = 8
_CELL, _FRAME, _PLOT = 320, 160, 64
"""Least width of a cell, height of a frame and of a plot, in pixels."""
_MARGIN, _GAP, _LINE, _TITLE, _CAPTION = 5, 4, 17, 22, 14
_PAPER, _INK, _FAINT, _TILE = (255, 255, 255), (25, 25, 25), (125, 125, 125), (240, 241, 244)
_CURVE, _RED = (20, 90, 180), (200, 20, 30)
_ACTIONS = ("action", "actions")
"""Keys of the action, ours first."""

Names = Mapping[str, Sequence[str]]
"""Names by dataset."""


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
        ArgumentError: The folder is an address.
        OSError: The folder cannot be written.
    """
    check_local(folder)
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
    **further: Any,
) -> Iterator[Image.Image]:
    """Draw a batch, page by page.

    Args:
        batch, refs: As for ``draw_cells``.
        title: Line at the top of each page.
        further: Other arguments of ``draw_cells``.

    Yields:
        Pages of at most ``ROWS_PER_PAGE`` rows.
    """
    columns = min(_COLUMNS, math.ceil(math.sqrt(2 * len(refs))))
    for first in range(0, len(refs), ROWS_PER_PAGE):
        rows = range(first, min(first + ROWS_PER_PAGE, len(refs)))
        cells = list(draw_cells(batch, refs, rows=rows, **further))
        width, height = cells[0].size
        sheet = Image.new("RGB", (columns * width, _TITLE + math.ceil(len(rows) / columns) * height), _PAPER)
        part = f", rows {rows[0]} to {rows[-1]}" if len(rows) < len(refs) else ""
        write_text(ImageDraw.Draw(sheet), (_MARGIN, _MARGIN), title + part, _INK, width=sheet.width - _MARGIN)
        for number, cell in enumerate(cells):
            line, column = divmod(number, columns)
            sheet.paste(cell, (column * width, _TITLE + line * height))
        yield sheet


def draw_cells(
    batch: Mapping[str, Any],
    refs: Sequence[SampleRef],
    *,
    rows: Iterable[int],
    replaced: Collection[int] = (),
    faults: Mapping[int, Sequence[str]] | None = None,
    cameras: Mapping[str, Names] | None = None,
    dimensions: Names | None = None,
) -> Iterator[Image.Image]:
    """Draw rows of a batch, all in one size.

    Below the frames of a row are camera and step of each, its number, dataset, episode, steps and instruction, what is
    wrong with it, and a small plot of each dimension of the action: a curve over the steps of the window, or a bar if
    the action was reduced. The middle of a plot is 0, and the number above it is its half height. All bars of a row
    have the same scale.

    Args:
        batch: Batch, before or after transforms; the images under all keys are drawn with their masks, and the action
            with its own. Depth is in colours: red is near, blue far, and black was not measured.
        refs: Origin of each row of the batch.
        rows: Rows to draw.
        replaced: Rows to mark as replaced.
        faults: What is wrong with a row, by row; such rows are marked.
        cameras: Name of the camera of each dataset, by key of its frames.
        dimensions: Names of the dimensions of the action, by dataset.

    Yields:
        A picture of each row.
    """
    drawing = _Drawing(batch, len(refs), replaced, faults or {}, cameras or {}, dimensions or {})
    for row in rows:
        yield drawing.draw_cell(row, refs[row])


class _Drawing:
    """The cells of a batch; all of them have one size."""

    def __init__(
        self,
        batch: Mapping[str, Any],
        rows: int,
        replaced: Collection[int],
        faults: Mapping[int, Sequence[str]],
        cameras: Mapping[str, Names],
        dimensions: Names,
    ) -> None:
        self._replaced, self._faults, self._cameras, self._dimensions = replaced, faults, cameras, dimensions
        self._pictures = find_pictures(batch, rows)
        self._action = next((np.asarray(batch[key]) for key in _ACTIONS if key in batch), None)
        self._mask = np.asarray(batch["action_mask"]) if "action_mask" in batch else None
        if self._mask is None and self._action is not None:
            self._mask = np.ones(self._action.shape, bool)
        self._count = max(1, sum(each.is_real.shape[1] for each in self._pictures))
        self._width = max(_CELL, 100 * self._count)
        self._fault_lines = min(3, max((len(texts) for texts in faults.values()), default=0))

    def draw_cell(self, row: int, ref: SampleRef) -> Image.Image:
        """Draw a row; texts are cut at the edge of the cell."""
        step = (self._width + _GAP) // self._count
        frames = [
            (each, number, ImageOps.contain(Image.fromarray(pixels), (step - _GAP, _FRAME), Image.Resampling.BOX))
            for each in self._pictures
            for number, pixels in enumerate(each.images[row])
        ]
        captions = _MARGIN + max((frame.height for _, _, frame in frames), default=0) + 1
        below = captions + _CAPTION
        plots = below + (4 + self._fault_lines) * _LINE
        height = plots + _MARGIN + (_PLOT + _MARGIN if self._action is not None else 0)
        cell = Image.new("RGB", (self._width + 2 * _MARGIN, height), _PAPER)
        draw = ImageDraw.Draw(cell)
        for place, (pictures, number, frame) in enumerate(frames):
            left = _MARGIN + place * step
            if pictures.is_real[row, number]:
                cell.paste(frame, (left, _MARGIN))
            caption = self._caption(pictures, number, ref)
            write_text(draw, (left, captions), caption, _FAINT, size=10, width=step - _GAP)
        bad = row in self._replaced or row in self._faults
        if bad:
            draw.rectangle((1, 1, cell.width - 3, height - 3), outline=_RED, width=3)
        for number, (text, ink) in enumerate(self._lines(row, ref)):
            write_text(draw, (_MARGIN, below + number * _LINE), text, ink, width=self._width)
        if self._action is not None and self._mask is not None:
            self._draw_action(draw, plots, self._action[row], self._mask[row], self._dimensions.get(ref.dataset, ()))
        return cell

    def _lines(self, row: int, ref: SampleRef) -> Iterator[tuple[str, tuple[int, int, int]]]:
        replaced = row in self._replaced
        steps = steps_text(ref.step, ref.step + ref.offset)
        yield f"{row} {ref.dataset}", _INK
        yield f"episode {ref.episode}, {steps}{', replaced' if replaced else ''}", _RED if replaced else _FAINT
        instruction = wrap_text(ref.language, 12, self._width, lines=2) or ["(no instruction)"]
        yield from ((line, _INK) for line in instruction)
        yield from ((text, _RED) for text in list(self._faults.get(row, ()))[: self._fault_lines])

    def _caption(self, pictures: Pictures, number: int, ref: SampleRef) -> str:
        names = self._cameras.get(pictures.key, {}).get(ref.dataset, ())
        name = " or ".join(names) or pictures.key
        count = pictures.is_real.shape[1]
        steps = ref.frame_steps
        return f"{steps[number]} {name}" if count == len(steps) else name

    def _draw_action(
        self, draw: ImageDraw.ImageDraw, top: int, action: np.ndarray, mask: np.ndarray, names: Sequence[str]
    ) -> None:
        mask = np.atleast_2d(mask)
        dims = np.flatnonzero(mask.any(0))
        values = np.atleast_2d(action)[mask.any(1)][:, dims].astype(np.float64)
        if not values.size:
            write_text(draw, (_MARGIN, top), "(no action)", _FAINT, size=10)
            return
        finite = np.isfinite(values)
        magnitudes = np.abs(np.where(finite, values, 0)).max(0)
        largest = magnitudes.max(initial=0)
        head, bottom = top + 26, top + _PLOT
        middle, half = (head + bottom) / 2, (bottom - head) / 2 - 2
        tile = min(72.0, (self._width + 2) / values.shape[1])
        for place, column in enumerate(values.T):
            left, right = _MARGIN + place * tile, _MARGIN + (place + 1) * tile - 2
            draw.rectangle((left, head, right, bottom), fill=_TILE)
            draw.line((left, middle, right, middle), fill=(200, 202, 208))
            name = names[dims[place]].rpartition("/")[2] if len(names) > dims[place] else ""
            write_text(draw, (left, top), name, _FAINT, size=10, width=tile - 2)
            sound = finite[:, place]
            label, ink = (f"{magnitudes[place]:.2g}", _FAINT) if sound.all() else ("nan", _RED)
            if np.isinf(column).any():
                label = "inf"
            if text_width(label, 10) <= tile or not sound.all():
                write_text(draw, (left, top + 12), label, ink, size=10)
            across = np.linspace(left + 2, right - 2, len(column))
            scale = (largest if action.ndim == 1 else magnitudes[place]) or 1
            heights = middle - half * np.where(sound, column, 0) / scale
            for x in across[~sound].tolist():
                draw.line((x, head, x, bottom), fill=_RED, width=2)
            if len(column) == 1 and sound[0]:
                low, high = sorted((middle, float(heights[0])))
                draw.rectangle((left + tile / 4, low, right - tile / 4, high), fill=_CURVE)
            for run in np.split(np.arange(len(column)), np.flatnonzero(np.diff(sound.astype(int))) + 1):
                if len(run) > 1 and sound[run[0]]:
                    points = np.stack([across[run], heights[run]], axis=1)
                    draw.line(points.ravel().tolist(), fill=_CURVE, width=2)
