"""Progress of a conversion, read from the journals, so that it works with any runner on any machines."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from convert.jobs import ShardJob
from convert.journal.journal import Journal
from convert.report import human_bytes, human_seconds
from stream.storage.remote import RemoteError, is_remote

_PAUSE = 0.5
_PAUSE_REMOTE = 5.0
_PAUSE_OF_LINES = 30.0
"""Seconds between two looks: on a terminal, on one at a bucket, and where each look prints a line."""


class Progress:
    """A context manager that shows shards, records, MB/s of source and ETA on stderr while it is open.

    A terminal gets one line that is renewed in place, another stream a line now and then. A look lists the journals of
    two datasets at most, since many tasks may share a disk: that of the largest job, and another in turn.

    Args:
        jobs: Shards, or pieces of them, that this process is to convert, with the output folder of each.
        records: Word for records: pairs or frames.
        stream: Stream to write to instead of stderr.
    """

    def __init__(
        self, jobs: Sequence[tuple[ShardJob, str]], *, records: str = "pairs", stream: TextIO | None = None
    ) -> None:
        self._word = records
        self._console = Console(file=stream or sys.stderr)
        largest_first = sorted(jobs, key=lambda each: -each[0].size)
        self._waiting = {(output, job.name): job for job, output in largest_first}
        self._turns = list(dict.fromkeys(output for _, output in largest_first))
        self._shards = {(output, job.stem) for job, output in jobs}
        self._total_bytes = self._left_bytes = sum(job.size for job, _ in jobs)
        self._records: dict[tuple[str, str], dict[str, int]] = {}
        self._started = time.monotonic()
        terminal, remote = self._console.is_terminal, any(is_remote(output) for output in self._turns)
        self._pause = (_PAUSE_REMOTE if remote else _PAUSE) if terminal else _PAUSE_OF_LINES
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for output in self._turns:
            self._look(output)
        self._show()
        self._live.stop()

    def _follow(self) -> None:
        while not self._ended.wait(self._pause):
            first = next(iter(self._waiting), ("", ""))[0]
            self._turns.append(self._turns.pop(0))
            for output in {first, self._turns[-1]} - {""}:
                self._look(output)
            self._show()

    def _look(self, output: str) -> None:
        if not (mine := [job for (where, _), job in self._waiting.items() if where == output]):
            return
        # A disk or store that does not answer now fails the conversion, if it has to; the progress can wait.
        with contextlib.suppress(OSError, RemoteError):
            found = Journal(output).statuses({name for job in mine for name in (job.name, job.stem)})
            for job in mine:
                if (status := found.get(job.stem) or found.get(job.name)) is None:
                    continue
                del self._waiting[output, job.name]
                self._left_bytes -= job.size
                records = self._records.setdefault((output, job.stem), {})
                if not status.piece:
                    # The pieces of a shard that is joined are gone.
                    records.clear()
                records[status.piece] = status.entry.records

    def _show(self) -> None:
        if self._console.is_terminal:
            self._live.update(Text(self._line(), no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            print(self._line(), file=self._console.file, flush=True)

    def _line(self) -> str:
        elapsed = max(time.monotonic() - self._started, 1e-6)
        rate = (self._total_bytes - self._left_bytes) / elapsed
        eta = f", ETA {human_seconds(self._left_bytes / rate)}" if rate and self._waiting else ""
        done = len(self._shards - {(output, job.stem) for (output, _), job in self._waiting.items()})
        records = sum(sum(counts.values()) for counts in self._records.values())
        return (
            f"{done:,}/{len(self._shards):,} shards, {records:,} {self._word} "
            f"({records / elapsed:,.0f}/s), {human_bytes(rate)}/s, {human_seconds(elapsed)}{eta}"
        )
