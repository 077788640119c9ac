"""All long commands show the same line."""

from __future__ import annotations

import io
import threading
import time

import pytest

from stream.base import progress
from stream.base.progress import Progress
from tests.fixtures.command import wait_until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that a test sets."""

    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


class WhenReady(Progress):
    """Progress whose lines wait for what a test does."""

    def __init__(self, total: float, unit: str, *, stream: io.StringIO) -> None:
        super().__init__(total, unit, stream=stream, label="export")
        self.ready = threading.Event()

    def look(self) -> None:
        self.ready.wait(60)


@pytest.mark.parametrize(
    ("total", "unit", "done", "failed", "line"),
    [
        (40, "steps", 10, 2, "export: 10/40 steps, 2.0 steps/s, 5s, ETA 15s, 2 failed"),
        (3e9, "B", 1.5e6, 0, "export: 1.5 MB of 3.0 GB, 300.0 kB/s, 5s, ETA 2:46:35"),
        (0, "steps", 0, 0, "export: 0/0 steps, 0.0 steps/s, 5s"),
    ],
)
def test_a_line_has_work_rate_time_left_and_failures(
    total: float, unit: str, done: float, failed: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, stream = Clock(), io.StringIO()
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(progress, "_PAUSE_OF_LINES", 0.01)
    with WhenReady(total, unit, stream=stream) as shown:
        shown.advance(done, failed=failed)
        clock.seconds += 5
        shown.ready.set()
        assert wait_until(lambda: "\n" in stream.getvalue(), seconds=60)
    assert stream.getvalue().splitlines()[0] == line


def test_a_log_of_a_short_command_has_no_line() -> None:
    stream = io.StringIO()
    with Progress(40, "steps", stream=stream) as shown:
        shown.advance(40)
        time.sleep(0.2)
    assert stream.getvalue() == ""


def test_a_terminal_gets_one_line_that_is_gone_at_the_end() -> None:
    stream = Terminal()
    with Progress(40, "steps", stream=stream) as shown:
        shown.advance(40)
        assert wait_until(lambda: "\r\x1b[2K40/40 steps" in stream.getvalue(), seconds=60)
    assert stream.getvalue().endswith("\r\x1b[1A\x1b[2K")
