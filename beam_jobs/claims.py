"""Claims of jobs among the worker processes of one machine: each takes the next job when it has finished one."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

_NEXT = struct.Struct("<q")
_MOST = 1 << 15


class Claims:
    """A small file with the number of the next job, counted from 0, and the error of a job that failed.

    It is pickled as its path. Its bytes are only replaced, so a disk that is full of shards stops no claim.
    """

    def __init__(self, path: Path, *, jobs: int) -> None:
        self._path = path
        self._jobs = jobs
        path.write_bytes(bytes(_NEXT.size + _MOST))

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of jobs that no other process has taken, each when it is asked for."""
        while (number := self._advance(1)) < self._jobs:
            yield number

    def stop(self, message: str) -> None:
        """Leave no job to take, because one has failed."""
        self._advance(self._jobs, message.encode()[:_MOST])

    def failure(self) -> str:
        """Return the error of the job that failed last, empty if none has."""
        return self._path.read_bytes()[_NEXT.size :].rstrip(b"\0").decode(errors="replace")

    def _advance(self, num_jobs: int, message: bytes = b"") -> int:
        """Return the number of the next job, and move it on."""
        with self._path.open("r+b", buffering=0) as claims_file:
            fcntl.flock(claims_file, fcntl.LOCK_EX)
            (job_number,) = _NEXT.unpack(claims_file.read(_NEXT.size))
            content = _NEXT.pack(job_number + num_jobs) + (message and message.ljust(_MOST, b"\0"))
            os.pwrite(claims_file.fileno(), content, 0)
        return int(job_number)
