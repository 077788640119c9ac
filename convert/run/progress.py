"""Progress of a conversion, read from the journals, so that it works with any runner on any machines."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from convert.journal.journal import Journal
from convert.plan import ShardJob
from convert.report import human_bytes, human_seconds
from stream.storage.remote import RemoteError, is_remote

_POLL = 0.5
_POLL_REMOTE = 5.0
_LINE_EVERY = 30.0


class Progress:
    """A context manager that shows shards, records, MB/s of source and ETA on stderr while it is open.

    A terminal gets one line that is renewed in place, another stream a line now and then.

    Args:
        jobs: Shards that this process is to convert, with the output folder of each.
        records: Word for records: pairs or frames.
        stream: Stream to write to instead of stderr.
    """

    def __init__(
        self, jobs: Sequence[tuple[ShardJob, str]], *, records: str = "pairs", stream: TextIO | None = None
    ) -> None:
        self._word = records
        self._console = Console(file=stream or sys.stderr)
        self._waiting = {(output, job.stem): job for job, output in jobs}
        self._total = len(jobs)
        self._total_bytes = sum(job.size for job, _ in jobs)
        self._bytes = 0
        self._records = 0
        self._started = self._printed = time.monotonic()
        self._live = Live(
            console=self._console,
            get_renderable=self._render,
            refresh_per_second=1 / (_POLL_REMOTE if any(is_remote(output) for _, output in jobs) else _POLL),
            transient=not self._console.is_terminal,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Progress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if not self._console.is_terminal:
            self._look()
            print(self._line(), file=self._console.file, flush=True)

    def _render(self) -> Text:
        self._look()
        if not self._console.is_terminal and time.monotonic() - self._printed >= _LINE_EVERY:
            self._printed = time.monotonic()
            print(self._line(), file=self._console.file, flush=True)
        return Text(self._line(), no_wrap=True, overflow="ellipsis")

    def _look(self) -> None:
        # A store that does not answer now fails the conversion, if it has to; the progress can wait.
        with contextlib.suppress(RemoteError):
            for output in {output for output, _ in self._waiting}:
                journal = Journal(output)
                finished = journal.finished()
                stems = [stem for where, stem in self._waiting if where == output and stem in finished]
                statuses = journal.statuses(stems) if stems else {}
                for stem in stems:
                    self._bytes += self._waiting.pop((output, stem)).size
                    self._records += statuses[stem].entry.records if stem in statuses else 0

    def _line(self) -> str:
        elapsed = max(time.monotonic() - self._started, 1e-6)
        rate = self._bytes / elapsed
        eta = f", ETA {human_seconds((self._total_bytes - self._bytes) / rate)}" if rate and self._waiting else ""
        return (
            f"{self._total - len(self._waiting):,}/{self._total:,} shards, {self._records:,} {self._word} "
            f"({self._records / elapsed:,.0f}/s), {human_bytes(rate)}/s, {human_seconds(elapsed)}{eta}"
        )
