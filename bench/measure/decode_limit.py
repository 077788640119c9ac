"""The limit of a loader: decoding the same JPEGs and nothing else. No files, no order, no batches, no trainer.

The processes hold the JPEGs of the mixture's first samples in memory. They decode them in turn into one array of the
size of a batch, because a batch must be written to memory; a buffer of one frame stays in the processor's cache and
would give a limit that no loader can reach. The processes wait between the slices.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import simplejpeg

from bench.measure.child import Team, Turn
from stream.batch.encoded import encoded_frames
from stream.batch.layout import empty_array
from stream.loader.loader import Loader, load_loader, make_loader

PAIRS = 512
"""Number of samples that each thread holds."""
_turns: list[_Turns]


class DecodeLimit(Team):
    """Processes that decode the samples of a loader; use them in a ``with`` statement.

    Args:
        loader: Loader whose first samples are decoded.
        processes: Number of processes.
        threads: Number of threads of each process.

    Raises:
        TeamFailed: A process died, perhaps because memory is short.
        stream.RecordError: A record cannot be read.
    """

    def __init__(self, loader: Loader, *, processes: int, threads: int) -> None:
        super().__init__(processes)
        self._seats = processes
        steps = range(processes * -(-PAIRS * threads // loader.batch_size))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "loader.json")
            loader.save(path)
            self.run(_hold, [(path, steps[number::processes], threads) for number in range(processes)])

    def measure(self, seconds: float) -> Turn:
        """Decode for some seconds; raises TeamFailed."""
        return self.run(_decode, [seconds] * self._seats)


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Measure a slice, for ``ask``: of a ``loader`` (arguments), in some ``processes``, for some ``seconds``."""
    with DecodeLimit(make_loader(**request["loader"]), processes=request["processes"], threads=1) as limit:
        # A short slice first, because its caches are cold.
        limit.measure(min(0.2, request["seconds"]))
        return dataclasses.asdict(limit.measure(request["seconds"]))


def _hold(share: tuple[Path, range, int]) -> int:
    """Read the JPEGs of some steps of a saved loader, divide them among some threads, and return their number."""
    path, steps, threads = share
    loader = load_loader(path, decode="device")
    samples: list[list[bytes]] = []
    for step in steps:
        found: list[list[bytes]] = [[] for _ in range(loader.batch_size)]
        for row, _, jpeg in encoded_frames(loader.batch_at(step)):
            found[row].append(jpeg.tobytes())
        samples += found
    global _turns
    _turns = [_Turns(samples[thread::threads], loader.batch_size) for thread in range(threads)]
    return len(samples)


def _decode(seconds: float) -> int:
    """Decode in all threads for some seconds and return the number of samples."""
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(len(_turns)) as pool:
        return sum(pool.map(lambda turns: turns.run(until), _turns))


class _Turns:
    """The samples of one thread; each slice continues where the last one ended."""

    def __init__(self, samples: list[list[bytes]], rows: int) -> None:
        self._samples = itertools.cycle(samples)
        frame = simplejpeg.decode_jpeg(samples[0][0])
        # Allocated as the loader allocates its batches: the speed of decoding depends on the alignment.
        self._batch = empty_array(rows, "u1", (max(map(len, samples)), *frame.shape))
        self._batch[:] = 0

    def run(self, until: float) -> int:
        """Decode until a time of the monotonic clock and return the number of samples."""
        count = 0
        while time.monotonic() < until:
            for number, frame in enumerate(next(self._samples)):
                simplejpeg.decode_jpeg(frame, buffer=self._batch[count % len(self._batch), number])
            count += 1
        return count
