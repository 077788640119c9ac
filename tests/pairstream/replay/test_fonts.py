"""Texts of every script are written with a font that has their letters, or escaped."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image, ImageDraw

from pairstream.replay import fonts
from pairstream.replay.fonts import text_width, wrap_text, write_text

CHINESE = "把红色的方块推到左边"
has_chinese = pytest.mark.skipif(
    fonts._font_file("把") is None, reason="no font of the system has Chinese letters; Debian's is fonts-wqy-microhei"
)


def drawn(text: str, **options: float) -> np.ndarray:
    image = Image.new("RGB", (300, 30), (255, 255, 255))
    write_text(ImageDraw.Draw(image), (2, 2), text, (0, 0, 0), **options)  # type: ignore[arg-type]
    return np.asarray(image)


@pytest.fixture
def without_fonts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fonts._drawn.cache_clear()
    fonts._advance.cache_clear()
    monkeypatch.setattr(fonts, "_font_file", lambda letter: None)
    yield
    fonts._drawn.cache_clear()
    fonts._advance.cache_clear()


@has_chinese
def test_chinese_is_written_as_itself() -> None:
    assert text_width(CHINESE, 12) == pytest.approx(12 * len(CHINESE), rel=0.1)
    assert len({drawn(letter).tobytes() for letter in CHINESE}) == len(CHINESE)


@has_chinese
def test_without_fontconfig_the_folder_of_the_system_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert fonts._font_file.__wrapped__("把") is not None


def test_a_letter_without_a_font_is_escaped(without_fonts: None) -> None:
    assert np.array_equal(drawn("把"), drawn("\\u628a"))
    assert text_width("把", 12) > 3 * 12


def test_a_line_is_cut_to_its_width() -> None:
    assert (drawn("W" * 100, width=50)[:, 54:] == 255).all()
    assert np.array_equal(drawn("short", width=200), drawn("short"))


def test_lines_break_at_spaces_and_the_last_says_that_more_follows() -> None:
    lines = wrap_text("push the red block to the left and then to the right again", 12, 100, max_lines=2)
    assert lines[0] == "push the red block"[: len(lines[0])]
    assert lines[1].endswith("...")
    assert all(text_width(line, 12) <= 100 for line in lines)
    assert wrap_text("one", 12, 100, max_lines=2) == ["one"]
    assert wrap_text("", 12, 100, max_lines=2) == []
    assert "".join(wrap_text("W" * 20, 12, 100, max_lines=9)) == "W" * 20
