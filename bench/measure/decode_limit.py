"""The limit of a loader: the same JPEGs decoded and nothing else. No files, no order, no batches, no trainer.

The processes hold the JPEGs of the mixture's first samples in memory and decode them in turn into one array as large as
a batch, used again and again: a batch has to be written to memory, and a buffer of one frame, which stays in the
processor's cache, would be a limit that no loader can come near. Between the slices that are measured they wait.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import statistics
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
"""So many samples are held by each thread."""

_Held = tuple[Sequence[SplitIndex], list[tuple[int, int]]]
"""Splits, and the samples of a process: number of the split, row of its records."""


class LimitFailed(RuntimeError):
    """A process of the limit ended before its time."""


@dataclass(frozen=True, kw_only=True)
class LimitSlice:
    """What was decoded in one slice.

    pairs_per_s: of all processes together. cpu_seconds: CPU time of all; others_cpu_seconds: of everything else on the
    machine.
    """

    pairs: int
    seconds: float
    pairs_per_s: float
    cpu_seconds: float
    others_cpu_seconds: float


class DecodeLimit:
    """Processes that decode the samples of a loader; to be closed, or used in a ``with`` statement.

    Args:
        loader: whose samples, from the first on.
        processes: how many.
        threads: of each.

    Raises:
        LimitFailed: a process ended, because a record cannot be read or memory is short.
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
        """Decode for so long; raises LimitFailed."""
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


def decode_costs(loader: Loader, *, pairs: int = 24) -> list[dict[str, float]]:
    """Return of each dataset what its first pairs cost in this thread: ``decode_ms`` and ``bytes`` of a pair, medians.

    Raises:
        FormatError, OSError: a record cannot be read.
    """
    costs = []
    buffer: np.ndarray | None = None
    splits = loader.data.views.splits
    for member in range(len(loader.dataset_names)):
        number = next(n for n, split in enumerate(splits) if split.member == member and len(split.records))
        times, sizes = [], []
        for sample in _read(splits, [(number, row) for row in range(min(pairs, len(splits[number].records)))]):
            began = time.perf_counter()
            for frame in sample:
                buffer = simplejpeg.decode_jpeg(frame, buffer=buffer)
            times.append(time.perf_counter() - began)
            sizes.append(sum(map(len, sample)))
        costs.append({"decode_ms": 1000 * statistics.median(times), "bytes": float(statistics.median(sizes))})
    return costs


def _share(loader: Loader, number: int, *, of: int, pairs: int) -> _Held:
    """Every ``of``-th batch from the ``number``-th on, until there are ``pairs`` samples, in the order of the files."""
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
        # Shuffled: neighbours are of one dataset, and a slice must not end with only the first ones decoded.
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
    """The share of one thread; each slice goes on where the last one ended."""

    def __init__(self, samples: list[list[bytes]], rows: int) -> None:
        self._samples = samples
        self._next = 0
        frame = simplejpeg.decode_jpeg(samples[0][0])
        # Where a loader's would lie: decoding is slower at other addresses.
        self._batch = empty_array(rows, "u1", (max(map(len, samples)), *frame.shape))
        self._batch[:] = 0

    def run(self, until: float) -> int:
        """Decode until that time of the monotonic clock; returns how many samples."""
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
