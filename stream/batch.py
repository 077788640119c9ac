"""From records to arrays: reads, decodes and lays out one batch."""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import simplejpeg

from stream.encoded import pack_frames
from stream.errors import LimitError, RecordError, RingError
from stream.format import FormatError, frame_views
from stream.lookahead import Lookahead
from stream.metadata import Described, Describer
from stream.point_lookup import PointLookup, RecordPlace, read_closed
from stream.record_reader import Place, RecordMemory
from stream.ring import available_memory, empty_array
from stream.rows import Rows, Share
from stream.shard_cache import ShardCache
from stream.shards import OpenShard
from stream.spec import BatchSpec, Decode

_RUN = 64
_LARGE = 256 << 20
_KEPT_MEMORY = 64 << 20
"""Memory for records larger than that is not kept."""
_FILES = "raise the limit on open files (ulimit -n), or let go of batches that were kept"
_LIMITS = {
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENOMEM: "take fewer workers, or raise the limit on memory",
}
"""Errors of opening a file that say nothing of the file, and what to do."""
_Record = tuple[int, Sequence[memoryview]]
"""A row, and its encoded frames."""


Kind = Literal["read", "decode", "metadata"]


Stretch = tuple[int, int, Kind, float, float]
"""What a Span has; messages carry it as it is."""


class Span(NamedTuple):
    """A stretch of work: by which process and thread, of what, and when, in seconds of ``time.perf_counter``, which all
    processes of a Linux machine share."""

    process: int
    thread: int
    kind: Kind
    start: float
    stop: float


class _Here(threading.local):
    """This process and thread; asking the kernel for them takes longer than all else of a note."""

    def __init__(self) -> None:
        self.ask()

    def ask(self) -> None:
        self.process, self.thread = os.getpid(), threading.get_native_id()


_here = _Here()
os.register_at_fork(after_in_child=_here.ask)


@dataclass
class Work:
    """What assembling a batch took: its stretches, some for each run of rows, and bytes of records."""

    noted: list[Stretch] = field(default_factory=list)
    bytes: int = 0

    @property
    def spans(self) -> list[Span]:
        """The stretches."""
        return [Span(*span) for span in self.noted]

    def add(self, other: Work) -> None:
        """Add another's."""
        self.noted += other.noted
        self.bytes += other.bytes

    def note(self, kind: Kind, start: float, stop: float) -> None:
        """Add a stretch of the thread that calls."""
        self.noted.append((_here.process, _here.thread, kind, start, stop))

    def seconds(self) -> dict[str, float]:
        """Seconds of each kind, added over threads and processes."""
        found = {"read": 0.0, "decode": 0.0, "metadata": 0.0}
        for _, _, kind, start, stop in self.noted:
            found[kind] += stop - start
        return found


@dataclass
class Assembled:
    """What came out beside the arrays that were filled: texts and arrays of no fixed size by key, the rows that failed,
    and the work."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    failed: list[tuple[int, RecordError]] = field(default_factory=list)
    work: Work = field(default_factory=Work)

    def moved(self, start: int) -> Assembled:
        """With the failed rows counted from ``start`` rows before."""
        self.failed = [(start + row, error) for row, error in self.failed]
        return self


@dataclass
class Begun:
    """A batch that is being assembled: the first of its records are read, and its frames are still to be decoded.

    shards: of its rows. lie: where their records do, None where that is not known. records: that are read and not
    decoded yet, to ``memory``. closed: shards that are not opened for it if that can be helped. places: of rows in
    these, where their records lie.
    """

    rows: Rows
    out: Mapping[str, np.ndarray]
    shards: list[int]
    lie: list[Place | None]
    memory: RecordMemory
    records: list[_Record] = field(default_factory=list)
    closed: set[int] = field(default_factory=set)
    places: dict[int, RecordPlace] = field(default_factory=dict)
    done: Assembled = field(default_factory=Assembled)

    @property
    def broken(self) -> set[int]:
        """Rows that failed."""
        return {row for row, _ in self.done.failed}


class Assembler:
    """Assembles batches of a spec; one a process, safe to use from several threads.

    Args:
        spec: what a batch holds.
        decode: ``host`` decodes the frames here; with ``device`` they stay encoded (``stream.encoded``).
        threads: rows of a batch are shared out to so many threads.
        max_open: of the cache of shards.
    """

    def __init__(
        self, spec: BatchSpec, *, decode: Decode = "host", threads: int = 1, max_open: int | None = None
    ) -> None:
        self.spec = spec
        self.fields = spec.fields()
        if decode == "device":
            del self.fields["frames"]
        self._cache = ShardCache(spec.shards, max_open=max_open)
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stream-decode") if threads > 1 else None
        self._memories: list[RecordMemory] = []
        self._lookup = PointLookup(spec, self._cache)
        self._describer = Describer(spec, self._cache, self._lookup) if spec.metadata == "full" else None
        self._most_frames = max(spec.num_frames)
        # Not a method: who keeps that keeps all of this, and its open files.
        self._identify = partial(_identify, np.arange(self._most_frames) < np.array(spec.num_frames)[:, None])
        self._lookahead: Lookahead | None = None
        if self._describer is not None and not spec.columns:
            beside = {name: field for name, field in self.fields.items() if name != "frames"}
            self._lookahead = Lookahead(self._describer, beside, self._identify)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def empty(self, rows: int) -> dict[str, np.ndarray]:
        """Make the arrays of a batch, not initialised; raises RingError if memory is short."""
        needed = sum(rows * math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape in self.fields.values())
        try:
            # What numpy promises is taken page by page later, when it is too late to refuse.
            if needed > _LARGE and needed > (available_memory() or needed):
                raise MemoryError
            return {name: empty_array(rows, dtype, shape) for name, (dtype, shape) in self.fields.items()}
        except (MemoryError, ValueError):
            raise RingError(f"a batch of {rows} rows needs {needed:,} bytes, which are not to be had") from None

    def assemble(self, rows: Rows, out: Mapping[str, np.ndarray]) -> Assembled:
        """Fill the arrays of a batch.

        Args:
            rows: where the samples come from, b of them.
            out: an array [b, ...] for each of ``fields``; all of it is written.

        Returns:
            the texts, and the rows that could not be read, whose arrays hold anything.
        """
        return self.finish(self.begin(rows, out))

    def plan(self, step: int, rows: Rows, *, steps: int) -> None:
        """Take note of the rows of so many steps, whole batches, from this one on: that they were planned together."""
        if self._lookahead is not None:
            self._lookahead.plan(step, rows, steps=steps)

    def begin(self, rows: Rows, out: Mapping[str, np.ndarray], *, planned: tuple[int, Share] | None = None) -> Begun:
        """Do what comes before decoding: the metadata, and reading the first records; ``finish`` does the rest.

        Whoever has several batches to assemble begins all of them first: decoding a frame empties the processor's
        caches, which this then has to fill again. Two at a time make 1.02 of the batches a second, in 0.98 of the CPU
        time (60 rounds in turns).

        Args:
            rows, out: see ``assemble``.
            planned: of which step these are which rows, if they are those that ``plan`` was told.
        """
        began = time.perf_counter()
        begun = Begun(rows, out, rows.shard.tolist(), [None] * len(rows), self._take_memory())
        # Further columns are taken of open shards.
        if not self.spec.columns:
            begun.closed = self._cache.not_worth_opening(begun.shards)
        done = begun.done
        middle = began
        if self._describer is None:
            self._identify(rows, out)
        else:
            done.texts, begun.lie = self._describe(self._describer, begun, planned)
            middle = time.perf_counter()
            done.work.note("metadata", began, middle)
        if "frames" not in self.fields:
            records = self._read(range(len(rows)), begun, done, begun.memory)
            done.arrays = pack_frames(records, len(rows), self._most_frames)
        elif self._pool is None:
            begun.records = self._read(range(min(_RUN, len(rows))), begun, done, begun.memory)
        done.work.note("read", middle, time.perf_counter())
        return begun

    def _describe(self, describer: Describer, begun: Begun, planned: tuple[int, Share] | None) -> Described:
        if planned is not None and self._lookahead is not None:
            described = self._lookahead.describe(*planned, begun.out)
            if described is not None:
                return described
        self._identify(begun.rows, begun.out)
        fail = partial(self._fail, begun, begun.done)
        return describer.describe(begun.rows, begun.out, fail, begun.closed, begun.places)

    def finish(self, begun: Begun) -> Assembled:
        """Decode what ``begin`` read, and read and decode the rest."""
        done, count = begun.done, len(begun.rows)
        if "frames" not in self.fields:
            pass
        elif self._pool is None:
            self._decode(begun.records, begun, done)
            self._read_and_decode(range(_RUN, count), begun, done)
        else:
            parts = [Assembled() for _ in range(self._threads)]
            shares = [range(i, count, self._threads) for i in range(self._threads)]
            list(self._pool.map(self._read_and_decode, shares, [begun] * len(parts), parts))
            for part in parts:
                done.failed += part.failed
                done.work.add(part.work)
        begun.records.clear()
        self._give_memory(begun.memory)
        done.failed.sort(key=lambda failure: failure[0])
        return done

    def _take_memory(self) -> RecordMemory:
        try:
            return self._memories.pop()
        except IndexError:
            return RecordMemory()

    def _give_memory(self, memory: RecordMemory) -> None:
        if len(memory) <= _KEPT_MEMORY:
            memory.clear()
            self._memories.append(memory)

    def _read_and_decode(self, chosen: range, begun: Begun, done: Assembled) -> None:
        """Read and decode some rows, in runs: all records of a run are read, then all of its frames decoded. It is 4 %
        slower as a whole when reading and decoding take turns record by record."""
        for start in range(0, len(chosen), _RUN):
            began = time.perf_counter()
            memory = self._take_memory()
            records = self._read(chosen[start : start + _RUN], begun, done, memory)
            done.work.note("read", began, time.perf_counter())
            self._decode(records, begun, done)
            self._give_memory(memory)

    def _read(self, chosen: range, begun: Begun, done: Assembled, memory: RecordMemory) -> list[_Record]:
        found: list[_Record] = []
        rows, broken = begun.rows, begun.broken
        cut = slice(chosen.start, chosen.stop, chosen.step)
        places = zip(
            chosen,
            begun.shards[cut],
            rows.record[cut].tolist(),
            rows.member[cut].tolist(),
            begun.lie[cut],
            strict=True,
        )
        cache, closed, known, num_frames = self._cache, begun.closed, begun.places, self.spec.num_frames
        size = 0
        for row, index, record, member, place in places:
            if row in broken:
                continue
            try:
                if index in closed:
                    data = self._closed_record(index, record, known.get(row))
                else:
                    data = cache[index].file.read(record, place, memory)
                frames = frame_views(data)
                if len(frames) != num_frames[member]:
                    raise FormatError(f"holds {len(frames)} frames, expected {num_frames[member]}")
            except (FormatError, OSError) as error:
                self._fail(begun, done, row, error)
                continue
            found.append((row, frames))
            size += len(data)
        done.work.bytes += size
        return found

    def _closed_record(self, shard: int, record: int, place: RecordPlace | None) -> bytes | memoryview:
        """Read a record of a shard that is not worth being open; ``place`` says where it lies, if that is known."""
        place = place or self._lookup.find(shard, record)
        data = read_closed(place) if place is not None else None
        # Who opens it finds out what is not as it was.
        return self._cache[shard].file.read(record) if data is None else data

    def _decode(self, records: Sequence[_Record], begun: Begun, done: Assembled) -> None:
        """Decode the frames of some rows, each to its place."""
        began = time.perf_counter()
        decode, shape = simplejpeg.decode_jpeg, (*self.spec.frame_shape, 3)
        images, most = begun.out["frames"], self._most_frames
        for row, frames in records:
            image = images[row]
            if len(frames) < most:
                image[len(frames) :] = 0
            try:
                for jpeg, place in zip(frames, image, strict=False):
                    decoded = decode(jpeg, buffer=place)
                    if decoded.shape != shape:
                        raise ValueError(f"it is {decoded.shape}, the manifest says {shape}")
            except ValueError as error:
                self._fail(begun, done, row, FormatError(f"a frame cannot be decoded ({error})"))
        done.work.note("decode", began, time.perf_counter())

    def _fail(self, begun: Begun, done: Assembled, row: int, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno in _LIMITS:
            # Nothing is wrong with the record, so nothing may stand in for it.
            raise LimitError(
                f"{error.filename or 'a shard'} cannot be opened: {error.strerror}; {_LIMITS[error.errno]}"
            )
        index, record, sample = (
            int(values[row]) for values in (begun.rows.shard, begun.rows.record, begun.rows.sample)
        )
        shard = self._cache[index]
        self._cache.forget(index)
        done.failed.append((row, _error(shard, record, sample, error)))


def _identify(frames_mask: np.ndarray, rows: Rows, out: Mapping[str, np.ndarray]) -> None:
    """Fill what the rows say themselves; ``frames_mask`` is that of each member, bool [M, F]."""
    out["sample"][:] = rows.sample
    if "dataset" in out:
        out["dataset"][:] = rows.member
    if "frames_mask" in out:
        frames_mask.take(rows.member, axis=0, out=out["frames_mask"], mode="clip")


def _error(shard: OpenShard, record: int, sample: int, error: Exception) -> RecordError:
    info = shard.info
    try:
        episode = info.first_episode + int(shard.records["episode"][record])
    except (FormatError, OSError, IndexError):
        episode = -1
    return RecordError(
        str(error),
        dataset=info.dataset,
        split=info.split,
        shard=info.stem,
        record=record,
        episode=episode,
        sample=sample,
    )
