"""The ArrayRecord file of a shard, checked against the manifest and against its rows in the index."""

from __future__ import annotations

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
from stream.format.frame import DEPTH_MAGIC, StoredCamera, decode_depth, decode_frame, depth_shape, frame_shape
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
    shard: Shard, *, offsets: Sequence[int] | None, deep: bool, index_sound: bool, cameras: Sequence[StoredCamera] = ()
) -> Notes:
    """Check one shard; never raises, whatever its file holds.

    Args:
        shard: Shard.
        offsets: Distances from t of the frames of a record, None if the manifest does not say.
        deep: Read every record and decode every frame, of a damaged file too, to name the damaged records.
        index_sound: Whether ``records`` has the locations of the records.
        cameras: Stored cameras. Without them, frames are recognised by their magic bytes.
    """
    findings = Notes(shard.folder.name)
    try:
        is_intact = findings.check_file(shard.path, shard.entry.file)
        if is_intact or (deep and shard.path.is_file()):
            reader = ArrayRecordReader(str(shard.path), _READER_OPTIONS)
            num_records = reader.num_records() if reader.ok() else -1
            has_chunks, record_columns = any(camera.codec in VIDEO_CODECS for camera in cameras), {}
            if index_sound and (deep or has_chunks):
                table = open_table(shard.folder / table_file("records"), "records")
                record_columns = {column: table.array(column)[shard.rows("records")] for column in _COLUMNS}
            record_of_row, expected_records = np.arange(shard.entry.records), shard.entry.records
            if has_chunks and record_columns:
                # Rows of a chunk share its record.
                record_of_row = np.unique(record_columns["position"], return_inverse=True)[1]
                expected_records = int(record_of_row.max(initial=-1)) + 1
            elif has_chunks:
                record_of_row, expected_records = np.zeros(0, np.int64), max(num_records, 0)
            if num_records != expected_records:
                description = "does not open as ArrayRecord" if num_records < 0 else f"holds {num_records:,} records"
                findings.add_file(shard.path, f"{description}, expected {expected_records:,} records")
            elif deep:
                records = _read_records(shard, reader, record_columns, record_of_row, num_records, findings)
                size_counts = _check_frames(shard, records, offsets, findings, cameras=cameras)
                # With missing or broken frames, their count says nothing new.
                if record_columns and offsets is not None and not findings.damage:
                    _check_sizes(shard, size_counts, findings)
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
    size_counts: Counter[str] = Counter()
    digest_by_frame: dict[tuple[int, int], int] = {}
    current_episode = -1
    for location, record_rows, record in records:
        if record == HOLE and offsets == (0,):
            continue
        first_row = record_rows[0] if record_rows else {}
        camera = cameras[first_row["camera"]] if first_row and first_row["camera"] < len(cameras) else None
        if video_codec(record) if camera is None else camera.codec in VIDEO_CODECS:
            try:
                size_counts += _check_chunk(record, record_rows, camera, shard.entry.sizes)
            except FormatError as error:
                findings.add_file(shard.path, f"{location}: {error}")
            continue
        try:
            frames = decode_record(record)
        except FormatError as error:
            findings.add_file(shard.path, f"{location}: {error}")
            continue
        frame_keys: Sequence[tuple[int, int] | None] = [None] * len(frames)
        if offsets is not None and len(frames) != len(offsets):
            findings.add_file(shard.path, f"{location}: holds {len(frames)} frames, the manifest says {len(offsets)}")
        elif offsets is not None and first_row:
            frame_keys = [(first_row["camera"], first_row["step"] + offset) for offset in offsets]
            if first_row["episode"] != current_episode:
                current_episode = first_row["episode"]
                digest_by_frame.clear()
        for frame_number, (encoded_frame, frame_key) in enumerate(zip(frames, frame_keys, strict=True)):
            if frame_key is not None:
                digest, earlier = hash(encoded_frame), digest_by_frame.get(frame_key)
                if digest == earlier:
                    continue
                if earlier is not None:
                    sentence = f"{location}: its frame of step {frame_key[1]} is not the frame of an earlier record"
                    findings.add_file(shard.path, sentence)
                digest_by_frame[frame_key] = digest
            try:
                is_depth = encoded_frame.startswith(DEPTH_MAGIC) if camera is None else camera.is_depth
                size_counts[_decode(encoded_frame, shard.entry.sizes, is_depth=is_depth)] += 1
            except (CorruptFrame, FormatError) as error:
                findings.add_file(shard.path, f"{location}: frame {frame_number} of {len(frames)}: {error}")
    return size_counts


def _check_chunk(
    record: bytes, record_rows: Sequence[Mapping[str, int]], camera: StoredCamera | None, allowed: Iterable[str]
) -> Counter[str]:
    """Decode all frames of a chunk of video, and return the number of those that rows have by size ("HxW")."""
    if camera is None:
        heights_widths = (text.partition("x") for text in allowed)
        allowed_sizes = tuple((int(height), int(width)) for height, _, width in heights_widths)
        max_frames = MAX_GOP
    else:
        allowed_sizes, max_frames = camera.sizes, camera.gop
        if video_codec(record) != camera.codec:
            raise FormatError(f"{len(record)} bytes that are no chunk of {camera.codec}")
    frame_sizes = [f"{pixels.shape[0]}x{pixels.shape[1]}" for pixels in decode_all(record, allowed_sizes)]
    frame_numbers = [row["step"] % max_frames for row in record_rows]
    num_shown = max(frame_numbers, default=0) + 1
    if not num_shown <= len(frame_sizes) <= max_frames:
        raise FormatError(f"holds {len(frame_sizes)} frames, expected {num_shown} to {max_frames}")
    return Counter(frame_sizes[number] for number in frame_numbers)


def _read_records(
    shard: Shard,
    reader: ArrayRecordReader,
    record_columns: Mapping[str, np.ndarray],
    record_of_row: np.ndarray,
    num_records: int,
    findings: Notes,
) -> Iterator[Record]:
    """Yield each record that reads, and report the others.

    Also report a record that is not at its location in the index. ``record_of_row`` has the record of each row.
    """
    record_file = RecordFile(str(shard.path))
    row_order = np.argsort(record_of_row, kind="stable")
    row_bounds = np.searchsorted(record_of_row[row_order], np.arange(num_records + 1))
    for record_number in range(num_records):
        rows = row_order[row_bounds[record_number] : row_bounds[record_number + 1]].tolist() if record_columns else []
        named_rows = [{column: int(values[row]) for column, values in record_columns.items()} for row in rows]
        first_row = named_rows[0] if named_rows else {}
        location = f"record {record_number}"
        location += f" (episode {first_row['episode']}, step {first_row['step']})" if first_row else ""
        try:
            (record,) = reader.read(record_number, record_number + 1)
        except (RuntimeError, ValueError, IndexError) as error:
            findings.add_file(shard.path, f"{location}: does not read: {first_line(error)}")
            continue
        try:
            is_found = (
                not first_row
                or record_file.read(first_row["position"], first_row["num_bytes"], first_row["xxh3_64"]) == record
            )
        # The numbers of a damaged index may be anything.
        except (FormatError, OSError, ValueError, MemoryError):
            is_found = False
        if not is_found:
            findings.add_file(shard.path, f"{location}: is not where the index says, or has another checksum")
        yield location, named_rows, record


def _decode(encoded_frame: bytes, allowed: Collection[str], *, is_depth: bool) -> str:
    """Decode a frame and return its size, "HxW"; raises FormatError, or CorruptFrame for a size that is not allowed."""
    height, width = (depth_shape if is_depth else frame_shape)(encoded_frame)
    frame_size = f"{height}x{width}"
    if frame_size not in allowed:
        raise CorruptFrame(f"is {frame_size}, the manifest says {' or '.join(sorted(allowed)) or 'there are none'}")
    (decode_depth if is_depth else decode_frame)(encoded_frame)
    return frame_size


def _check_sizes(shard: Shard, size_counts: Counter[str], findings: Notes) -> None:
    entry = shard.entry
    # The manifest also counts a sound frame that is not stored: one of which every pair has a corrupt frame.
    is_exact = not entry.left_out.get("pair_of_corrupt_frame")
    for frame_size in sorted({*entry.sizes, *size_counts}):
        num_found, num_expected = size_counts[frame_size], entry.sizes.get(frame_size, 0)
        if num_found > num_expected or (is_exact and num_found != num_expected):
            sentence = f"counts {num_expected:,} frames of {frame_size} in {entry.name}, found {num_found:,}"
            findings.add_file(shard.folder.parent / MANIFEST_NAME, sentence)
