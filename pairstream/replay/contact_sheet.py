"""Pictures of a batch: one cell for each row, with its frames, origin, faults and actions."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from pairstream.replay.faults import arrays_of
from pairstream.replay.fonts import text_width, wrap_text, write_text
from pairstream.view.window import steps_text
from stream.base.depth_colours import colour_depth, depth_range
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
"""Keys of the action: the loader's, then that of transforms."""

_LEAST = 8
"""Least height and width of an image."""
_STORED = re.compile(r"^(frames|depth)(/.*)?$")

Names = Mapping[str, Sequence[str]]
"""Names by dataset."""


def write_sheets(
    folder: Path, file_name: str, batch: Mapping[str, Any], refs: Sequence[SampleRef], **further: Any
) -> list[Path]:
    """Write the pictures of a batch as PNG, and return the paths: ``NAME.png``, or ``NAME-1.png``, ``NAME-2.png``, ...

    The folder is created if missing, and files with these names are replaced. Other arguments are those of
    ``draw_sheets``.

    Raises:
        ArgumentError: The folder is an address.
        OSError: The folder cannot be written.
    """
    check_local(folder)
    folder.mkdir(parents=True, exist_ok=True)
    sheet_paths = []
    for sheet_number, sheet in enumerate(draw_sheets(batch, refs, **further), start=1):
        suffix = f"-{sheet_number}" if len(refs) > ROWS_PER_PAGE else ""
        sheet_paths.append(folder / f"{file_name}{suffix}.png")
        sheet.save(sheet_paths[-1], compress_level=1)
    return sheet_paths


def draw_sheets(
    batch: Mapping[str, Any], refs: Sequence[SampleRef], *, title: str = "", **further: Any
) -> Iterator[Image.Image]:
    """Draw a batch in pages of at most ``ROWS_PER_PAGE`` rows, with a title and the arguments of ``draw_cells``."""
    columns = min(_COLUMNS, math.ceil(math.sqrt(2 * len(refs))))
    for first_row in range(0, len(refs), ROWS_PER_PAGE):
        rows = range(first_row, min(first_row + ROWS_PER_PAGE, len(refs)))
        cells = list(draw_cells(batch, refs, rows=rows, **further))
        cell_width, cell_height = cells[0].size
        sheet = Image.new("RGB", (columns * cell_width, _TITLE + math.ceil(len(rows) / columns) * cell_height), _PAPER)
        rows_text = f", rows {rows[0]} to {rows[-1]}" if len(rows) < len(refs) else ""
        write_text(ImageDraw.Draw(sheet), (_MARGIN, _MARGIN), title + rows_text, _INK, width=sheet.width - _MARGIN)
        for cell_number, cell in enumerate(cells):
            cell_row, cell_column = divmod(cell_number, columns)
            sheet.paste(cell, (cell_column * cell_width, _TITLE + cell_row * cell_height))
        yield sheet


def draw_cells(
    batch: Mapping[str, Any], refs: Sequence[SampleRef], *, rows: Iterable[int], **further: Any
) -> Iterator[Image.Image]:
    """Draw some rows of a batch, all in one size.

    Below its frames, a row has the camera and step of each frame; its number, dataset, episode, steps, delay and
    instruction; its faults; and a small plot of each dimension of the action. A plot is a curve over the steps of the
    window, or a bar if the action was reduced. The middle of a plot is 0, and the number above it is its half height.
    All bars of a row have the same scale.

    The batch is one before or after transforms: images under all keys and the action are drawn with their masks. Depth
    is in colours: red is near, blue far, and black was not measured. Further arguments are attributes of ``_Drawing``.
    """
    drawing = _Drawing(batch, len(refs), **further)
    for row in rows:
        yield drawing.draw_cell(row, refs[row])


@dataclass(eq=False)
class _Drawing:
    """Cells of a batch, all in one size.

    Attributes:
        replaced: Rows to mark as replaced.
        faults: Faults by row; these rows are marked.
        cameras: Name of the camera of each dataset, by key of its frames.
        dimensions: Names of the dimensions of the action, by dataset.
    """

    batch: InitVar[Mapping[str, Any]]
    num_rows: InitVar[int]
    replaced: Collection[int] = ()
    faults: Mapping[int, Sequence[str]] = field(default_factory=dict)
    cameras: Mapping[str, Names] = field(default_factory=dict)
    dimensions: Names = field(default_factory=dict)

    def __post_init__(self, batch: Mapping[str, Any], num_rows: int) -> None:
        self._pictures = find_pictures(batch, num_rows)
        self._action = next((np.asarray(batch[key]) for key in _ACTIONS if key in batch), None)
        self._mask = np.asarray(batch["action_mask"]) if "action_mask" in batch else None
        if self._mask is None and self._action is not None:
            self._mask = np.ones(self._action.shape, bool)
        if self._action is not None and self._mask is not None and self._action.ndim > 3:
            # The intervals between frames follow one another.
            shape = num_rows, math.prod(self._action.shape[1:-1]), self._action.shape[-1]
            self._action, self._mask = self._action.reshape(shape), self._mask.reshape(shape)
        self._delays = batch.get("action_delay")
        self._num_frames = max(1, sum(pictures.is_real.shape[1] for pictures in self._pictures))
        self._width = max(_CELL, 100 * self._num_frames)
        self._fault_lines = min(3, max(map(len, self.faults.values()), default=0))

    def draw_cell(self, row: int, ref: SampleRef) -> Image.Image:
        """Draw a row; texts are cut at the edge of the cell."""
        frame_pitch = (self._width + _GAP) // self._num_frames
        frame_box = (frame_pitch - _GAP, _FRAME)
        frames = [
            (pictures, frame_number, ImageOps.contain(Image.fromarray(pixels), frame_box, Image.Resampling.BOX))
            for pictures in self._pictures
            for frame_number, pixels in enumerate(pictures.images[row])
        ]
        captions_top = _MARGIN + max((frame.height for _, _, frame in frames), default=0) + 1
        lines_top = captions_top + _CAPTION
        plots_top = lines_top + (4 + self._fault_lines) * _LINE
        cell_height = plots_top + _MARGIN + (_PLOT + _MARGIN if self._action is not None else 0)
        cell = Image.new("RGB", (self._width + 2 * _MARGIN, cell_height), _PAPER)
        canvas = ImageDraw.Draw(cell)
        for position, (pictures, frame_number, frame) in enumerate(frames):
            left = _MARGIN + position * frame_pitch
            if pictures.is_real[row, frame_number]:
                cell.paste(frame, (left, _MARGIN))
            caption = self._caption(pictures, frame_number, ref)
            write_text(canvas, (left, captions_top), caption, _FAINT, font_size=10, width=frame_pitch - _GAP)
        if row in self.replaced or row in self.faults:
            canvas.rectangle((1, 1, cell.width - 3, cell_height - 3), outline=_RED, width=3)
        for line_number, (line_text, colour) in enumerate(self._lines(row, ref)):
            write_text(canvas, (_MARGIN, lines_top + line_number * _LINE), line_text, colour, width=self._width)
        if self._action is not None and self._mask is not None:
            names = self.dimensions.get(ref.dataset, ())
            self._draw_action(canvas, plots_top, self._action[row], np.atleast_2d(self._mask[row]), names)
        return cell

    def _lines(self, row: int, ref: SampleRef) -> Iterator[tuple[str, tuple[int, int, int]]]:
        is_replaced, steps = row in self.replaced, steps_text(ref.step, ref.step + ref.offset)
        yield f"{row} {ref.dataset}", _INK
        origin = f"episode {ref.episode}, {steps}"
        if self._delays is not None:
            origin += f", delay {int(self._delays[row])}"
        yield (f"{origin}, replaced", _RED) if is_replaced else (origin, _FAINT)
        instruction = wrap_text(ref.language, 12, self._width, max_lines=2) or ["(no instruction)"]
        yield from ((line, _INK) for line in instruction)
        yield from ((fault, _RED) for fault in list(self.faults.get(row, ()))[: self._fault_lines])

    def _caption(self, pictures: Pictures, frame_number: int, ref: SampleRef) -> str:
        camera_names = self.cameras.get(pictures.key, {}).get(ref.dataset, ())
        camera_name = " or ".join(camera_names) or pictures.key
        has_steps = pictures.is_real.shape[1] == len(ref.frame_steps)
        return f"{ref.frame_steps[frame_number]} {camera_name}" if has_steps else camera_name

    def _draw_action(
        self, canvas: ImageDraw.ImageDraw, top: int, action: np.ndarray, mask: np.ndarray, names: Sequence[str]
    ) -> None:
        dimensions = np.flatnonzero(mask.any(0))
        values = np.atleast_2d(action)[mask.any(1)][:, dimensions].astype(np.float64)
        if not values.size:
            write_text(canvas, (_MARGIN, top), "(no action)", _FAINT, font_size=10)
            return
        scales = np.abs(np.where(np.isfinite(values), values, 0)).max(0)
        largest_scale = scales.max(initial=0)
        tile_width = min(72.0, (self._width + 2) / values.shape[1])
        for number, (dimension, column) in enumerate(zip(dimensions.tolist(), values.T, strict=True)):
            left, is_valid = _MARGIN + number * tile_width, np.isfinite(column)
            name = names[dimension].rpartition("/")[2] if dimension < len(names) else ""
            write_text(canvas, (left, top), name, _FAINT, font_size=10, width=tile_width - 2)
            label, colour = (f"{scales[number]:.2g}", _FAINT) if is_valid.all() else ("nan", _RED)
            if np.isinf(column).any():
                label = "inf"
            if text_width(label, 10) <= tile_width or not is_valid.all():
                write_text(canvas, (left, top + 12), label, colour, font_size=10)
            scale = largest_scale if action.ndim == 1 else scales[number]
            box = (left, top + 26, _MARGIN + (number + 1) * tile_width - 2, top + _PLOT)
            _draw_plot(canvas, box, column, scale or 1, inset=tile_width / 4)


def _draw_plot(
    canvas: ImageDraw.ImageDraw, box: tuple[float, ...], column: np.ndarray, scale: float, *, inset: float
) -> None:
    """Draw the values of one dimension: a curve over its steps, or a bar for one step; red where it is not finite."""
    left, top, right, bottom = box
    middle, half_height = (top + bottom) / 2, (bottom - top) / 2 - 2
    canvas.rectangle((left, top, right, bottom), fill=_TILE)
    canvas.line((left, middle, right, middle), fill=(200, 202, 208))
    is_valid = np.isfinite(column)
    positions = np.linspace(left + 2, right - 2, len(column))
    heights = middle - half_height * np.where(is_valid, column, 0) / scale
    for position in positions[~is_valid].tolist():
        canvas.line((position, top, position, bottom), fill=_RED, width=2)
    if len(column) == 1 and is_valid[0]:
        bar_top, bar_bottom = sorted((middle, float(heights[0])))
        canvas.rectangle((left + inset, bar_top, right - inset, bar_bottom), fill=_CURVE)
    # Each run of finite values is a curve, so that a curve does not bridge a gap.
    for segment in np.split(np.arange(len(column)), np.flatnonzero(np.diff(is_valid.astype(int))) + 1):
        if len(segment) > 1 and is_valid[segment[0]]:
            points = np.stack([positions[segment], heights[segment]], axis=1)
            canvas.line(points.ravel().tolist(), fill=_CURVE, width=2)


class Pictures(NamedTuple):
    """Images under one key of a batch: uint8 [F, H, W, 3] of each row, and a mask of its frames, bool [b, F]."""

    key: str
    images: list[np.ndarray]
    is_real: np.ndarray


def find_pictures(batch: Mapping[str, Any], num_rows: int) -> list[Pictures]:
    """Return the images of a batch, key by key.

    Frames and depth of a loader are recognised by their keys. Other arrays are images if their shape is [b, H, W, 3] or
    [b, 3, H, W], also with a dimension of frames. Of 6 channels, which two image encoders share, the first 3 are shown.
    Floats are scaled from their least to their largest value.
    """
    all_pictures = []
    for batch_key, values in arrays_of(batch, num_rows):
        frames = _frames(batch_key, values)
        if frames is None:
            continue
        mask = batch.get(re.sub("^(frames|depth)", r"\1_mask", batch_key)) if _STORED.match(batch_key) else None
        is_real = np.ones(frames.shape[:2], bool) if mask is None else np.asarray(mask)
        all_pictures.append(Pictures(batch_key, [_colours(row_frames) for row_frames in frames], is_real))
    return all_pictures


def _frames(batch_key: str, values: np.ndarray) -> np.ndarray | None:
    """Return an array as [b, F, H, W, 3], of depth [b, F, H, W]; None if it is not an image."""
    if batch_key.split("/")[0] == "depth" and values.dtype == np.uint16 and values.ndim == 4:
        return values
    if values.ndim not in (4, 5) or values.dtype.kind not in "uf":
        return None
    if values.shape[-1] not in (3, 6) and values.shape[-3] in (3, 6):
        values = np.moveaxis(values, -3, -1)
    if values.shape[-1] not in (3, 6) or min(values.shape[-3:-1]) < _LEAST:
        return None
    values = values[..., :3]
    return values[:, None] if values.ndim == 4 else values


def _colours(frames: np.ndarray) -> np.ndarray:
    """Return the frames of a row as colours, uint8 [F, H, W, 3], all with the same scale."""
    if frames.dtype == np.uint8:
        return frames
    if frames.dtype == np.uint16 and frames.ndim == 3:
        return colour_depth(frames, depth_range(frames))
    finite_values = frames[np.isfinite(frames)]
    lowest, highest = (float(finite_values.min()), float(finite_values.max())) if finite_values.size else (0.0, 1.0)
    scaled = (np.nan_to_num(frames.astype(np.float32)) - lowest) / ((highest - lowest) or 1.0)
    return (255 * np.clip(scaled, 0, 1)).astype(np.uint8)
