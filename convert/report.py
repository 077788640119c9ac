"""Numbers and tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from stream.units import human_bytes, human_seconds

__all__ = ["format_table", "human_bytes", "human_seconds"]


def format_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table with aligned columns; numbers to the right.

    >>> print(format_table(["dataset", "pairs"], [["bridge", 1250], ["rt1", 7]]))
    dataset  pairs
    bridge   1,250
    rt1          7
    """
    texts = [list(header)] + [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in texts) for column in range(len(header))]
    right = [any(isinstance(row[column], int) for row in rows) for column in range(len(header))]
    lines = []
    for row in texts:
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
