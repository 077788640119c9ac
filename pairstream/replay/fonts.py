"""Fonts for texts in any script: Pillow's own for Latin letters, and fonts of the system for others."""

from __future__ import annotations

import itertools
import math
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from PIL import ImageDraw, ImageFont

from stream.base.arguments import printable

_LATIN = 0xFF
"""Last letter of Pillow's own font."""
_SECONDS = 10


@cache
def _font_file(letter: str) -> tuple[str, int] | None:
    """Return file and number of a font of the system that has a letter, or None."""
    command = ["fc-list", "--format", "%{file}\t%{index}\t%{style}\n", f":charset={ord(letter):x}"]
    try:
        font_list = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
        fonts = [line.split("\t") for line in font_list.splitlines() if line.count("\t") == 2]
    except FileNotFoundError:
        # fontconfig is not installed.
        fonts = [[str(path), "0", ""] for path in Path("/usr/share/fonts").rglob("*.[to]t[fc]")]
    except (OSError, subprocess.SubprocessError):
        return None
    # A plain style before a bold or slanted one.
    fonts.sort(key=lambda font: (not any(word in font[2] for word in ("Regular", "Book", "Normal")), font[0]))
    candidates = ((font_file, int(font_index) & 0xFFFF) for font_file, font_index, _ in fonts)
    return next((candidate for candidate in candidates if _has(candidate, letter)), None)


def _has(font: tuple[str, int], letter: str) -> bool:
    """Return whether a font has a letter, so that it differs from the picture of a letter that no font has."""
    try:
        loaded_font = _load(font, 12)
        return bytes(loaded_font.getmask(letter)) != bytes(loaded_font.getmask("\U0010fffe"))
    except (OSError, ValueError):
        return False


@cache
def _load(font: tuple[str, int] | None, font_size: int) -> Any:
    """Return a font, None for Pillow's own."""
    return ImageFont.truetype(font[0], font_size, index=font[1]) if font else ImageFont.load_default(font_size)


@cache
def _drawn(letter: str) -> tuple[str, tuple[str, int] | None]:
    r"""Return a letter, escaped (``\u628a``) if no font of the system has it, and the font's file or None for ours."""
    if ord(letter) <= _LATIN:
        return letter, None
    font_file = _font_file(letter)
    return (letter, font_file) if font_file else (printable(letter, latin=True), None)


@cache
def _advance(letter: str, font_size: int) -> float:
    text, font_file = _drawn(letter)
    return float(_load(font_file, font_size).getlength(text))


def text_width(text: str, font_size: int) -> float:
    """Return the width of a text in pixels, without kerning."""
    return sum(_advance(letter, font_size) for letter in printable(text))


def write_text(
    canvas: ImageDraw.ImageDraw,
    corner: tuple[float, float],
    text: str,
    colour: tuple[int, int, int],
    *,
    font_size: int = 12,
    width: float = math.inf,
) -> None:
    """Write a line, with one base line for all fonts; cut it to ``width`` pixels."""
    pen, top = corner
    letters = printable(text)
    letters = letters[: _fitting(letters, font_size, width)]
    for font_file, letter_run in itertools.groupby(map(_drawn, letters), key=lambda drawn_letter: drawn_letter[1]):
        run_text = "".join(letter for letter, _ in letter_run)
        font = _load(font_file, font_size)
        canvas.text((pen, top + font_size * 0.95), run_text, colour, font=font, anchor="ls")
        pen += font.getlength(run_text)


def wrap_text(text: str, font_size: int, width: float, *, max_lines: int) -> list[str]:
    """Break a text into lines of a width, at spaces or between letters; ``...`` ends the last line of a longer text."""
    wrapped_lines: list[str] = []
    remaining = printable(text)
    while remaining and len(wrapped_lines) < max_lines:
        num_letters = _fitting(remaining, font_size, width)
        if num_letters < len(remaining):
            if len(wrapped_lines) == max_lines - 1:
                num_letters = _fitting(remaining, font_size, width - text_width("...", font_size))
                return [*wrapped_lines, f"{remaining[:num_letters]}..."]
            last_space = remaining.rfind(" ", 0, num_letters + 1)
            num_letters = last_space if last_space > 0 else max(num_letters, 1)
        wrapped_lines.append(remaining[:num_letters].rstrip())
        remaining = remaining[num_letters:].lstrip()
    return wrapped_lines


def _fitting(text: str, font_size: int, width: float) -> int:
    """Return the count of letters of a printable text that fit into a width."""
    used_width = 0.0
    for num_letters, letter in enumerate(text):
        used_width += _advance(letter, font_size)
        if used_width > width:
            return num_letters
    return len(text)
