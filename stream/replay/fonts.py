"""Fonts for texts in any script: Pillow's own for Latin letters, and fonts of the system for others."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import ImageDraw, ImageFont

from stream.storage.arguments import printable

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


def font_runs(text: str, size: int) -> list[tuple[str, Any]]:
    r"""Return a text in parts, each with its font; letters that no font of the system has are escaped (``\u628a``)."""
    letters = []
    for letter in printable(text):
        file = None if ord(letter) <= _LATIN else _font_file(letter)
        escaped = ord(letter) > _LATIN and file is None
        letters.append((printable(letter, latin=True) if escaped else letter, file))
    runs = groupby(letters, key=lambda each: each[1])
    return [("".join(part for part, _ in run), _load(*file, size) if file else _own(size)) for file, run in runs]


def text_width(text: str, size: int) -> float:
    """Return the width of a text in pixels."""
    return sum(font.getlength(part) for part, font in font_runs(text, size))


def write_text(
    draw: ImageDraw.ImageDraw,
    corner: tuple[float, float],
    text: str,
    ink: tuple[int, int, int],
    *,
    size: int = 12,
    width: float | None = None,
) -> None:
    """Write a text, the middle of whose letters is at one height in all fonts; cut it to ``width`` pixels."""
    left, top = corner
    while width is not None and text and text_width(text, size) > width:
        text = text[:-1]
    for part, font in font_runs(text, size):
        draw.text((left, top + size * 0.95), part, ink, font=font, anchor="ls")
        left += font.getlength(part)


def wrap_text(text: str, size: int, width: float, *, lines: int) -> list[str]:
    """Break a text into lines of a width, at spaces or between letters; ``...`` ends the last one if more follows."""
    found: list[str] = []
    left = " ".join(text.split())[: 200 * lines]
    while left:
        if len(found) == lines:
            kept = found[-1]
            while kept and text_width(f"{kept}...", size) > width:
                kept = kept[:-1]
            found[-1] = f"{kept}..."
            break
        stop = len(left)
        if text_width(left, size) > width:
            stop = 1
            while stop < len(left) and text_width(left[: stop + 1], size) <= width:
                stop += 1
            stop = left.rfind(" ", 0, stop + 1) if " " in left[1 : stop + 1] else stop
        found.append(left[:stop].rstrip())
        left = left[stop:].lstrip()
    return found
