"""The ArrayRecord file of a shard, checked against the manifest and against its rows in the index."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader

from convert.errors import CorruptFrame
from convert.findings import Notes
from convert.index.shards import Shard
from convert.report import first_line
from stream.base.errors import FormatError
from stream.format.fields import read_fields
from stream.format.frame import DEPTH_MAGIC, Codec, StoredCamera, decode_depth, decode_frame, depth_shape, frame_shape
from stream.format.manifest import Manifest
from stream.format.names import HOLE, MANIFEST_NAME, decode_record, table_file
from stream.format.record_file import RecordFile
from stream.format.table import open_table
from stream.format.video import MAX_GOP, VIDEO_CODECS, decode_all, video_codec

_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:1"
_COLUMNS = ("episode", "step", "camera", "position", "num_bytes", "xxh3_64")

Record = tuple[str, list[dict[str, int]], bytes]
"""Name of a record for messages, its rows in the index (none if the index is damaged), and its bytes."""


def stored_cameras(manifest: Manifest) -> tuple[StoredCamera, ...]:
    """Return the stored cameras of a dataset, none if the manifest does not say."""
    try:
        return read_fields(manifest, context=MANIFEST_NAME).stored_cameras
    except (FormatError, KeyError):
        return ()


def check_shard(
    shard: Shard,
    *,
    offsets: Sequence[int] | None,
    deep: bool,
    index_sound: bool,
    cameras: Sequence[StoredCamera] = (),
) -> Notes:
    """Check one shard; never raises, whatever its file holds.

    Args:
        shard: Shard.
        offsets: Distances from t of the frames of a record, None if the manifest does not say.
        deep: Read every record and decode every frame, of a damaged file too, to name the damaged records.
        index_sound: Whether ``records`` has the locations of the records.
        cameras: Stored cameras; none if the manifest does not say, and then the first bytes of frames tell.
    """
    findings = Notes(shard.folder.name)
    try:
        intact = findings.check_file(shard.path, shard.entry.file)
        if intact or (deep and shard.path.is_file()):
            reader = ArrayRecordReader(str(shard.path), _READER_OPTIONS)
            count = reader.num_records() if reader.ok() else -1
            is_read = index_sound and (deep or any(camera.codec in VIDEO_CODECS for camera in cameras))
            table = open_table(shard.folder / table_file("records"), "records") if is_read else None
            rows = {} if table is None else {name: table.array(name)[shard.rows("records")] for name in _COLUMNS}
            owners, expected = np.arange(shard.entry.records), shard.entry.records
            if any(camera.codec in VIDEO_CODECS for camera in cameras):
                # Rows of a chunk share its record.
                owners = np.unique(rows["position"], return_inverse=True)[1] if rows else np.zeros(0, np.int64)
                expected = int(owners.max(initial=-1)) + 1 if rows else max(count, 0)
            if count != expected:
                found = "does not open as ArrayRecord" if count < 0 else f"holds {count:,} records"
                findings.add_file(shard.path, f"{found}, expected {expected:,} records")
            elif deep:
                records = _read_records(shard, reader, rows, owners, count, findings)
                sizes = _check_frames(shard, records, offsets, findings, cameras=cameras)
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
    cameras: Sequence[StoredCamera],
) -> Counter[str]:
    """Decode every frame and return the number of frames by size ("HxW").

    A frame that several records of an episode share is decoded once.
    """
    sizes: Counter[str] = Counter()
    seen: dict[tuple[int, int], bytes] = {}
    current = -1
    for place, owners, record in records:
        if record == HOLE and offsets == (0,):
            continue
        row = owners[0] if owners else {}
        camera = cameras[row["camera"]] if row and row["camera"] < len(cameras) else None
        if video_codec(record) if camera is None else camera.codec in VIDEO_CODECS:
            try:
                sizes += _check_chunk(record, owners, camera, shard.entry.sizes)
            except FormatError as error:
                findings.add_file(shard.path, f"{place}: {error}")
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
                is_depth = frame.startswith(DEPTH_MAGIC) if camera is None else camera.is_depth
                sizes[_decode(frame, shard.entry.sizes, is_depth=is_depth)] += 1
            except (CorruptFrame, FormatError) as error:
                findings.add_file(shard.path, f"{place}: frame {number} of {len(frames)}: {error}")
    return sizes


def _check_chunk(
    record: bytes, owners: Sequence[Mapping[str, int]], camera: StoredCamera | None, allowed: Iterable[str]
) -> Counter[str]:
    """Decode all frames of a chunk of video, and return the number of those that rows have by size ("HxW")."""
    codec: Codec | None
    if camera is None:
        heights_widths = (size.partition("x") for size in allowed)
        sizes = tuple((int(height), int(width)) for height, _, width in heights_widths)
        codec, gop = video_codec(record), MAX_GOP
    else:
        sizes, codec, gop = camera.sizes, camera.codec, camera.gop
    if video_codec(record) != codec:
        raise FormatError(f"{len(record)} bytes that are no chunk of {codec}")
    frames = [f"{pixels.shape[0]}x{pixels.shape[1]}" for pixels in decode_all(record, sizes)]
    numbers = [row["step"] % gop for row in owners]
    if not max(numbers, default=0) < len(frames) <= gop:
        raise FormatError(f"holds {len(frames)} frames, expected {max(numbers, default=0) + 1} to {gop}")
    return Counter(frames[number] for number in numbers)


def _read_records(
    shard: Shard,
    reader: ArrayRecordReader,
    rows: Mapping[str, np.ndarray],
    owners: np.ndarray,
    count: int,
    findings: Notes,
) -> Iterator[Record]:
    """Yield each record that reads, and report the others.

    Also report a record that is not at its location in the index. ``owners`` has the record of each row.
    """
    file = RecordFile(str(shard.path))
    order = np.argsort(owners, kind="stable")
    ends = np.searchsorted(owners[order], np.arange(count + 1))
    for number in range(count):
        mine = order[ends[number] : ends[number + 1]].tolist() if rows else []
        named = [{name: int(values[each]) for name, values in rows.items()} for each in mine]
        row = named[0] if named else {}
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
        yield place, named, record


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
