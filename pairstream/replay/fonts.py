"""Fonts for texts in any script: Pillow's own for Latin letters, and fonts of the system for others."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import ImageDraw, ImageFont

from stream.base.arguments import printable

_FOLDERS = ("/usr/share/fonts", "/usr/local/share/fonts", "~/.local/share/fonts", "~/.fonts", "/System/Library/Fonts")
_MOST_FILES = 400
"""Font files that are opened in search of a letter where fontconfig is not installed."""
_LATIN = 0xFF
"""Last letter of Pillow's own font."""
_SECONDS = 10


@cache
def _own(size: int) -> Any:
    return ImageFont.load_default(size)


@cache
def _font_file(letter: str) -> tuple[str, int] | None:
    """Return file and number of a font of the system that has a letter, or None."""
    if shutil.which("fc-list") is None:
        return next((found for found in _files() if _has(found, letter)), None)
    command = ["fc-list", "--format", "%{file}\t%{index}\t%{style}\n", f":charset={ord(letter):x}"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    fonts = [line.split("\t") for line in told.splitlines() if line.count("\t") == 2]
    # A plain style before a bold or slanted one.
    fonts.sort(key=lambda font: (not any(word in font[2] for word in ("Regular", "Book", "Normal")), font[0]))
    known = ((file, int(number) & 0xFFFF) for file, number, _ in fonts)
    return next((found for found in known if _has(found, letter)), None)


def _files() -> Iterator[tuple[str, int]]:
    found = (path for folder in _FOLDERS for path in sorted(Path(folder).expanduser().rglob("*.[to]t[fc]")))
    for path, _ in zip(found, range(_MOST_FILES), strict=False):
        yield str(path), 0


def _has(font: tuple[str, int], letter: str) -> bool:
    """Return whether a font draws a letter otherwise than one that no font has."""
    try:
        loaded = _load(*font, 12)
        return bytes(loaded.getmask(letter)) != bytes(loaded.getmask("\U0010fffe"))
    except (OSError, ValueError):
        return False


@cache
def _load(file: str, number: int, size: int) -> Any:
    return ImageFont.truetype(file, size, index=number)


@cache
def _drawn(letter: str) -> tuple[str, tuple[str, int] | None]:
    r"""Return a letter, escaped (``\u628a``) if no font of the system has it, and the font's file or None for ours."""
    if ord(letter) <= _LATIN:
        return letter, None
    file = _font_file(letter)
    return (letter, file) if file else (printable(letter, latin=True), None)


@cache
def _advance(letter: str, size: int) -> float:
    text, file = _drawn(letter)
    return float((_load(*file, size) if file else _own(size)).getlength(text))


def text_width(text: str, size: int) -> float:
    """Return the width of a text in pixels, without kerning."""
    return sum(_advance(letter, size) for letter in printable(text))


def write_text(
    draw: ImageDraw.ImageDraw,
    corner: tuple[float, float],
    text: str,
    ink: tuple[int, int, int],
    *,
    size: int = 12,
    width: float = math.inf,
) -> None:
    """Write a line, all of whose fonts have one base line; cut it to ``width`` pixels."""
    left, top = corner
    letters = printable(text)
    letters = letters[: _fitting(letters, size, width)]
    for file, run in groupby(map(_drawn, letters), key=lambda each: each[1]):
        part = "".join(letter for letter, _ in run)
        font = _load(*file, size) if file else _own(size)
        draw.text((left, top + size * 0.95), part, ink, font=font, anchor="ls")
        left += font.getlength(part)


def wrap_text(text: str, size: int, width: float, *, lines: int) -> list[str]:
    """Break a text into lines of a width, at spaces or between letters; ``...`` ends the last one if more follows."""
    found: list[str] = []
    left = printable(text)
    while left and len(found) < lines:
        stop = _fitting(left, size, width)
        if stop < len(left):
            if len(found) == lines - 1:
                return [*found, f"{left[: _fitting(left, size, width - text_width('...', size))]}..."]
            space = left.rfind(" ", 0, stop + 1)
            stop = space if space > 0 else max(stop, 1)
        found.append(left[:stop].rstrip())
        left = left[stop:].lstrip()
    return found


def _fitting(text: str, size: int, width: float) -> int:
    """Return how many letters of a printable text fit into a width."""
    used = 0.0
    for count, letter in enumerate(text):
        used += _advance(letter, size)
        if used > width:
            return count
    return len(text)
