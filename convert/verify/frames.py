"""Every record of a shard: read twice, decoded, and compared with its row in the index."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import simplejpeg
from array_record.python import array_record_module

from convert.errors import CorruptFrame
from convert.report import first_line
from convert.shard.images import decode_jpeg
from stream.format.names import HOLE, decode_record
from stream.format.record_file import RecordFile
from stream.storage.errors import FormatError

_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:1"

Report = Callable[[str], None]


def check_frames(
    path: Path,
    rows: Mapping[str, np.ndarray] | None,
    *,
    offsets: Sequence[int] | None,
    sizes: Collection[str],
    report: Report,
) -> Counter[str]:
    """Read every record, by array_record and by the index, and decode every frame.

    A frame that several records of an episode share is decoded once.

    Args:
        path: ArrayRecord file.
        rows: ``episode``, ``step``, ``camera``, ``position``, ``num_bytes`` and ``xxh3_64`` of each record, [records];
            None if the index is damaged.
        offsets: Distances from t of the frames of a record, None if unknown.
        sizes: Allowed sizes of frames, "HxW".
        report: Called with each problem.

    Returns:
        Number of steps of the shard that have a frame, by size ("HxW"); empty without rows or offsets.
    """
    counts: Counter[str] = Counter()
    seen: dict[tuple[int, int], bytes] = {}
    current = None
    for record, row, place in _read_records(path, rows, report):
        if record == HOLE and offsets == (0,):
            continue
        try:
            frames = decode_record(record)
        except FormatError as error:
            report(f"{place}: {error}")
            continue
        steps = None
        if offsets is not None and len(frames) != len(offsets):
            report(f"{place}: holds {len(frames)} frames, the manifest says {len(offsets)}")
        elif offsets is not None and row is not None:
            episode, step, camera = row
            steps = [(camera, step + offset) for offset in offsets]
            if episode != current:
                current = episode
                seen.clear()
        for number, frame in enumerate(frames):
            if steps is not None:
                digest, before = hashlib.blake2b(frame, digest_size=16).digest(), seen.get(steps[number])
                if digest == before:
                    continue
                if before is not None:
                    report(f"{place}: its frame of step {steps[number][1]} is not the frame of an earlier record")
                seen[steps[number]] = digest
            try:
                size = _decode(frame, sizes)
            except CorruptFrame as error:
                report(f"{place}: frame {number} of {len(frames)}: {error}")
                continue
            counts[size] += steps is not None
    return counts


def _read_records(
    path: Path, rows: Mapping[str, np.ndarray] | None, report: Report
) -> Iterator[tuple[bytes, tuple[int, int, int] | None, str]]:
    """Yield the bytes, the (episode, step, camera) and the name of each record that reads; report the others.

    Also report a record that is not at its location in the index.
    """
    file = RecordFile(str(path))
    reader = array_record_module.ArrayRecordReader(str(path), _READER_OPTIONS)
    if not reader.ok():
        return
    try:
        for index in range(reader.num_records()):
            place, row = f"record {index}", None
            if rows is not None:
                row = (int(rows["episode"][index]), int(rows["step"][index]), int(rows["camera"][index]))
                place += f" (episode {row[0]}, step {row[1]})"
            try:
                (record,) = reader.read(index, index + 1)
            except (RuntimeError, ValueError, IndexError) as error:
                report(f"{place}: does not read: {first_line(error)}")
                continue
            if rows is not None:
                location = (int(rows[name][index]) for name in ("position", "num_bytes", "xxh3_64"))
                try:
                    found = file.read(*location) == record
                # The numbers of a damaged index may be anything.
                except (FormatError, OSError, ValueError, MemoryError):
                    found = False
                if not found:
                    report(f"{place}: is not where the index says, or has another checksum")
            yield record, row, place
    finally:
        reader.close()


def _decode(frame: bytes, allowed: Collection[str]) -> str:
    """Decode a frame and return its size; raises CorruptFrame."""
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(frame)
    except ValueError as error:
        raise CorruptFrame(f"{len(frame)} bytes that are no JPEG: {error}") from None
    size = f"{height}x{width}"
    if size not in allowed:
        raise CorruptFrame(f"is {size}, the manifest says {' or '.join(sorted(allowed)) or 'there are none'}")
    decode_jpeg(frame)
    return size
