"""The ArrayRecord file of a shard, checked against the manifest and against its rows in the index."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader

from convert.errors import CorruptFrame
from convert.findings import Notes
from convert.index.shards import Shard
from convert.report import first_line
from stream.format.frame import DEPTH_MAGIC, decode_depth, decode_frame, depth_shape, frame_shape
from stream.format.names import HOLE, MANIFEST_NAME, decode_record, table_file
from stream.format.record_file import RecordFile
from stream.format.table import open_table
from stream.storage.errors import FormatError

_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:1"
_COLUMNS = ("episode", "step", "camera", "position", "num_bytes", "xxh3_64")

Record = tuple[str, dict[str, int], bytes]
"""Name of a record for messages, its row in the index (empty if the index is damaged), and its bytes."""


def check_shard(
    shard: Shard,
    *,
    offsets: Sequence[int] | None,
    deep: bool,
    index_sound: bool,
    depth: Collection[int] = (),
) -> Notes:
    """Check one shard; never raises, whatever its file holds.

    Args:
        shard: Shard.
        offsets: Distances from t of the frames of a record, None if the manifest does not say.
        deep: Read every record and decode every frame, of a damaged file too, to name the damaged records.
        index_sound: Whether ``records`` has the locations of the records.
        depth: Numbers of the cameras of depth.
    """
    findings = Notes(shard.folder.name)
    try:
        intact = findings.check_file(shard.path, shard.entry.file)
        if intact or (deep and shard.path.is_file()):
            reader = ArrayRecordReader(str(shard.path), _READER_OPTIONS)
            count = reader.num_records() if reader.ok() else -1
            if count != shard.entry.records:
                found = "does not open as ArrayRecord" if count < 0 else f"holds {count:,} records"
                findings.add_file(shard.path, f"{found}, expected {shard.entry.records:,} records")
            elif deep:
                table = open_table(shard.folder / table_file("records"), "records") if index_sound else None
                rows = {} if table is None else {name: table.array(name)[shard.rows("records")] for name in _COLUMNS}
                records = _read_records(shard, reader, rows, findings)
                sizes = _check_frames(shard, records, offsets, findings, depth=depth)
                # With missing or broken frames, their count says nothing new.
                if rows and offsets is not None and not findings.damage:
                    _check_sizes(shard, sizes, findings)
    except Exception as error:
        findings.add_file(shard.path, f"could not be checked: {type(error).__name__}: {first_line(error)}")
    return findings


def _check_frames(
    shard: Shard,
    records: Iterator[Record],
    offsets: Sequence[int] | None,
    findings: Notes,
    *,
    depth: Collection[int],
) -> Counter[str]:
    """Decode every frame and return the number of frames by size ("HxW").

    A frame that several records of an episode share is decoded once.
    """
    sizes: Counter[str] = Counter()
    seen: dict[tuple[int, int], bytes] = {}
    current = -1
    for place, row, record in records:
        if record == HOLE and offsets == (0,):
            continue
        try:
            frames = decode_record(record)
        except FormatError as error:
            findings.add_file(shard.path, f"{place}: {error}")
            continue
        keys: Sequence[tuple[int, int] | None] = [None] * len(frames)
        if offsets is not None and len(frames) != len(offsets):
            findings.add_file(shard.path, f"{place}: holds {len(frames)} frames, the manifest says {len(offsets)}")
        elif offsets is not None and row:
            keys = [(row["camera"], row["step"] + offset) for offset in offsets]
            if row["episode"] != current:
                current = row["episode"]
                seen.clear()
        for number, (frame, key) in enumerate(zip(frames, keys, strict=True)):
            if key is not None:
                digest, before = hashlib.blake2b(frame, digest_size=16).digest(), seen.get(key)
                if digest == before:
                    continue
                if before is not None:
                    text = f"{place}: its frame of step {key[1]} is not the frame of an earlier record"
                    findings.add_file(shard.path, text)
                seen[key] = digest
            try:
                # Without the index the first bytes tell.
                is_depth = row["camera"] in depth if row else bool(depth) and frame.startswith(DEPTH_MAGIC)
                sizes[_decode(frame, shard.entry.sizes, is_depth=is_depth)] += 1
            except (CorruptFrame, FormatError) as error:
                findings.add_file(shard.path, f"{place}: frame {number} of {len(frames)}: {error}")
    return sizes


def _read_records(
    shard: Shard, reader: ArrayRecordReader, rows: Mapping[str, np.ndarray], findings: Notes
) -> Iterator[Record]:
    """Yield each record that reads, and report the others.

    Also report a record that is not at its location in the index.
    """
    file = RecordFile(str(shard.path))
    for number in range(shard.entry.records):
        row = {name: int(values[number]) for name, values in rows.items()}
        place = f"record {number}" + (f" (episode {row['episode']}, step {row['step']})" if row else "")
        try:
            (record,) = reader.read(number, number + 1)
        except (RuntimeError, ValueError, IndexError) as error:
            findings.add_file(shard.path, f"{place}: does not read: {first_line(error)}")
            continue
        try:
            found = not row or file.read(row["position"], row["num_bytes"], row["xxh3_64"]) == record
        # The numbers of a damaged index may be anything.
        except (FormatError, OSError, ValueError, MemoryError):
            found = False
        if not found:
            findings.add_file(shard.path, f"{place}: is not where the index says, or has another checksum")
        yield place, row, record


def _decode(frame: bytes, allowed: Collection[str], *, is_depth: bool) -> str:
    """Decode a frame and return its size, "HxW"; raises FormatError, or CorruptFrame for a size that is not allowed."""
    if is_depth:
        height, width = depth_shape(frame)
    else:
        height, width = frame_shape(frame)
    size = f"{height}x{width}"
    if size not in allowed:
        raise CorruptFrame(f"is {size}, the manifest says {' or '.join(sorted(allowed)) or 'there are none'}")
    if is_depth:
        decode_depth(frame)
    else:
        decode_frame(frame)
    return size


def _check_sizes(shard: Shard, sizes: Counter[str], findings: Notes) -> None:
    entry = shard.entry
    # The manifest also counts a sound frame that is not stored: one of which every pair has a corrupt frame.
    exact = not entry.left_out.get("pair_of_corrupt_frame")
    for size in sorted({*entry.sizes, *sizes}):
        found, expected = sizes[size], entry.sizes.get(size, 0)
        if found > expected or (exact and found != expected):
            text = f"counts {expected:,} frames of {size} in {entry.name}, found {found:,}"
            findings.add_file(shard.folder.parent / MANIFEST_NAME, text)
