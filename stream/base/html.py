"""Tables and pictures as HTML, for notebooks."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_HEIGHT = 96
"""Height of a small picture in pixels."""


class Markup(str):
    """A text that is HTML already."""


def html_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table; all cells are escaped but ``Markup``.

    >>> html_table(["a"], [["<b>"]])
    '<table><tr><th>a</th></tr><tr><td style="text-align:left">&lt;b&gt;</td></tr></table>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = [f"<tr>{head}</tr>"] if header else []
    for row in rows:
        cells = (cell if isinstance(cell, Markup) else escape(str(cell)) for cell in row)
        lines.append("<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>")
    return f"<table>{''.join(lines)}</table>"


def html_picture(frame: np.ndarray, title: str) -> str:
    """Return a small picture of a frame, uint8 [H, W, 3] or of depth uint16 [H, W]."""
    from PIL import Image

    from stream.base.depth_colours import colour_depth, depth_range

    if frame.ndim == 2:
        frame = colour_depth(frame, depth_range(frame))
    picture = Image.fromarray(frame)
    picture.thumbnail((4 * _HEIGHT, _HEIGHT))
    content = io.BytesIO()
    picture.save(content, "PNG")
    encoded = base64.b64encode(content.getvalue()).decode()
    return f'<img src="data:image/png;base64,{encoded}" title="{escape(title)}" style="display:inline;margin:1px">'
