"""The limit of a loader: decoding the same frames and nothing else. No files, no order, no batches, no trainer.

The processes hold the frames of the mixture's first samples in memory. They decode them in turn into one array of the
size of a batch, because a batch must be written to memory; a buffer of one frame stays in the processor's cache and
would give a limit that no loader can reach. The processes wait between the slices.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.measure.child import Team, Turn
from stream.batch.assemble import Assembler
from stream.batch.layout import empty_array
from stream.format.frame import decode_frame
from stream.format.video import ChunkFrame
from stream.loader.loader import Loader
from stream.loader.open_mixture import OpenMixture
from stream.loader.opening import make_loader
from stream.loader.sample_spec import SampleSpec
from stream.order.mixture import Mixture
from stream.storage.remote import CachedRoot

PAIRS = 512
"""Number of samples that each thread holds."""
_turns: list[_Turns]


class DecodeLimit(Team):
    """Processes that decode the samples of a loader; use them in a ``with`` statement."""

    def __init__(self, loader: Loader, *, processes: int, threads: int) -> None:
        super().__init__(processes)
        self._seats = processes
        data, rows = loader.data, loader.batch_size
        options = dataclasses.replace(data.sample_spec, action=None, state=None, language=None, columns=())
        steps = range(processes * -(-PAIRS * threads // rows))
        common = (data.root, data.mixture, options, rows, threads)
        self.run(_hold, [(*common, steps[number::processes]) for number in range(processes)])

    def measure(self, seconds: float) -> Turn:
        """Decode for some seconds; raises BenchFailed."""
        return self.run(_decode, [seconds] * self._seats)


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Measure a slice, for ``ask``: of a ``loader`` (arguments), in some ``processes``, for some ``seconds``."""
    with DecodeLimit(make_loader(**request["loader"]), processes=request["processes"], threads=1) as limit:
        # A short slice first, because its caches are cold.
        limit.measure(min(0.2, request["seconds"]))
        return dataclasses.asdict(limit.measure(request["seconds"]))


def _hold(share: tuple[Path | CachedRoot, Mixture, SampleSpec, int, int, range]) -> int:
    """Read the JPEGs of some steps, divide their samples among the threads, and return their number."""
    root, mixture, options, num_rows, threads, steps = share
    data = OpenMixture(root, mixture, options, batch_size=num_rows)
    assembler = Assembler(data.spec)
    samples = []
    for step in steps:
        rows = data.plan.rows(data.plan.batch_samples(step, num_rows))
        samples += [
            [(camera, frame, _own(stored)) for camera, frame, stored in frames]
            for _, frames in assembler.encoded_rows(rows)
        ]
    shapes = [(max(data.spec.num_frames), *camera.shape, 3) for camera in data.spec.cameras]
    global _turns
    _turns = [_Turns(samples[thread::threads], shapes, num_rows) for thread in range(threads)]
    return len(samples)


def _own(stored: Any) -> bytes | ChunkFrame:
    """Return a stored frame that keeps no more than itself in memory."""
    return dataclasses.replace(stored, chunk=bytes(stored.chunk)) if isinstance(stored, ChunkFrame) else bytes(stored)


def _decode(seconds: float) -> int:
    """Decode in all threads for some seconds and return the number of samples."""
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(len(_turns)) as pool:
        return sum(pool.map(lambda turns: turns.run(until), _turns))


class _Turns:
    """The samples of one thread; each slice continues where the last one ended."""

    def __init__(
        self, samples: list[list[tuple[int, int, bytes | ChunkFrame]]], shapes: Sequence[tuple[int, ...]], rows: int
    ) -> None:
        self._samples = itertools.cycle(samples)
        self._rows = rows
        # Allocated as the loader allocates its batches: the speed of decoding depends on the alignment.
        self._batch = [empty_array(rows, "u1", shape) for shape in shapes]
        for camera in self._batch:
            camera[:] = 0

    def run(self, until: float) -> int:
        """Decode until a time of the monotonic clock and return the number of samples."""
        count = 0
        while time.monotonic() < until:
            for camera, number, jpeg in next(self._samples):
                decode_frame(jpeg, self._batch[camera][count % self._rows, number])
            count += 1
        return count
