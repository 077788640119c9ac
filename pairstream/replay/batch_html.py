"""Rows of a batch as HTML, for pages, files and notebooks: frames, origin, faults and curves of the action."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from pairstream.replay.faults import arrays_of
from pairstream.view.window import steps_text
from stream.base.depth_colours import colour_depth, depth_range
from stream.base.html import Markup
from stream.order.reference import SampleRef
from stream.storage.files import write_atomically
from stream.storage.remote import check_local

_WIDEST = 320
"""Most pixels of a side of a frame."""
_ACTIONS = ("action", "actions")
"""Keys of the action: the loader's, then that of transforms."""
_LEAST = 8
"""Least height and width of an image."""
_STORED = re.compile(r"^(frames|depth)(/.*)?$")

Names = Mapping[str, Sequence[str]]
"""Names by dataset."""

_STYLE = f"<style>{Path(__file__).with_name('batch.css').read_text('utf-8')}</style>"


def write_page(
    folder: Path, file_name: str, batch: Mapping[str, Any], refs: Sequence[SampleRef], *, title: str, **further: Any
) -> Path:
    """Write the rows of a batch as ``NAME.html``, a file without references to others, and return its path.

    The folder is created if missing, and a file with this name is replaced. Other arguments are those of ``rows_html``.

    Raises:
        ArgumentError: The folder is an address.
        OSError: The folder cannot be written.
    """
    content = f"<h1 style='font: 600 18px system-ui'>{escape(title)}</h1>{rows_html(batch, refs, **further)}"
    head = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{escape(title)}</title>"
    look = "<style>:root { color-scheme: light dark; } body { margin: 1rem 1.5rem; }</style>"
    check_local(folder)
    page_path = folder / f"{file_name}.html"
    page = f"<!DOCTYPE html><html lang='en'>{head}{look}<body>{content}</body></html>"
    write_atomically(page_path, page, parents=True)
    return page_path


def rows_html(
    batch: Mapping[str, Any], refs: Sequence[SampleRef], *, rows: Iterable[int] | None = None, **further: Any
) -> Markup:
    """Return rows of a batch as HTML, all by default; every text is escaped.

    A row has its frames with their step and camera; its number, dataset, episode, steps, delay and instruction; its
    faults; and a small plot of each dimension of the action. A plot is a curve over the steps of the window, or a bar
    if the action was reduced. The middle of a plot is 0, and the number above it is its half height. All bars of a row
    have the same scale.

    The batch is one before or after transforms: images under all keys and the action are shown with their masks. Depth
    is in colours: red is near, blue far, and black was not measured. Further arguments are attributes of ``_Rows``.
    """
    drawing = _Rows(batch, len(refs), **further)
    cells = "".join(drawing.draw(row, refs[row]) for row in (range(len(refs)) if rows is None else rows))
    return Markup(f"{_STYLE}<div class='rows'>{cells}</div>")


@dataclass(eq=False)
class _Rows:
    """Rows of a batch.

    Attributes:
        faults: Faults by row; these rows are marked.
        cameras: Name of the camera of each dataset, by key of its frames.
        dimensions: Names of the dimensions of the action, by dataset.
        links: Address of the episode of each row.
    """

    batch: InitVar[Mapping[str, Any]]
    num_rows: InitVar[int]
    faults: Mapping[int, Sequence[str]] = field(default_factory=dict)
    cameras: Mapping[str, Names] = field(default_factory=dict)
    dimensions: Names = field(default_factory=dict)
    links: Mapping[int, str] = field(default_factory=dict)

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

    def draw(self, row: int, ref: SampleRef) -> str:
        """Return a row."""
        faults, link = self.faults.get(row, ()), self.links.get(row, "")
        name = f"{escape(ref.dataset)} {escape(ref.split)} {ref.episode}, {steps_text(ref.step, ref.step + ref.offset)}"
        tag = f"a href='{escape(link)}'" if link else "div"
        frames = f"<{tag} class='batch-frames'>{''.join(self._frames(row, ref))}</{tag[:3].strip()}>"
        if link:
            name = f"<a class='plain' href='{escape(link)}'>{name}</a>"
        delay = f", delay {int(self._delays[row])}" if self._delays is not None else ""
        plots = ""
        if self._action is not None and self._mask is not None:
            names = self.dimensions.get(ref.dataset, ())
            plots = "".join(_plots(self._action[row], np.atleast_2d(self._mask[row]), names)) or "(no action)"
        known = {"": ref.source_file, "id ": ref.episode_id, "record ": ref.shard and f"{ref.shard}:{ref.record}"}
        origin = [f"{label}{escape(value)}" for label, value in known.items() if value]
        return (
            f"<div class='batch-row{' bad' if faults else ''}' data-row='{row}'>{frames}<b>{row}</b> {name}{delay}"
            f"<div>{escape(ref.language) or '(no instruction)'}</div>"
            + "".join(f"<div class='bad-text'>{escape(fault)}</div>" for fault in faults)
            + f"<div class='batch-plots'>{plots}</div>"
            f"<small>{', '.join([*origin, f'sample {ref.sample}', f'epoch {ref.epoch}'])}</small></div>"
        )

    def _frames(self, row: int, ref: SampleRef) -> Iterator[str]:
        for pictures in self._pictures:
            camera_names = self.cameras.get(pictures.key, {}).get(ref.dataset, ())
            camera_name = " or ".join(camera_names) or pictures.key
            has_steps = pictures.is_real.shape[1] == len(ref.frame_steps)
            for frame_number, pixels in enumerate(pictures.images[row]):
                caption = escape(f"{ref.frame_steps[frame_number]} {camera_name}" if has_steps else camera_name)
                is_real = pictures.is_real[row, frame_number]
                frame = (
                    f"<img src='{_picture_url(pixels)}' alt='{caption}'>" if is_real else "<div class='missing'></div>"
                )
                yield f"<figure>{frame}<figcaption>{caption}</figcaption></figure>"


def _picture_url(pixels: np.ndarray) -> str:
    picture = Image.fromarray(pixels)
    if max(picture.size) > _WIDEST:
        picture = ImageOps.contain(picture, (_WIDEST, _WIDEST), Image.Resampling.BOX)
    content = io.BytesIO()
    picture.save(content, "JPEG", quality=90)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"


def _plots(action: np.ndarray, mask: np.ndarray, names: Sequence[str]) -> Iterator[str]:
    """Yield a plot of each dimension of the action of a row."""
    dimensions = np.flatnonzero(mask.any(0))
    values = np.atleast_2d(action)[mask.any(1)][:, dimensions].astype(np.float64)
    if not values.size:
        return
    scales = np.abs(np.where(np.isfinite(values), values, 0)).max(0)
    for number, (dimension, column) in enumerate(zip(dimensions.tolist(), values.T, strict=True)):
        name = names[dimension].rpartition("/")[2] if dimension < len(names) else f"[{dimension}]"
        is_valid, label = np.isfinite(column), f"{scales[number]:.2g}"
        if not is_valid.all():
            label = f"<span class='bad-text'>{'inf' if np.isinf(column).any() else 'nan'}</span>"
        scale = scales.max() if action.ndim == 1 else scales[number]
        plot = f"<line x2='100' y1='50' y2='50'/>{_curve(column, scale or 1)}"
        svg = f"<svg viewBox='0 0 100 100' preserveAspectRatio='none'>{plot}</svg>"
        caption = f"<figcaption title='{escape(name)}'><span>{escape(name)}</span> {label}</figcaption>"
        yield f"<figure>{caption}{svg}</figure>"


def _curve(column: np.ndarray, scale: float) -> str:
    """Return the values of one dimension: a curve over its steps, or a bar for one step; red where it is not finite."""
    is_valid, width = np.isfinite(column), 100 / len(column)
    heights = 50 - 46 * np.where(is_valid, column, 0) / scale
    elements = [
        f"<rect class='nan' x='{step * width:.1f}' width='{width:.1f}' height='100'/>"
        for step in np.flatnonzero(~is_valid).tolist()
    ]
    if len(column) == 1 and is_valid[0]:
        top, bottom = sorted((50.0, float(heights[0])))
        elements.append(f"<rect x='25' width='50' y='{top:.1f}' height='{max(bottom - top, 1):.1f}'/>")
    # Each run of finite values is a curve, so that a curve does not bridge a gap.
    for segment in np.split(np.arange(len(column)), np.flatnonzero(np.diff(is_valid.astype(int))) + 1):
        if len(segment) > 1 and is_valid[segment[0]]:
            points = " ".join(f"{(step + 0.5) * width:.1f},{heights[step]:.1f}" for step in segment.tolist())
            elements.append(f"<polyline points='{points}'/>")
    return "".join(elements)


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
