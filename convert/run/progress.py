"""Progress of a conversion, read from the journals: it works with any runner, wherever its workers are."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Sequence
from typing import TextIO

from convert.journal.remote import open_journal
from convert.plan import ShardJob
from convert.report import human_bytes, human_seconds
from stream.storage.remote import RemoteError, is_remote

_POLL = 0.5
_POLL_REMOTE = 5.0
_LINE_EVERY = 30.0


class Progress:
    """A thread that shows shards, pairs, MB/s of source and ETA on stderr: in place on a terminal, else a line now and
    then. Use as a context manager around the run."""

    def __init__(self, jobs: Sequence[tuple[ShardJob, str]], *, stream: TextIO | None = None) -> None:
        """``jobs``: what this process is to convert, with the output folder of each."""
        self._stream = stream or sys.stderr
        self._waiting = {(output, job.stem): job for job, output in jobs}
        self._poll = _POLL_REMOTE if any(is_remote(output) for _, output in jobs) else _POLL
        self._total = len(jobs)
        self._total_bytes = sum(job.size for job, _ in jobs)
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
        while not self._stop.wait(self._poll):
            self._look()
            if tty or time.monotonic() - shown >= _LINE_EVERY:
                shown = time.monotonic()
                self._show(end="" if tty else "\n")

    def _look(self) -> None:
        # A store that does not answer now fails the conversion, if it has to; the progress can wait.
        with contextlib.suppress(RemoteError):
            for output in {output for output, _ in self._waiting}:
                self._look_at(output)

    def _look_at(self, output: str) -> None:
        journal = open_journal(output)
        finished = journal.finished()
        jobs = {job.stem: job for (where, _), job in self._waiting.items() if where == output and job.stem in finished}
        statuses = journal.statuses(jobs) if jobs else {}
        for stem, job in jobs.items():
            del self._waiting[output, stem]
            self._bytes += job.size
            self._pairs += statuses[stem].entry.records if stem in statuses else 0

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
