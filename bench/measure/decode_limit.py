"""The limit of a loader: decoding the same JPEGs and nothing else. No files, no order, no batches, no trainer.

The processes hold the JPEGs of the mixture's first samples in memory. They decode them in turn into one array of the
size of a batch, because a batch must be written to memory; a buffer of one frame stays in the processor's cache and
would give a limit that no loader can reach. The processes wait between the slices.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType

import numpy as np
import simplejpeg

from bench.measure.machine import busy_seconds
from bench.measure.stored_records import StoredRecords
from stream.batch.layout import empty_array
from stream.format.index import SplitIndex
from stream.loader.loader import Loader

PAIRS = 512
"""Number of samples that each thread holds."""

_Held = tuple[Sequence[SplitIndex], list[tuple[int, int]]]
"""Splits, and the samples of a process as number of the split and row of its records."""


class LimitFailed(RuntimeError):
    """A process of the limit that ended early."""


@dataclass(frozen=True, kw_only=True)
class LimitSlice:
    """One slice of decoding alone.

    Attributes:
        pairs: Pairs that all processes decoded.
        seconds: Time of the slowest process.
        pairs_per_s: Rate of all processes together.
        cpu_seconds: CPU time of all processes.
        others_cpu_seconds: CPU time of everything else on the machine.
    """

    pairs: int
    seconds: float
    pairs_per_s: float
    cpu_seconds: float
    others_cpu_seconds: float


class DecodeLimit:
    """Processes that decode the samples of a loader; use them in a ``with`` statement.

    Args:
        loader: Loader whose first samples are decoded.
        processes: Number of processes.
        threads: Number of threads of each process.

    Raises:
        LimitFailed: A process ended, because a record is unreadable or memory is short.
    """

    def __init__(self, loader: Loader, *, processes: int, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._pipes: list[Connection] = []
        try:
            for number in range(processes):
                ours, theirs = context.Pipe()
                held = _share(loader, number, of=processes, pairs=PAIRS * threads)
                process = context.Process(target=_serve, args=(theirs, held, threads, loader.batch_size), daemon=True)
                process.start()
                theirs.close()
                self._processes.append(process)
                self._pipes.append(ours)
            for pipe in self._pipes:
                _receive(pipe)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> DecodeLimit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def measure(self, seconds: float) -> LimitSlice:
        """Decode for some seconds; raises LimitFailed."""
        busy = busy_seconds()
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(seconds)
        shares = [_receive(pipe) for pipe in self._pipes]
        busy = busy_seconds() - busy
        cpu = sum(share[2] for share in shares)
        return LimitSlice(
            pairs=sum(int(share[0]) for share in shares),
            seconds=max(share[1] for share in shares),
            pairs_per_s=sum(share[0] / share[1] for share in shares),
            cpu_seconds=cpu,
            others_cpu_seconds=max(0.0, busy - cpu),
        )

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.terminate()
            process.join()


def _share(loader: Loader, number: int, *, of: int, pairs: int) -> _Held:
    """Return the samples of every ``of``-th batch from batch ``number`` on, about ``pairs``, in storage order."""
    held: set[tuple[int, int]] = set()
    plan, batch_size = loader.data.plan, loader.batch_size
    for step in range(number, number + of * -(-pairs // batch_size), of):
        rows = plan.rows(plan.batch_samples(step, batch_size))
        held.update(zip(rows.split.tolist(), rows.record.tolist(), strict=True))
    return loader.data.views.splits, sorted(held)


def _receive(pipe: Connection) -> tuple[float, float, float]:
    try:
        answer = pipe.recv()
    except (EOFError, OSError):
        raise LimitFailed("a process that decodes alone died; is there enough memory?") from None
    if isinstance(answer, str):
        raise LimitFailed(f"decoding alone: {answer}")
    pairs, seconds, cpu = answer
    return pairs, seconds, cpu


def _serve(pipe: Connection, held: _Held, threads: int, rows: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        samples = _read(*held)
        # Shuffled, because a slice in storage order would decode only the first datasets.
        order = np.random.default_rng(0).permutation(len(samples)).tolist()
        shares = [[samples[place] for place in order[thread::threads]] for thread in range(threads)]
        turns = [_Turns(share, rows) for share in shares]
        pipe.send((len(samples), 0.0, 0.0))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        return
    with contextlib.suppress(EOFError, OSError), ThreadPoolExecutor(threads) as pool:
        while True:
            seconds = pipe.recv()
            start, cpu = time.monotonic(), time.process_time()
            pairs = sum(pool.map(_Turns.run, turns, [start + seconds] * threads))
            pipe.send((pairs, time.monotonic() - start, time.process_time() - cpu))


def _read(splits: Sequence[SplitIndex], records: Sequence[tuple[int, int]]) -> list[list[bytes]]:
    stored = StoredRecords(splits)
    return [[bytes(frame) for frame in stored.frames(split, row)] for split, row in records]


class _Turns:
    """The samples of one thread; each slice continues where the last one ended."""

    def __init__(self, samples: list[list[bytes]], rows: int) -> None:
        self._samples = samples
        self._next = 0
        frame = simplejpeg.decode_jpeg(samples[0][0])
        # Allocated as the loader allocates its batches: the speed of decoding depends on the alignment.
        self._batch = empty_array(rows, "u1", (max(map(len, samples)), *frame.shape))
        self._batch[:] = 0

    def run(self, until: float) -> int:
        """Decode until a time of the monotonic clock and return the number of samples."""
        samples, batch, place = self._samples, self._batch, self._next
        count = 0
        while time.monotonic() < until:
            row = batch[count % len(batch)]
            for number, frame in enumerate(samples[place]):
                simplejpeg.decode_jpeg(frame, buffer=row[number])
            place = (place + 1) % len(samples)
            count += 1
        self._next = place
        return count
