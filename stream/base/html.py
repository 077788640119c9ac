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
    """A text that is HTML already; a notebook shows it as such."""

    def _repr_html_(self) -> str:
        return self


def html_table(column_titles: Sequence[str], table_rows: Iterable[Sequence[Any]]) -> str:
    """Return a table; all cells are escaped but ``Markup``.

    >>> html_table(["a"], [["<b>"]])
    '<table><tr><th>a</th></tr><tr><td style="text-align:left">&lt;b&gt;</td></tr></table>'
    """
    html_rows = ["".join(f"<th>{escape(title)}</th>" for title in column_titles)] if column_titles else []
    for values in table_rows:
        cells = (value if isinstance(value, Markup) else escape(str(value)) for value in values)
        html_rows.append("".join(f'<td style="text-align:left">{cell}</td>' for cell in cells))
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in html_rows)}</table>"


def html_picture(picture_array: np.ndarray, title: str) -> str:
    """Return a small picture of a frame, uint8 [H, W, 3] or of depth uint16 [H, W]."""
    from PIL import Image

    from stream.base.depth_colours import colour_depth, depth_range

    if picture_array.ndim == 2:
        picture_array = colour_depth(picture_array, depth_range(picture_array))
    picture = Image.fromarray(picture_array)
    picture.thumbnail((4 * _HEIGHT, _HEIGHT))
    content = io.BytesIO()
    picture.save(content, "PNG")
    encoded = base64.b64encode(content.getvalue()).decode()
    return f'<img src="data:image/png;base64,{encoded}" title="{escape(title)}" style="display:inline;margin:1px">'
