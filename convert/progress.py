"""Progress of a conversion, read from the journals: it works with any runner that shares the output's file system."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from convert.journal import Journal
from convert.plan import ShardJob
from convert.report import human_bytes, human_seconds

_POLL = 0.5
_LINE_EVERY = 30.0


class Progress:
    """A thread that shows shards, pairs, MB/s of source and ETA on stderr: in place on a terminal, else a line now and
    then. Use as a context manager around the run."""

    def __init__(self, jobs: Sequence[tuple[ShardJob, str]], *, stream: TextIO | None = None) -> None:
        """``jobs``: what this process is to convert, with the output folder of each."""
        self._stream = stream or sys.stderr
        self._waiting = {(output, job.stem): job for job, output in jobs}
        self._total = len(jobs)
        self._total_bytes = sum(job.bytes for job, _ in jobs)
        self._bytes = 0
        self._pairs = 0
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()
        self._show(end="\n")

    def _run(self) -> None:
        tty = self._stream.isatty()
        shown = self._started
        while not self._stop.wait(_POLL):
            self._look()
            if tty or time.monotonic() - shown >= _LINE_EVERY:
                shown = time.monotonic()
                self._show(end="" if tty else "\n")

    def _look(self) -> None:
        for output in {output for output, _ in self._waiting}:
            journal = Journal(Path(output))
            finished = journal.finished()
            for key in [key for key in self._waiting if key[0] == output and key[1] in finished]:
                job = self._waiting.pop(key)
                status = journal.status(job.stem, job.shard.split)
                self._bytes += job.bytes
                self._pairs += status.entry.records if status else 0

    def _show(self, *, end: str) -> None:
        elapsed = max(time.monotonic() - self._started, 1e-6)
        done = self._total - len(self._waiting)
        rate = self._bytes / elapsed
        left = (self._total_bytes - self._bytes) / rate if rate else None
        eta = f", ETA {human_seconds(left)}" if left is not None and self._waiting else ""
        line = (
            f"{done:,}/{self._total:,} shards, {self._pairs:,} pairs ({self._pairs / elapsed:,.0f}/s), "
            f"{human_bytes(rate)}/s, {human_seconds(elapsed)}{eta}"
        )
        start = "\r\x1b[K" if self._stream.isatty() else ""
        print(f"{start}{line}", end=end, file=self._stream, flush=True)
