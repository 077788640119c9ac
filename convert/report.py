"""Numbers, tables and errors as text for people."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

_LEAST_WIDTH = 16
"""Columns of texts are not folded below this width."""
_QUANTITY = re.compile(r"\d[\d,]*(\.\d+)? [A-Za-z]+")


def format_table(header: Sequence[str], table_rows: Sequence[Sequence[object]], *, width: int | None = None) -> str:
    """Return a table with aligned columns; numbers to the right.

    In a table that would be wider than ``width``, long texts are folded. If this is not enough, the widest columns of
    texts, except the first, become lines below their rows.

    >>> print(format_table(["dataset", "pairs"], [["bridge", 1250], ["rt1", 7]]))
    dataset  pairs
    bridge   1,250
    rt1          7
    >>> print(format_table(["dataset", "pairs", "robot"], [["bridge_of_the_kitchen", 1250, "widowx"]], width=24))
    dataset            pairs
    bridge_of_the_     1,250
    kitchen
        robot: widowx
    """
    columns = [
        (str(title), [f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells], _are_numbers(cells))
        for title, *cells in zip(header, *table_rows, strict=True)
    ]
    below: list[_Column] = []
    while (widths := _widths(columns, width)) is None:
        texts_columns = [column for column in columns[1:] if not column[2]]
        if not texts_columns:
            widths = [_least_width(column) for column in columns]
            break
        widest = max(texts_columns, key=lambda column: max(map(len, column[1]), default=0))
        columns.remove(widest)
        below.append(widest)
    lines = _table_lines([title for title, _, _ in columns], columns, widths)
    for row in range(len(table_rows)):
        lines += _table_lines([texts[row] for _, texts, _ in columns], columns, widths)
        if facts := [f"{title}: {texts[row]}" for title, texts, _ in below if texts[row] not in ("", "-")]:
            lines += [f"    {line}" for line in _fold("; ".join(facts), (width or 0) - 4)]
    return "\n".join(lines)


_Column = tuple[str, list[str], bool]
"""Title, cells, and whether they are numbers."""


def fit_table(header: Sequence[str], table_rows: Sequence[Sequence[object]]) -> str:
    """Return a table that fits the terminal; a pipe gets one line for each row."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return format_table(header, table_rows, width=width)


def _are_numbers(cells: Sequence[object]) -> bool:
    """Return whether cells are whole numbers, or quantities such as ``1.2 GB``."""
    if any(isinstance(cell, int) for cell in cells):
        return True
    texts = [str(cell) for cell in cells if str(cell) not in ("", "-", "?")]
    return bool(texts) and all(_QUANTITY.fullmatch(text) for text in texts)


def _least_width(column: _Column) -> int:
    title, texts, is_number = column
    longest = max(map(len, texts), default=0)
    return max(*map(len, title.split(" ")), longest if is_number else min(longest, _LEAST_WIDTH))


def _widths(columns: Sequence[_Column], width: int | None) -> list[int] | None:
    """Return the width of each column in a table of at most ``width``, or None if folding is not enough."""
    widths = [max(map(len, (title, *texts))) for title, texts, _ in columns]
    least_widths = [_least_width(column) for column in columns]
    while width is not None and sum(widths) + 2 * len(widths) - 2 > width:
        foldable = [number for number, least_width in enumerate(least_widths) if widths[number] > least_width]
        if not foldable:
            return None
        widths[max(foldable, key=widths.__getitem__)] -= 1
    return widths


def _table_lines(cells: Sequence[str], columns: Sequence[_Column], widths: Sequence[int]) -> list[str]:
    """Return the lines of one row."""
    folded = [_fold(cell, column_width) for cell, column_width in zip(cells, widths, strict=True)]
    aligned = [
        [text.rjust(column_width) if is_number else text.ljust(column_width) for text in texts]
        for texts, column_width, (_, _, is_number) in zip(folded, widths, columns, strict=True)
    ]
    blanks = [" " * column_width for column_width in widths]
    height = max(map(len, aligned), default=0)
    return [
        "  ".join(
            texts[line] if line < len(texts) else blank for texts, blank in zip(aligned, blanks, strict=True)
        ).rstrip()
        for line in range(height)
    ]


class _Folding(textwrap.TextWrapper):
    """Folds at spaces and behind underscores and slashes."""

    wordsep_simple_re = re.compile(r"(\s+|(?<=[_/]))")


def _fold(text: str, width: int) -> list[str]:
    """Return the lines of a text.

    >>> _fold("furniture_bench_dataset, sawyer_2", 18)
    ['furniture_bench_', 'dataset, sawyer_2']
    """
    return _Folding(max(width, 1), break_on_hyphens=False).wrap(text) or [""]


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
