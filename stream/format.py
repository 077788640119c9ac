"""The on-disk format: where files lie, how a record is laid out, which columns the sidecars have.

The format belongs to its reader; ``convert`` writes it. A converted dataset looks like this::

    ROOT/<dataset>/<version>/dataset.json                                      manifest, written last
    ROOT/<dataset>/<version>/quarantine.jsonl                                  what could not be converted
    ROOT/<dataset>/<version>/fetched.json                                      which shards are here, if not all
    ROOT/<dataset>/<version>/<split>/<split>-00007-of-01024.arrayrecord        record i = frames of one pair
    ROOT/<dataset>/<version>/<split>/<split>-00007-of-01024.records.arrow      row i describes record i
    ROOT/<dataset>/<version>/<split>/<split>-00007-of-01024.steps.arrow        one row per source step
    ROOT/<dataset>/<version>/<split>/<split>-00007-of-01024.episodes.arrow     one row per source episode

Sidecars are Arrow IPC files, uncompressed, with one record batch, so that they can be memory-mapped without a copy.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from stream.arrow_file import has_compressed_batches
from stream.mapped_file import map_file

FORMAT_VERSION = 1
MANIFEST_NAME = "dataset.json"
QUARANTINE_NAME = "quarantine.jsonl"
FETCHED_NAME = "fetched.json"

FILE_KINDS = ("arrayrecord", "records", "steps", "episodes")
SIDECAR_KINDS = ("records", "steps", "episodes")
_SUFFIXES = {
    "arrayrecord": ".arrayrecord",
    "records": ".records.arrow",
    "steps": ".steps.arrow",
    "episodes": ".episodes.arrow",
}

TAIL_BYTES = 64 << 10
"""The last block of an ArrayRecord file. It says where the footer lies, that is, how long all records are together, and
so tells the file from others; it holds no records."""

ARRAYRECORD_OPTIONS = "group_size:1,uncompressed"
"""One record a chunk, not compressed: JPEG does not compress, and a random read wants one record."""

RECORD_FIELDS = (
    pa.field("episode", pa.int32(), nullable=False),
    pa.field("step", pa.int32(), nullable=False),
    pa.field("offset", pa.int32(), nullable=False),
    pa.field("steps_row", pa.int64(), nullable=False),
    pa.field("num_frames", pa.int32(), nullable=False),
)
"""The columns that every ``records`` file starts with. Row i describes record i.

episode: row in this shard's ``episodes`` file. step: t, counted from 0 in the episode. offset: the last frame is that
of step t + offset. steps_row: row of step t in this shard's ``steps`` file. num_frames: frames in the record.
"""

PLACE_FIELDS = (
    pa.field("position", pa.int64(), nullable=False),
    pa.field("num_bytes", pa.int64(), nullable=False),
    pa.field("xxh3_64", pa.uint64(), nullable=False),
)
"""Where record i lies in the ArrayRecord file, and its checksum; files that were converted before there were these
columns end without them.

position: of its first byte. num_bytes: of the record; where it goes on in the next block of the file, BLOCK_HEADER
bytes that are not part of it lie between. xxh3_64: XXH3 of the record, 64 bits.
"""

RECORDS_SCHEMA = pa.schema([*RECORD_FIELDS, *PLACE_FIELDS])
"""The ``records`` file as it is written."""

BLOCK, BLOCK_HEADER = 64 << 10, 24
"""An ArrayRecord file, in the format of Riegeli records, is made of blocks of so many bytes, each with a header."""

EPISODE_FIELDS = (
    pa.field("episode_id", pa.string(), nullable=False),
    pa.field("source_file", pa.string(), nullable=False),
    pa.field("source_position", pa.int64(), nullable=False),
    pa.field("status", pa.string(), nullable=False),
    pa.field("num_steps", pa.int32(), nullable=False),
    pa.field("first_steps_row", pa.int64(), nullable=False),
    pa.field("num_records", pa.int32(), nullable=False),
    pa.field("first_record", pa.int64(), nullable=False),
    pa.field("language", pa.string(), nullable=False),
    pa.field("robot", pa.string(), nullable=False),
)
"""The columns that every ``episodes`` file starts with; the dataset's own episode features follow, under their paths.

One row per episode of the source shard that was asked for, unreadable ones included, in the order of the source.
episode_id: TFDS's id of the example, ``<source file>__<position>``. source_position: record number in the source file.
status: ``ok``, or why the episode gave no pair (``empty``, ``too_short``, ``unreadable``, ``malformed``).
"""

STEP_FIELDS = (
    pa.field("episode", pa.int32(), nullable=False),
    pa.field("step", pa.int32(), nullable=False),
    pa.field("language", pa.dictionary(pa.int32(), pa.string()), nullable=False),
)
"""The columns that every ``steps`` file starts with; the dataset's own step features follow, under their paths below
``steps`` (``action/world_vector``, ``observation/state``, ``reward``, ``is_first``). Features with a shape are
fixed-size lists, flattened row-major; their field metadata has the keys ``shape`` and ``dtype`` of the source."""

FIRST_FIELDS = {"records": RECORD_FIELDS, "steps": STEP_FIELDS, "episodes": EPISODE_FIELDS}
"""The columns that every sidecar of a kind starts with."""

_RECORD_MAGIC = b"FRM1"
_RECORD_HEADER = struct.Struct("<4sI")
_PAIR_HEADER = struct.Struct("<4sIII")
_PAIR_BYTES, _unpack_pair = _PAIR_HEADER.size, _PAIR_HEADER.unpack_from
MAX_FRAMES = 1 << 16
"""Of a record."""


class FormatError(ValueError):
    """Bytes or names that are not in the on-disk format; the message says what was found and where."""


def dataset_dir(root: str | Path, dataset: str, version: str) -> Path:
    """Return the folder of one converted dataset, ``ROOT/<dataset>/<version>``."""
    return Path(root) / dataset / version


def shard_stem(split: str, index: int, count: int) -> str:
    """Return the name that the files of one shard share.

    >>> shard_stem("train", 7, 1024)
    'train-00007-of-01024'
    """
    return f"{split}-{index:05d}-of-{count:05d}"


def split_of(stem: str) -> str:
    """Return the split that a shard belongs to.

    >>> split_of("train-00007-of-01024")
    'train'
    """
    return stem.rsplit("-", 3)[0]


def shard_file(stem: str, kind: str) -> str:
    """Return the file name of one kind (see ``FILE_KINDS``) of a shard.

    >>> shard_file("train-00007-of-01024", "steps")
    'train-00007-of-01024.steps.arrow'
    """
    return stem + _SUFFIXES[kind]


def hash_end(path: str | Path, size: int) -> bytes:
    """Return the SHA-256 of the last ``size`` bytes of a file, of all of it if it is shorter."""
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        return hashlib.file_digest(file, "sha256").digest()


def encode_record(frames: Sequence[bytes]) -> bytes:
    """Pack encoded frames into one record.

    Layout, little-endian: ``b"FRM1"``, uint32 number of frames n, n x uint32 lengths in bytes, then the frames back to
    back.

    >>> decode_record(encode_record([b"first", b"second"]))
    [b'first', b'second']
    """
    if not 1 <= len(frames) <= MAX_FRAMES:
        raise FormatError(f"a record holds 1 to {MAX_FRAMES} frames, got {len(frames)}")
    lengths = struct.pack(f"<{len(frames)}I", *(len(frame) for frame in frames))
    return b"".join((_RECORD_HEADER.pack(_RECORD_MAGIC, len(frames)), lengths, *frames))


def frame_spans(record: bytes | memoryview) -> list[tuple[int, int]]:
    """Return (start, stop) in bytes of each frame of a record, without copying.

    Raises:
        FormatError: the record does not start with the magic bytes, or its lengths do not add up to its size. Nothing
            is allocated by a length that the record does not have.
    """
    size = len(record)
    if size < _RECORD_HEADER.size:
        raise FormatError(f"record of {size} bytes is shorter than its {_RECORD_HEADER.size}-byte header")
    magic, count = _RECORD_HEADER.unpack_from(record)
    if magic != _RECORD_MAGIC:
        raise FormatError(f"record starts with {bytes(magic)!r}, expected {_RECORD_MAGIC!r}")
    start = _RECORD_HEADER.size + 4 * count
    if not 1 <= count <= MAX_FRAMES or start > size:
        raise FormatError(f"record of {size} bytes says that it holds {count} frames")
    spans = []
    for length in struct.unpack_from(f"<{count}I", record, _RECORD_HEADER.size):
        spans.append((start, start + length))
        start += length
    if start != size:
        raise FormatError(f"record has {size} bytes, its header adds up to {start}")
    return spans


def frame_views(record: bytes | memoryview) -> Sequence[memoryview]:
    """Return the encoded frames of a record, in order, without copying. Raises FormatError as ``frame_spans`` does."""
    view = memoryview(record)
    size = len(view)
    if size >= _PAIR_BYTES:
        # Nearly all records hold two: 0.9 microseconds less than the general way, where the caches are cold.
        magic, count, first, second = _unpack_pair(view)
        middle = _PAIR_BYTES + first
        if count == 2 and magic == _RECORD_MAGIC and middle + second == size:
            return view[_PAIR_BYTES:middle], view[middle:]
    return [view[start:stop] for start, stop in frame_spans(view)]


def decode_record(record: bytes) -> list[bytes]:
    """Return the encoded frames of a record, in order. Raises FormatError as ``frame_spans`` does."""
    return [bytes(frame) for frame in frame_views(record)]


def expected_fields(kind: str, schema: pa.Schema) -> tuple[pa.Field, ...]:
    """Return the columns that a sidecar of this schema has to start with: FIRST_FIELDS, and where ``records`` has more,
    PLACE_FIELDS too."""
    fields = FIRST_FIELDS[kind]
    return tuple(RECORDS_SCHEMA) if kind == "records" and len(schema) > len(fields) else fields


def open_sidecar(path: str | Path, content: pa.Buffer | None = None) -> pa.Table:
    """Open one sidecar.

    Args:
        path: for messages, and the file that is memory-mapped without ``content``.
        content: of the file.

    Returns:
        A table whose columns point into the mapped file. No place in it leads outside of the file, whoever wrote it.

    Raises:
        FormatError: not a complete Arrow IPC file, compressed, or one whose buffers are too short for its rows.
        OSError: the file cannot be opened.
    """
    content = map_file(str(path)) if content is None else content
    try:
        if content.size and has_compressed_batches(memoryview(content)):
            raise FormatError("its batches are compressed, expected plain ones")
        table = pa.ipc.open_file(pa.BufferReader(content)).read_all()
        table.validate(full=True)
    # An empty file reads as no Arrow file.
    except (pa.ArrowException, OSError, ValueError) as error:
        told = " ".join(str(error).split())[:300]
        raise FormatError(f"{path}: not a complete Arrow IPC file ({told}); convert this shard again") from None
    return table


def reopen_sidecar(path: str | Path, content: pa.Buffer) -> pa.Table:
    """Open a sidecar that ``open_sidecar`` opened before and that is the same file still.

    An Arrow file has the stream of its batches in it, behind eight bytes. Reading that takes half the time of going by
    the footer, for which Arrow goes through another thread (250 instead of 460 microseconds, 110 instead of 150 of the
    processor).

    Args:
        path: for messages.
        content: of the file.

    Raises:
        FormatError: it is not the same after all.
    """
    try:
        return pa.ipc.open_stream(content.slice(8)).read_all()
    except (pa.ArrowException, ValueError) as error:
        raise FormatError(f"{path}: it was changed while it was in use ({error})") from None
