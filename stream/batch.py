"""From records to arrays: reads, decodes and lays out one batch."""

from __future__ import annotations

import errno
import itertools
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import simplejpeg

from stream.columns import Column
from stream.encoded import pack_frames
from stream.errors import LimitError, RecordError, RingError
from stream.format import FormatError, frame_spans
from stream.ring import available_memory, empty_array
from stream.rows import Rows
from stream.shards import OpenShard, ShardCache, ShardInfo
from stream.tables import Budget, ShardTables
from stream.vectors import Reduction, Vector, gather, gather_row, mode_codes, reduce_window

Metadata = Literal["full", "dataset_only", "none"]
METADATA: tuple[Metadata, ...] = ("full", "dataset_only", "none")
Batch = dict[str, Any]

Decode = Literal["host", "device"]
DECODE: tuple[Decode, ...] = ("host", "device")

_RUN = 64
_LARGE = 256 << 20
_FILES = "raise the limit on open files (ulimit -n), or let go of batches that were kept"
_LIMITS = {
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENOMEM: "take fewer workers, or raise the limit on memory",
}
"""Errors of opening a file that say nothing of the file, and what to do."""
_Record = tuple[int, bytes | memoryview, list[tuple[int, int]]]
"""A row, its record, and where in it the frames begin and end."""


@dataclass(frozen=True, kw_only=True)
class BatchSpec:
    """What a batch holds; the same in the trainer and in every worker.

    shards: of all members. num_frames: frames of a record, by member. frame_shape: (height, width) of all. actions,
    states:
    the vector of each member. horizon: steps of the action windows; None takes the steps of the pair. offset: the
    largest of the mixture, in steps. action: how windows are reduced.
    """

    datasets: tuple[str, ...]
    shards: Sequence[ShardInfo]
    num_frames: tuple[int, ...]
    frame_shape: tuple[int, int]
    metadata: Metadata
    actions: tuple[Vector, ...]
    states: tuple[Vector, ...]
    action: Reduction
    horizon: int | None
    offset: int
    columns: tuple[Column, ...]

    @property
    def action_size(self) -> int:
        """A: dimensions of the largest action."""
        return max(vector.size for vector in self.actions)

    @property
    def state_size(self) -> int:
        """S: dimensions of the largest state."""
        return max(vector.size for vector in self.states)

    @property
    def window(self) -> int:
        """W: steps of an action window."""
        return self.horizon or self.offset

    def fields(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type and shape (of one row) of each array of a batch, in order."""
        frames = max(self.num_frames)
        fields: dict[str, tuple[str, tuple[int, ...]]] = {"frames": ("u1", (frames, *self.frame_shape, 3))}
        if len(set(self.num_frames)) > 1:
            fields["frames_mask"] = ("?", (frames,))
        fields["sample"] = ("i8", ())
        if self.metadata != "none":
            fields["dataset"] = ("i4", ())
        if self.metadata == "full":
            action = (self.window, self.action_size) if self.action == "window" else (self.action_size,)
            fields |= {
                "action": ("f4", action),
                "action_mask": ("?", action),
                "state": ("f4", (self.state_size,)),
                "state_mask": ("?", (self.state_size,)),
                "episode": ("i8", ()),
                "step": ("i8", ()),
                "offset": ("i8", ()),
            }
            for column in self.columns:
                if column.dtype is not None:
                    fields[column.name] = (column.dtype, column.shape)
                    fields[f"{column.name}_mask"] = ("?", column.shape)
        return fields


class Span(NamedTuple):
    """A stretch of work: by which process and thread, of what (``read``, ``decode`` or ``metadata``), and when, in
    seconds of ``time.perf_counter``, which all processes of a Linux machine share."""

    process: int
    thread: int
    kind: Literal["read", "decode", "metadata"]
    start: float
    stop: float


@dataclass
class Work:
    """What assembling a batch took: its stretches, some for each run of rows, and bytes of records."""

    spans: list[Span] = field(default_factory=list)
    bytes: int = 0

    def add(self, other: Work) -> None:
        """Add another's."""
        self.spans += other.spans
        self.bytes += other.bytes

    def note(self, kind: Literal["read", "decode", "metadata"], start: float, stop: float) -> None:
        """Add a stretch of the thread that calls."""
        self.spans.append(Span(os.getpid(), threading.get_native_id(), kind, start, stop))

    def seconds(self, kind: str) -> float:
        """Seconds of a kind, added over threads and processes."""
        return sum(span.stop - span.start for span in self.spans if span.kind == kind)


@dataclass
class Assembled:
    """What came out beside the arrays that were filled: texts and arrays of no fixed size by key, the rows that failed,
    and the work."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    failed: list[tuple[int, RecordError]] = field(default_factory=list)
    work: Work = field(default_factory=Work)


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
        self._budget = Budget()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stream-decode") if threads > 1 else None
        self._window, self._action_size, self._state_size = spec.window, spec.action_size, spec.state_size
        self._action_dims = np.array([vector.size for vector in spec.actions])
        self._state_dims = np.array([vector.size for vector in spec.states])
        self._modes = np.stack([mode_codes(vector, self._action_size) for vector in spec.actions])

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
        done = Assembled()
        if "frames" not in self.fields:
            began = time.perf_counter()
            done.arrays = pack_frames(self._read(range(len(rows)), rows, done), len(rows), max(self.spec.num_frames))
            done.work.note("read", began, time.perf_counter())
        elif self._pool is None:
            self._decode(range(len(rows)), rows, out, done)
        else:
            parts = [Assembled() for _ in range(self._threads)]
            shares = [range(i, len(rows), self._threads) for i in range(self._threads)]
            list(self._pool.map(self._decode, shares, [rows] * len(parts), [out] * len(parts), parts))
            for part in parts:
                done.failed += part.failed
                done.work.add(part.work)
        out["sample"][:] = rows.sample
        if "dataset" in out:
            out["dataset"][:] = rows.member
        if "frames_mask" in out:
            out["frames_mask"][:] = (
                np.arange(max(self.spec.num_frames)) < np.array(self.spec.num_frames)[rows.member, None]
            )
        if self.spec.metadata == "full":
            began = time.perf_counter()
            self._describe(rows, out, done)
            done.work.note("metadata", began, time.perf_counter())
        done.failed.sort(key=lambda failure: failure[0])
        return done

    def _decode(self, chosen: range, rows: Rows, out: Mapping[str, np.ndarray], done: Assembled) -> None:
        """Read and decode some rows, in runs: all records of a run are read, then all of its frames decoded.

        Decoding a frame empties the processor's caches, so what runs between two frames costs several times what it
        does in a loop of its own: 4 % of the whole when reading and decoding took turns.
        """
        images = out["frames"]
        most = images.shape[1]
        places = list(itertools.chain.from_iterable(images))
        for start in range(0, len(chosen), _RUN):
            began = time.perf_counter()
            frames = []
            for row, data, spans in self._read(chosen[start : start + _RUN], rows, done):
                view, place = memoryview(data), row * most
                for begin, end in spans:
                    frames.append((view[begin:end], places[place], row))
                    place += 1
                if len(spans) < most:
                    images[row, len(spans) :] = 0
            middle = time.perf_counter()
            self._decode_frames(frames, rows, done)
            done.work.note("read", began, middle)
            done.work.note("decode", middle, time.perf_counter())

    def _read(self, chosen: range, rows: Rows, done: Assembled) -> list[_Record]:
        found: list[_Record] = []
        cut = slice(chosen.start, chosen.stop, chosen.step)
        places = zip(
            chosen, rows.shard[cut].tolist(), rows.record[cut].tolist(), rows.member[cut].tolist(), strict=True
        )
        cache, num_frames = self._cache, self.spec.num_frames
        size = 0
        for row, index, record, member in places:
            try:
                data = cache[index].read(record)
                spans = frame_spans(data)
                if len(spans) != num_frames[member]:
                    raise FormatError(f"holds {len(spans)} frames, expected {num_frames[member]}")
            except (FormatError, OSError) as error:
                self._fail(row, rows, error, done)
                continue
            found.append((row, data, spans))
            size += len(data)
        done.work.bytes += size
        return found

    def _decode_frames(self, frames: list[tuple[memoryview, np.ndarray, int]], rows: Rows, done: Assembled) -> None:
        """Decode frames, each to its place (uint8 [H, W, 3]); its row comes last."""
        shape = (*self.spec.frame_shape, 3)
        decode = simplejpeg.decode_jpeg
        failed = -1
        for jpeg, target, row in frames:
            if row == failed:
                continue
            try:
                decoded = decode(jpeg, buffer=target)
                if decoded.shape != shape:
                    raise ValueError(f"it is {decoded.shape}, the manifest says {shape}")
            except ValueError as error:
                failed = row
                self._fail(row, rows, FormatError(f"a frame cannot be decoded ({error})"), done)

    def _fail(self, row: int, rows: Rows, error: Exception, done: Assembled) -> None:
        if isinstance(error, OSError) and error.errno in _LIMITS:
            # Nothing is wrong with the record, so nothing may stand in for it.
            raise LimitError(
                f"{error.filename or 'a shard'} cannot be opened: {error.strerror}; {_LIMITS[error.errno]}"
            )
        index = int(rows.shard[row])
        shard = self._cache[index]
        self._cache.forget(index)
        done.failed.append((row, self._error(shard, int(rows.record[row]), int(rows.sample[row]), error)))

    def _describe(self, rows: Rows, out: Mapping[str, np.ndarray], done: Assembled) -> None:
        spec = self.spec
        count, horizon = len(rows), spec.horizon
        broken = {row for row, _ in done.failed}
        reduced = spec.action != "window"
        window = np.empty((count, self._window, self._action_size), np.float32) if reduced else out["action"]
        window[:] = 0
        state = out["state"]
        state[:] = 0
        steps = [0] * count
        places = [(0, 0, 0)] * count
        language = [""] * count
        texts: dict[str, list[str]] = {column.name: [""] * count for column in spec.columns if column.dtype is None}
        for column in spec.columns:
            if column.dtype is not None:
                out[column.name][:] = 0
                out[f"{column.name}_mask"][:] = False
        with np.errstate(over="ignore", invalid="ignore"):
            for row, (index, record) in enumerate(zip(rows.shard.tolist(), rows.record.tolist(), strict=True)):
                shard = self._cache[index]
                try:
                    tables = self._tables(shard)
                    step_row, episode, step, offset = tables.place(record)
                    length = offset if horizon is None else min(horizon, tables.num_steps.item(episode) - step)
                    gather(tables.action, step_row, step_row + length, window[row])
                    gather_row(tables.state, step_row, state[row])
                    steps[row] = length
                    places[row] = (shard.info.first_episode + episode, step, offset)
                    language[row] = tables.language(step_row)
                    for column, (kind, values, valid) in zip(spec.columns, tables.columns, strict=True):
                        place = {"episodes": episode, "steps": step_row, "records": record}.get(kind or "")
                        if place is None or (valid is not None and not valid[place]):
                            continue
                        if column.dtype is None:
                            texts[column.name][row] = values[place].as_py() or ""
                        elif column.size is None:
                            out[column.name][row] = values[place, 0]
                            out[f"{column.name}_mask"][row] = True
                        else:
                            out[column.name][row, : values.shape[1]] = values[place]
                            out[f"{column.name}_mask"][row, : values.shape[1]] = True
                except (FormatError, OSError) as error:
                    if row not in broken:
                        self._fail(row, rows, error, done)
        member = rows.member
        real = np.array(steps, np.int64)
        real_steps = np.arange(self._window) < real[:, None]
        action_dims = np.arange(self._action_size) < self._action_dims[member, None]
        if reduced:
            out["action"][:] = reduce_window(window, real, spec.action, self._modes[member])
            out["action_mask"][:] = action_dims
        else:
            np.logical_and(real_steps[:, :, None], action_dims[:, None], out=out["action_mask"])
        np.less(np.arange(self._state_size), self._state_dims[member, None], out=out["state_mask"])
        out["episode"][:], out["step"][:], out["offset"][:] = np.array(places, np.int64).T
        done.texts = {"language": language, **texts}

    def _tables(self, shard: OpenShard) -> ShardTables:
        tables = shard.prepared
        if not isinstance(tables, ShardTables):
            spec, member = self.spec, shard.info.member
            tables = shard.prepared = ShardTables(
                shard,
                action=spec.actions[member],
                state=spec.states[member],
                columns=spec.columns,
                offset=spec.offset,
                budget=self._budget,
            )
        return tables

    def _error(self, shard: OpenShard, record: int, sample: int, error: Exception) -> RecordError:
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
