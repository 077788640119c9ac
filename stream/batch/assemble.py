"""From rows to arrays: look up, read and decode one batch."""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial

import numpy as np
import simplejpeg

from stream.batch.encoded import pack_frames
from stream.batch.layout import empty_array
from stream.batch.lookup import Located, Lookup
from stream.batch.spec import BatchSpec, Decode
from stream.format.index import SplitIndex
from stream.format.names import frame_views
from stream.format.record_file import RecordFile
from stream.order.rows import Rows
from stream.storage.errors import FormatError, LimitError, RecordError, RingError
from stream.storage.memory import available_memory

_RUN = 64
"""Records that are read before their frames are decoded."""
_LARGE = 256 << 20
_MAX_OPEN = 1024
_FILES = "raise the limit on open files (ulimit -n), or let go of batches that were kept"
_LIMITS = {
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENOMEM: "take fewer workers, or raise the limit on memory",
}
"""Errors of opening a file that say nothing of the file, and what to do."""
_Record = tuple[int, Sequence[memoryview]]
"""A row, and its encoded frames."""


@dataclass
class Work:
    """The work of assembling batches.

    Attributes:
        read_s, decode_s, metadata_s: Seconds, added over threads.
        bytes: Bytes of records.
    """

    read_s: float = 0.0
    decode_s: float = 0.0
    metadata_s: float = 0.0
    bytes: int = 0

    def add(self, other: Work) -> None:
        """Add other work."""
        for name, amount in vars(other).items():
            setattr(self, name, getattr(self, name) + amount)


@dataclass
class Assembled:
    """What a batch has beside the arrays that were filled.

    Attributes:
        texts: Texts by key.
        arrays: Arrays of no fixed size by key.
        failed: Rows that could not be read.
        work: See ``Work``.
    """

    texts: dict[str, list[str]] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    failed: list[tuple[int, RecordError]] = field(default_factory=list)
    work: Work = field(default_factory=Work)


class Assembler:
    """Assembles batches of a spec; one a process, safe to use from several threads.

    Args:
        spec: What a batch holds.
        decode: ``host`` decodes the frames here; with ``device`` they stay encoded (``stream.batch.encoded``).
        threads: Threads that share the rows of a batch.
        max_open: Most ArrayRecord files that stay open.
    """

    def __init__(
        self, spec: BatchSpec, *, decode: Decode = "host", threads: int = 1, max_open: int | None = None
    ) -> None:
        self.spec = spec
        self.fields = spec.fields()
        if decode == "device":
            del self.fields["frames"]
        # A file that falls out of the cache closes when the last thread lets go of it.
        self._open = lru_cache(max_open or default_max_open())(partial(_open_file, spec.splits))
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stream-decode") if threads > 1 else None
        self._lookup = Lookup(spec)
        self._most_frames = max(spec.num_frames)
        self._frames_mask = np.arange(self._most_frames) < np.array(spec.num_frames)[:, None]

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def empty(self, rows: int) -> dict[str, np.ndarray]:
        """Return the arrays of a batch, not initialised; raises RingError if memory is short."""
        needed = sum(rows * math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape in self.fields.values())
        try:
            # What numpy promises is taken page by page later, when it is too late to refuse.
            if needed > _LARGE and needed > (available_memory() or needed):
                raise MemoryError
            return {name: empty_array(rows, dtype, shape) for name, (dtype, shape) in self.fields.items()}
        except (MemoryError, ValueError):
            raise RingError(f"a batch of {rows} rows needs {needed:,} bytes, which are not available") from None

    def assemble(self, rows: Rows, out: Mapping[str, np.ndarray]) -> Assembled:
        """Fill the arrays of a batch.

        Args:
            rows: Where the samples come from, b of them.
            out: An array [b, ...] for each of ``fields``; all of it is written.

        Returns:
            The texts, and the rows that could not be read, whose arrays hold anything.

        Raises:
            LimitError: A limit of this process is too low to open a file.
        """
        done = Assembled()
        began = time.perf_counter()
        out["sample"][:] = rows.sample
        if "dataset" in out:
            out["dataset"][:] = rows.member
        if "frames_mask" in out:
            out["frames_mask"][:] = self._frames_mask[rows.member]
        located = self._lookup.look_up(rows, out, partial(self._fail, rows, done))
        done.texts = located.texts
        done.work.metadata_s += time.perf_counter() - began
        everything = range(len(rows))
        if "frames" not in self.fields:
            records = self._read(everything, rows, located, done, {row for row, _ in done.failed})
            done.arrays = pack_frames(records, len(rows), self._most_frames)
        elif self._pool is None:
            self._read_and_decode(everything, rows, located, out, done)
        else:
            parts = [Assembled(failed=list(done.failed)) for _ in range(self._threads)]
            known = len(done.failed)
            shares = [everything[i :: self._threads] for i in range(self._threads)]
            list(
                self._pool.map(
                    lambda share, part: self._read_and_decode(share, rows, located, out, part), shares, parts
                )
            )
            for part in parts:
                done.failed += part.failed[known:]
                done.work.add(part.work)
        done.failed.sort(key=lambda failure: failure[0])
        return done

    def _read_and_decode(
        self, chosen: range, rows: Rows, located: Located, out: Mapping[str, np.ndarray], done: Assembled
    ) -> None:
        broken = {row for row, _ in done.failed}
        for start in range(0, len(chosen), _RUN):
            records = self._read(chosen[start : start + _RUN], rows, located, done, broken)
            self._decode(records, rows, out["frames"], done)

    def _read(self, chosen: range, rows: Rows, located: Located, done: Assembled, broken: set[int]) -> list[_Record]:
        began = time.perf_counter()
        found: list[_Record] = []
        splits, members, num_frames = rows.split.tolist(), rows.member.tolist(), self.spec.num_frames
        shards, sizes, positions, checksums, _ = located
        open_file = self._open
        for row in chosen:
            if row in broken:
                continue
            try:
                data = open_file(splits[row], shards[row]).read(positions[row], sizes[row], checksums[row])
                frames = frame_views(data)
                if len(frames) != num_frames[members[row]]:
                    raise FormatError(f"holds {len(frames)} frames, expected {num_frames[members[row]]}")
            except (FormatError, OSError) as error:
                self._fail(rows, done, row, error)
                # A file that is repaired is opened again.
                open_file.cache_clear()
                continue
            found.append((row, frames))
            done.work.bytes += len(data)
        done.work.read_s += time.perf_counter() - began
        return found

    def _decode(self, records: Sequence[_Record], rows: Rows, images: np.ndarray, done: Assembled) -> None:
        """Decode the frames of some rows, each to its place."""
        began = time.perf_counter()
        decode, shape = simplejpeg.decode_jpeg, (*self.spec.frame_shape, 3)
        most = self._most_frames
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
                self._fail(rows, done, row, FormatError(f"a frame cannot be decoded ({error})"))
        done.work.decode_s += time.perf_counter() - began

    def _fail(self, rows: Rows, done: Assembled, row: int, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno in _LIMITS:
            # Nothing is wrong with the record, so nothing may stand in for it.
            raise LimitError(
                f"{error.filename or 'a shard'} cannot be opened: {error.strerror}; {_LIMITS[error.errno]}"
            )
        done.failed.append((row, _record_error(self.spec, rows, row, error)))


def _open_file(splits: Sequence[SplitIndex], split: int, shard: int) -> RecordFile:
    shards = splits[split].shards
    if not 0 <= shard < len(shards):
        raise FormatError(f"cannot be read (the index says shard {shard} of {len(shards)})")
    return RecordFile(splits[split].record_path(shard), int(shards.sizes[shard]))


def default_max_open() -> int:
    """Return how many files may be open: half of the handles that are left to this process, at most 1,024."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = 4096 if soft == resource.RLIM_INFINITY else soft
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else soft // 2
    return max(4, min(_MAX_OPEN, (soft - used) // 2))


def _record_error(spec: BatchSpec, rows: Rows, row: int, error: Exception) -> RecordError:
    split, record = spec.splits[int(rows.split[row])], int(rows.record[row])
    firsts = split.shards.first_records
    # By the manifest: what the index says of the shard may be what is wrong.
    shard = int(np.searchsorted(firsts, record, side="right")) - 1
    try:
        episode = int(split.records.array("episode")[record])
    except OSError:
        episode = -1
    return RecordError(
        str(error),
        dataset=split.dataset,
        split=split.split,
        shard=split.shards.stem(shard),
        record=record - int(firsts[shard]),
        episode=episode,
        sample=int(rows.sample[row]),
    )
