"""Tables of measured points, for a terminal and in Markdown, and plots in one style."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from convert.report import format_table

Column = Callable[[Mapping[str, Any]], str | int | None]
"""A function from a point (``Point.as_dict``) to its cell, None where the figure is unknown."""


class Table(NamedTuple):
    """A table and the sentences below it."""

    header: list[str]
    rows: list[list[Any]]
    notes: list[str]

    def text(self) -> str:
        """Return the table for a terminal."""
        return "\n".join([format_table(self.header, self.rows), *self.notes])

    def markdown(self) -> str:
        """Return the table in Markdown, each sentence as a paragraph."""
        return "\n\n".join([markdown_table(self.header, self.rows), *self.notes])


def point_table(
    points: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], notes: Sequence[str], *, first: str = "point"
) -> Table:
    """Return a table with a row for each point, without the columns that are unknown for all points."""
    cells = [
        {title: column(point) for title, column in columns.items()} if point["repeats"] and not point["error"] else {}
        for point in points
    ]
    shown = [title for title in columns if any(row.get(title) is not None for row in cells)]
    failed = ["failed", *"-" * len(shown)][: len(shown)]
    rows = [[row.get(title) or "-" for title in shown] if row else failed for row in cells]
    errors = [f"{point['name']} failed: {point['error']}" for point in points if point["error"]]
    rows = [[point["name"], *row] for point, row in zip(points, rows, strict=True)]
    return Table([first, *shown], rows, [*notes, *errors])


def figure(*keys: str, form: str, scale: float = 1.0) -> Column:
    """Return a column of the median of a figure, which ``keys`` locate; None where a point has no such figure.

    >>> figure("step_ms", "p50", form=".1f")({"median": {"step_ms": {"p50": 0.25}}})
    '0.2'
    """

    def read(point: Mapping[str, Any]) -> str | None:
        value = point["median"]
        for key in keys:
            value = value.get(key) if value else None
        return None if value is None else f"{value * scale:{form}}"

    return read


def spread(key: str, form: str) -> Column:
    """Return a column of the least and the most of a figure over the repeats.

    >>> spread("ratio", ".2f")({"repeats": [{"ratio": 0.9}, {"ratio": 0.8}]})
    '0.80-0.90'
    """

    def read(point: Mapping[str, Any]) -> str | None:
        measured = [run[key] for run in point["repeats"] if run[key] is not None]
        return f"{min(measured):{form}}-{max(measured):{form}}" if measured else None

    return read


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[Any]], *, right: bool = True) -> str:
    """Return a table in Markdown, columns after the first aligned right if ``right``.

    >>> print(markdown_table(["format", "pairs/s"], [["a|b", 7]]))
    | format | pairs/s |
    |---|---:|
    | a\\|b | 7 |
    """

    def cells(row: Sequence[Any]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"

    rule = "|---" + ("|---:" if right else "|---") * (len(header) - 1) + "|"
    return "\n".join([cells(header), rule, *map(cells, rows)])


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(*, width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes, sizes in inches, without a window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def colors(count: int) -> list[Any]:
    """Return ``count`` colours; neighbours differ."""
    from matplotlib import colormaps

    if count <= 20:
        return [colormaps["tab10" if count <= 10 else "tab20"](number) for number in range(count)]
    return [colormaps["turbo"](number * 0.618034 % 1) for number in range(count)]


def save_figure(figure: Figure, path: Path, *, png: bool = True) -> None:
    """Write a figure as SVG, the same bytes for the same content, and with ``png`` also as PNG."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "pairstream", "svg.fonttype": "none"}):
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    if png:
        figure.savefig(path.with_suffix(".png"), dpi=120)
