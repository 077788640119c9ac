"""Numbers, tables and errors as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


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


def count_noun(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count_noun(1, "shard"), count_noun(1200, "shard")
    ('1 shard', '1,200 shards')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, for one-line lists: libraries append traces of their own.

    >>> first_line(ValueError("chunk data hash mismatch; reading record 7\\n  at reader.cc:12"))
    'chunk data hash mismatch; reading record 7'
    """
    text = str(error).strip().split("\n", 1)[0]
    return text[:500] or type(error).__name__


def fault(error: Exception, path: str | Path) -> str:
    """Return one line about an error with a file, without the path of the file, for lists that name the file."""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return first_line(error).removeprefix(f"{path}: ")
