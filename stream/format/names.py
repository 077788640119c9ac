"""The on-disk format, version 2: names of files and the layout of a record. ``convert`` writes it.

A converted dataset has these files::

    ROOT/<dataset>/<version>/dataset.json                                 manifest, written last
    ROOT/<dataset>/<version>/quarantine.jsonl                             list of the episodes left out
    ROOT/<dataset>/<version>/fetched.json                                 list of the shards present, if not all are
    ROOT/<dataset>/<version>/<split>/episodes.arrow                       one row per episode of the split
    ROOT/<dataset>/<version>/<split>/steps.arrow                          one row per step of the split
    ROOT/<dataset>/<version>/<split>/records.arrow                        one row per record of the split
    ROOT/<dataset>/<version>/<split>/labels/<name>.arrow                  columns added later, one row per step
    ROOT/<dataset>/<version>/<split>/<split>-00007-of-01024.arrayrecord   the frames
    ROOT/<dataset>/<version>/<split>/cached/<split>-00007...arrayrecord   records that were read in place, in a cache

The three tables are the index of a split, and labels are further columns of ``steps``. Each table is an uncompressed
Arrow IPC file of one record batch, so every column is one contiguous array that can be mapped. Rows follow the order of
shards, episodes and steps. The columns are defined in ``stream.format.schema``.

The layout says what a record of an ArrayRecord file is:

- ``pairs``: the frames of one pair (t, t + offset) of one camera.
- ``frames``: one frame of one camera, a JPEG or a depth map (``stream.format.frame``). An episode of n steps and k
  cameras has n * k records, camera after camera, each from step 0 to n - 1. A missing or damaged frame of the source is
  a hole: a record without frames.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, get_args

from stream.base.errors import FormatError

FORMAT_VERSION = 2
MANIFEST_NAME = "dataset.json"
QUARANTINE_NAME = "quarantine.jsonl"
FETCHED_NAME = "fetched.json"
LABELS = "labels"
"""Folder of a split with the tables of labels."""

Layout = Literal["pairs", "frames"]
LAYOUTS: tuple[Layout, ...] = ("pairs", "frames")

TableKind = Literal["episodes", "steps", "records"]
TABLE_KINDS: tuple[TableKind, ...] = ("episodes", "steps", "records")
"""The tables of a split's index."""
SEARCHED: tuple[TableKind, ...] = ("steps", "episodes", "records")
"""The order in which a column is looked up: a step's own value goes before that of its episode."""

BLOCK, BLOCK_HEADER = 64 << 10, 24
"""Size of the blocks of an ArrayRecord file, and of the header that each block begins with (Riegeli's format)."""

VectorName = Literal["action", "state"]
VECTORS: tuple[VectorName, ...] = ("action", "state")
"""The registry's default vectors."""

MOTION: Final = "motion"
SpaceColumn = Literal["action_oxe", "action_eef_delta", "action_joint", "state_eef", "state_joint"]
DerivedName = Literal[VectorName, SpaceColumn, "motion"]
DERIVED: tuple[DerivedName, ...] = get_args(DerivedName)
"""Derived columns of ``steps``: functions of the other columns and the registry.

The default vectors and those in canonical spaces are float32 lists of a fixed size. A dataset without an action, a
state or a space lacks the column. A number in a space that a step does not have is NaN.

``motion`` is one float32: how far the robot moves from this step to the next, NaN where the dataset does not say.
"""

RECORD_MAGIC = b"FRM1"
RECORD_HEADER = struct.Struct("<4sI")
HOLE = RECORD_HEADER.pack(RECORD_MAGIC, 0)
"""Record without frames, only in the ``frames`` layout."""
MAX_FRAMES = 1 << 16
"""Largest number of frames in a record."""
MAX_PIXELS = 1 << 26
"""Most pixels of a frame: 64 megapixels."""


def split_of(stem: str) -> str:
    """Return the split of a shard: ``train`` for ``train-00007-of-01024``."""
    return stem.rsplit("-", 3)[0]


def shard_file(stem: str) -> str:
    """Return the file name of a shard, such as ``train-00007-of-01024.arrayrecord``."""
    return f"{stem}.arrayrecord"


def cached_copy(shard_path: Path) -> Path:
    """Return the sparse file with the records of a shard that were read in place, in the folder ``cached``."""
    return shard_path.parent / "cached" / shard_path.name


def table_file(kind: TableKind) -> str:
    """Return the file name of a table of the index, such as ``steps.arrow``."""
    return f"{kind}.arrow"


def label_file(label_name: str) -> str:
    """Return the file name of a table of labels, such as ``progress.arrow``."""
    return f"{label_name}.arrow"


def waiting_label(label_name: str, sha256: str) -> str:
    """Return the file name of a table of labels before the manifest names it, and before it is removed.

    >>> waiting_label("progress", "0f" * 32)
    '.progress.0f0f0f0f0f0f0f0f.arrow'
    """
    return f".{label_name}.{sha256[:16]}.arrow"


def tables_of(column: str, kinds: Sequence[TableKind] = SEARCHED) -> tuple[Sequence[TableKind], str]:
    """Return the tables in which to look up a column, and its name in them.

    >>> tables_of("steps.language"), tables_of("language")
    ((('steps',), 'language'), (('steps', 'episodes', 'records'), 'language'))
    """
    prefix, _, suffix = column.partition(".")
    return next((((kind,), suffix) for kind in kinds if kind == prefix and suffix), (kinds, column))


def frame_views(record: bytes | memoryview) -> list[memoryview]:
    """Return the encoded frames of a record, in order, without copying.

    Raises:
        FormatError: The record does not start with the magic bytes, or its lengths do not add up to its size.
    """
    record_view = memoryview(record)
    record_size = len(record_view)
    if record_size < RECORD_HEADER.size:
        raise FormatError(f"record of {record_size} bytes is shorter than its {RECORD_HEADER.size}-byte header")
    magic_bytes, num_frames = RECORD_HEADER.unpack_from(record_view)
    if magic_bytes != RECORD_MAGIC:
        raise FormatError(f"record starts with {bytes(magic_bytes)!r}, expected {RECORD_MAGIC!r}")
    frame_start = RECORD_HEADER.size + 4 * num_frames
    if not 1 <= num_frames <= MAX_FRAMES or frame_start > record_size:
        raise FormatError(f"record of {record_size} bytes says that it holds {num_frames} frames")
    frames = []
    for frame_size in struct.unpack_from(f"<{num_frames}I", record_view, RECORD_HEADER.size):
        frames.append(record_view[frame_start : frame_start + frame_size])
        frame_start += frame_size
    if frame_start != record_size:
        raise FormatError(f"record has {record_size} bytes, its header adds up to {frame_start}")
    return frames


def decode_record(record: bytes) -> list[bytes]:
    """Return copies of the encoded frames of a record; raise FormatError as ``frame_views`` does."""
    return [bytes(frame) for frame in frame_views(record)]
