"""Numbers, tables and errors as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def format_table(header: Sequence[str], table_rows: Sequence[Sequence[object]]) -> str:
    """Return a table with aligned columns; numbers to the right.

    >>> print(format_table(["dataset", "pairs"], [["bridge", 1250], ["rt1", 7]]))
    dataset  pairs
    bridge   1,250
    rt1          7
    """
    columns = []
    for title, *cells in zip(header, *table_rows, strict=True):
        texts = [str(title), *(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells)]
        width = max(map(len, texts))
        align = str.rjust if any(isinstance(cell, int) for cell in cells) else str.ljust
        columns.append([align(text, width) for text in texts])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def count_noun(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count_noun(1, "shard"), count_noun(1200, "shard")
    ('1 shard', '1,200 shards')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, for one-line lists: libraries append their own traces.

    >>> first_line(ValueError("chunk data hash mismatch; reading record 7\\n  at reader.cc:12"))
    'chunk data hash mismatch; reading record 7'
    """
    first_text = str(error).strip().split("\n", 1)[0]
    return first_text[:500] or type(error).__name__


def fault(error: Exception, file_path: str | Path) -> str:
    """Return one line about an error with a file, without the path of the file, for lists that name the file."""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return first_line(error).removeprefix(f"{file_path}: ")
