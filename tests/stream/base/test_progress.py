"""All long commands show the same line."""

from __future__ import annotations

import io
import re
import time

import pytest

from stream.base import progress
from stream.base.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(total: float, unit: str, *, done: float, failed: int = 0) -> list[str]:
    """Lines that a log gets after some work."""
    stream = io.StringIO()
    with Progress(total, unit, stream=stream, label="export") as shown:
        shown.advance(done, failed=failed)
        time.sleep(0.2)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("total", "unit", "done", "failed", "line"),
    [
        (40, "steps", 10, 2, r"export: 10/40 steps, [\d.]+ steps/s, 0s, ETA 0s, 2 failed"),
        (3e9, "B", 1.5e6, 0, r"export: 1\.5 MB of 3\.0 GB, [\d.]+ MB/s, 0s, ETA \d.*"),
        (0, "steps", 0, 0, r"export: 0/0 steps, 0\.0 steps/s, 0s"),
    ],
)
def test_a_line_has_work_rate_time_left_and_failures(
    total: float, unit: str, done: float, failed: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_PAUSE_OF_LINES", 0.05)
    assert re.fullmatch(line, lines(total, unit, done=done, failed=failed)[0])


def test_a_log_of_a_short_command_has_no_line() -> None:
    assert lines(40, "steps", done=40) == []


def test_a_terminal_gets_one_line_that_is_gone_at_the_end() -> None:
    stream = Terminal()
    with Progress(40, "steps", stream=stream) as shown:
        shown.advance(40)
        time.sleep(0.7)
    assert "\r\x1b[2K40/40 steps" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[1A\x1b[2K")
