"""Progress of a conversion, read from the journals, so that it works with any runner on any machines."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from convert.jobs import ShardJob
from convert.journal.journal import Journal
from stream.base.progress import Progress
from stream.storage.remote import RemoteError, is_remote

_PAUSE_REMOTE = 5.0
"""Seconds between two looks at a bucket."""


class ShardProgress(Progress):
    """Progress with shards, records, MB/s of source and ETA, on stderr while it is open; its last line stays.

    A look lists the journals of two datasets at most, since many tasks may share a disk: that of the largest job, and
    another in turn. ``shard_jobs`` are the jobs of this process, each with its output folder.
    """

    keeps_last = True
    failures = "episodes left out"

    def __init__(
        self, shard_jobs: Sequence[tuple[ShardJob, str]], *, record_noun: str = "pairs", stream: TextIO | None = None
    ) -> None:
        super().__init__(sum(job.size for job, _ in shard_jobs), "B", stream=stream or sys.stderr)
        self._record_noun = record_noun
        largest_first = sorted(shard_jobs, key=lambda job_and_output: -job_and_output[0].size)
        self._waiting = {(output, job.name): job for job, output in largest_first}
        self._outputs = list(dict.fromkeys(output for _, output in largest_first))
        self._turns = itertools.cycle(self._outputs)
        self._shards = {(output, job.stem) for job, output in shard_jobs}
        # By shard, and by piece of a shard that is not joined: records, and episodes left out.
        self._counts: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
        if any(is_remote(output) for output in self._outputs):
            self.pause = _PAUSE_REMOTE

    def look(self) -> None:
        """Read the journal of the largest job, and another in turn."""
        for output in {*[output for output, _ in self._waiting][:1], next(self._turns)}:
            self._look(output)

    def look_at_all(self) -> None:
        """Read all journals."""
        for output in self._outputs:
            self._look(output)

    def figures(self) -> str:
        """Return the shards and records that are done."""
        num_done = len(self._shards - {(output, job.stem) for (output, _), job in self._waiting.items()})
        num_records = sum(records for pieces in self._counts.values() for records, _ in pieces.values())
        rate = num_records / max(time.monotonic() - self._started, 1e-6)
        return f"{num_done:,}/{len(self._shards):,} shards, {num_records:,} {self._record_noun} ({rate:,.0f}/s)"

    def _look(self, output: str) -> None:
        if not (waiting_jobs := [job for (job_output, _), job in self._waiting.items() if job_output == output]):
            return
        # A disk or store that does not answer now fails the conversion, if it has to; the progress can wait.
        with contextlib.suppress(OSError, RemoteError):
            statuses = Journal(output).statuses({stem for job in waiting_jobs for stem in (job.name, job.stem)})
            for job in waiting_jobs:
                if (status := statuses.get(job.stem) or statuses.get(job.name)) is None:
                    continue
                del self._waiting[output, job.name]
                pieces = self._counts.setdefault((output, job.stem), {})
                if not status.piece:
                    # The pieces of a shard that is joined are gone.
                    pieces.clear()
                pieces[status.piece] = status.entry.records, sum(status.entry.left_out.values())
                self.done += job.size
        self.failed = sum(left_out for pieces in self._counts.values() for _, left_out in pieces.values())
