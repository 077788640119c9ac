"""Every record of a shard: read twice, taken apart, decoded, and compared with its row in the index."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import simplejpeg
from array_record.python import array_record_module

from convert.errors import CorruptFrame
from convert.report import first_line
from convert.shard.images import decode_jpeg
from stream.format.names import decode_record
from stream.format.record_file import RecordFile
from stream.storage.errors import FormatError

_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:1"
_PLACE = ("position", "num_bytes", "xxh3_64")


def check_frames(
    path: Path,
    rows: Mapping[str, np.ndarray] | None,
    *,
    offsets: Sequence[int] | None,
    sizes: Collection[str],
    report: Callable[[str], None],
) -> Counter[str]:
    """Read every record, by array_record and by the index, and decode every frame.

    Args:
        path: ArrayRecord file.
        rows: ``episode``, ``step``, ``position``, ``num_bytes`` and ``xxh3_64`` of each record, [records]; None where
            the index is not sound.
        offsets: Distances from t of a record's frames, None if unknown.
        sizes: "HxW" that frames may have.
        report: Called with each problem.

    Returns:
        Number of steps of the shard that have a frame, by size ("HxW"); empty without rows or offsets.
    """
    checker = _FrameChecker(offsets=offsets, sizes=sizes, report=report)
    file = RecordFile(str(path)) if rows is not None else None
    reader = array_record_module.ArrayRecordReader(str(path), _READER_OPTIONS)
    if not reader.ok():
        return checker.sizes
    try:
        for index in range(reader.num_records()):
            place, row = f"record {index}", None
            if rows is not None:
                row = (int(rows["episode"][index]), int(rows["step"][index]))
                place += f" (episode {row[0]}, step {row[1]})"
            try:
                (record,) = reader.read(index, index + 1)
            except (RuntimeError, ValueError, IndexError) as error:
                report(f"{place}: does not read: {first_line(error)}")
                continue
            if file is not None and not _is_there(file, [int(rows[name][index]) for name in _PLACE], record):  # type: ignore[index]
                report(f"{place}: is not where the index says, or has another checksum")
            checker.check(record, row, place)
    finally:
        reader.close()
    return checker.sizes


def _is_there(file: RecordFile, place: Sequence[int], record: bytes) -> bool:
    try:
        return file.read(*place) == record
    except (FormatError, OSError, ValueError, MemoryError):
        # The places may be anything.
        return False


class _FrameChecker:
    """Checks records in their order; a frame that several records of an episode share is decoded once."""

    def __init__(self, *, offsets: Sequence[int] | None, sizes: Collection[str], report: Callable[[str], None]) -> None:
        self.sizes: Counter[str] = Counter()
        self._offsets = offsets
        self._allowed = sizes
        self._report = report
        self._episode: int | None = None
        self._seen: dict[int, bytes] = {}

    def check(self, record: bytes, row: tuple[int, int] | None, place: str) -> None:
        """Check one record; ``row`` is its (episode, step)."""
        try:
            frames = decode_record(record)
        except FormatError as error:
            self._report(f"{place}: {error}")
            return
        steps: Sequence[int] | None = None
        if self._offsets is not None and len(frames) != len(self._offsets):
            self._report(f"{place}: holds {len(frames)} frames, the manifest says {len(self._offsets)}")
        elif self._offsets is not None and row is not None:
            steps = [row[1] + offset for offset in self._offsets]
            if row[0] != self._episode:
                self._episode = row[0]
                self._seen.clear()
        for number, frame in enumerate(frames):
            fresh = steps is None or self._is_new(steps[number], frame, place)
            if not fresh:
                continue
            try:
                size = self._decode(frame)
            except CorruptFrame as error:
                self._report(f"{place}: frame {number} of {len(frames)}: {error}")
                continue
            if steps is not None:
                self.sizes[size] += 1

    def _is_new(self, step: int, frame: bytes, place: str) -> bool:
        """Return whether this frame of a step was not decoded before; reports one that is not what it was before."""
        digest = hashlib.blake2b(frame, digest_size=16).digest()
        before = self._seen.get(step)
        self._seen[step] = digest
        if before is not None and before != digest:
            self._report(f"{place}: its frame of step {step} is not the one that an earlier record has of this step")
        return before != digest

    def _decode(self, frame: bytes) -> str:
        try:
            height, width, _, _ = simplejpeg.decode_jpeg_header(frame)
        except ValueError as error:
            raise CorruptFrame(f"{len(frame)} bytes that are no JPEG: {error}") from None
        size = f"{height}x{width}"
        if size not in self._allowed:
            raise CorruptFrame(f"is {size}, the manifest says {' or '.join(sorted(self._allowed)) or 'there are none'}")
        decode_jpeg(frame)
        return size
