"""Figures that may be missing, and tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def number(value: float | None, form: str, *, scale: float = 1.0) -> str:
    """Return a figure, ``-`` if there is none.

    >>> number(0.0514, ".1f", scale=1000), number(None, ".1f")
    ('51.4', '-')
    """
    return "-" if value is None else f"{value * scale:{form}}"


def megabytes(count: float | None) -> str:
    """Return a number of bytes in units of 10^6, ``-`` if there is none.

    >>> megabytes(1_234_567_890), megabytes(None)
    ('1,235', '-')
    """
    return number(count, ",.0f", scale=1e-6)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[Any]], *, right: bool = True) -> str:
    """Return a table in Markdown; with ``right`` columns but the first are set to the right.

    >>> print(markdown_table(["format", "pairs/s"], [["a|b", 7]]))
    | format | pairs/s |
    |---|---:|
    | a\\|b | 7 |
    """

    def cells(row: Sequence[Any]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"

    rule = "|---" + ("|---:" if right else "|---") * (len(header) - 1) + "|"
    return "\n".join([cells(header), rule, *map(cells, rows)])
