"""Progress of long commands: one line with the work done, rate, time left and failures so far."""

from __future__ import annotations

import threading
import time
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

_PAUSE, _PAUSE_OF_LINES = 0.5, 30.0
"""Seconds between two looks on a terminal, and between two lines elsewhere."""


class Progress:
    """A context manager that shows a line while a command works.

    A terminal gets one line that is updated in place and removed at the end. Another stream, such as a log, gets a
    plain line every 30 seconds. Nothing is shown with ``stream`` None.

    Attributes:
        done: Work done, in units (``B`` is for bytes) of which there are ``total``.
        failed: Count of failures so far.
    """

    pause = _PAUSE
    keeps_last = False
    """Whether the last line stays, and appears in a log however short the command was."""
    failures = "failed"
    """Words after the count of failures."""

    def __init__(self, total: float, unit: str, *, stream: TextIO | None, label: str = "") -> None:
        self.done = 0.0
        self.failed = 0
        self._total = total
        self._unit = unit
        self._label = label
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._console = None if stream is None else Console(file=stream)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=not self.keeps_last,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        if self._console is not None:
            if self._console.is_terminal:
                self._live.start()
                self._show()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console is None:
            return
        self._ended.set()
        self._thread.join()
        if self.keeps_last:
            self.look_at_all()
            self._show()
        self._live.stop()

    def advance(self, amount: float = 1, *, failed: int = 0) -> None:
        """Add work done, and failures; any thread may call this."""
        with self._lock:
            self.done += amount
            self.failed += failed

    def look(self) -> None:
        """Update ``done`` before each line; nothing to do where ``advance`` is called."""

    def look_at_all(self) -> None:
        """Update ``done`` before the last line, however long it takes."""

    def figures(self) -> str:
        """Return the work done and the total."""
        if self._unit == "B":
            return f"{human_bytes(self.done)} of {human_bytes(self._total)}"
        return f"{self.done:,.0f}/{self._total:,.0f} {self._unit}"

    def rate(self, seconds: float) -> str:
        """Return the work per second."""
        rate = self.done / seconds
        return f"{human_bytes(rate)}/s" if self._unit == "B" else f"{rate:,.{0 if rate >= 10 else 1}f} {self._unit}/s"

    def share(self) -> float:
        """Return the share of the work that is done, from 0 to 1."""
        return self.done / self._total if self._total else 1.0

    def _follow(self) -> None:
        is_terminal = self._console is not None and self._console.is_terminal
        while not self._ended.wait(self.pause if is_terminal else _PAUSE_OF_LINES):
            self.look()
            self._show()

    def _show(self) -> None:
        if self._console is None:
            return
        if self._console.is_terminal:
            self._live.update(Text(self._line(), no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            print(self._line(), file=self._console.file, flush=True)

    def _line(self) -> str:
        seconds, share = max(time.monotonic() - self._started, 1e-6), self.share()
        parts = [self.figures(), self.rate(seconds), human_seconds(seconds)]
        if 0 < share < 1:
            parts.append(f"ETA {human_seconds(seconds * (1 - share) / share)}")
        if self.failed:
            parts.append(f"{self.failed:,} {self.failures}")
        return f"{self._label}: {', '.join(parts)}" if self._label else ", ".join(parts)


def human_bytes(num_bytes: float) -> str:
    """Return a size in decimal units.

    >>> human_bytes(1_234_567), human_bytes(12)
    ('1.2 MB', '12 B')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.2f} TB"


def human_seconds(seconds: float) -> str:
    """Return a duration.

    >>> human_seconds(42), human_seconds(3723)
    ('42s', '1:02:03')
    """
    num_seconds = round(seconds)
    if num_seconds < 60:
        return f"{num_seconds}s"
    hours, remainder = divmod(num_seconds, 3600)
    return f"{hours}:{remainder // 60:02d}:{remainder % 60:02d}" if hours else f"{remainder // 60}:{remainder % 60:02d}"
