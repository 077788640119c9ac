"""The columns of an index, as Arrow has them.

A module of its own: workers, which use the rest of the format, do without pyarrow.
"""

from __future__ import annotations

import pyarrow as pa

from stream.format.names import DERIVED, TableKind

TEXT = pa.dictionary(pa.int32(), pa.large_string())
"""Texts that mostly repeat."""

RECORD_FIELDS = (
    pa.field("shard", pa.int32(), nullable=False),
    pa.field("episode", pa.int32(), nullable=False),
    pa.field("step", pa.int32(), nullable=False),
    pa.field("camera", pa.int8(), nullable=False),
    pa.field("offset", pa.int32(), nullable=False),
    pa.field("steps_row", pa.int64(), nullable=False),
    pa.field("position", pa.int64(), nullable=False),
    pa.field("num_bytes", pa.int32(), nullable=False),
    pa.field("xxh3_64", pa.uint64(), nullable=False),
)
"""The columns of ``records``. Within a shard, row i describes record i of its ArrayRecord file.

shard: number in the manifest's list of shards. episode: row in ``episodes``. step: t, counted from 0 in the episode.
camera: number in the manifest's list of cameras. offset: the last frame is that of step t + offset. steps_row: row of
step t in ``steps``. position: first byte of the record in its file. num_bytes: size of the record; where the record
crosses a border of BLOCK bytes, a header of BLOCK_HEADER bytes that is not part of it lies in the file. xxh3_64: XXH3
of the record, 64 bits.
"""

EPISODE_FIELDS = (
    pa.field("episode", pa.int32(), nullable=False),
    pa.field("shard", pa.int32(), nullable=False),
    pa.field("episode_id", pa.large_string(), nullable=False),
    pa.field("source_file", TEXT, nullable=False),
    pa.field("source_position", pa.int64(), nullable=False),
    pa.field("status", TEXT, nullable=False),
    pa.field("num_steps", pa.int32(), nullable=False),
    pa.field("first_steps_row", pa.int64(), nullable=False),
    pa.field("num_records", pa.int32(), nullable=False),
    pa.field("first_record", pa.int64(), nullable=False),
    pa.field("language", TEXT, nullable=False),
    pa.field("robot", TEXT, nullable=False),
)
"""The first columns of ``episodes``; the dataset's own episode features follow, under their paths.

One row per episode of the source that was asked for, unreadable ones included, in the order of the source. episode: the
number of the row. episode_id: TFDS's id of the example, ``<source file>__<position>``. source_position: record number
in the source file. status: ``ok``, or the reason why the episode gave no pair (``empty``, ``too_short``,
``unreadable``, ``malformed``, ``missing_feature``).
"""

STEP_FIELDS = (
    pa.field("episode", pa.int32(), nullable=False),
    pa.field("step", pa.int32(), nullable=False),
    pa.field("language", TEXT, nullable=False),
)
"""The first columns of ``steps``; derived columns and the dataset's own step features follow.

Features have their paths below ``steps`` as names (``action/world_vector``, ``observation/state``, ``reward``), see
``feature_column``. Features with a shape are fixed-size lists, flattened row-major; their field metadata has the keys
``shape`` and ``dtype`` of the source.
"""

FIRST_FIELDS: dict[TableKind, tuple[pa.Field, ...]] = {
    "episodes": EPISODE_FIELDS,
    "steps": STEP_FIELDS,
    "records": RECORD_FIELDS,
}
"""The columns that every table of a kind starts with."""

_TAKEN: dict[TableKind, frozenset[str]] = {
    kind: frozenset({field.name for field in fields} | (set(DERIVED) if kind == "steps" else set()))
    for kind, fields in FIRST_FIELDS.items()
}


def feature_column(kind: TableKind, name: str) -> str:
    """Return the column that holds a feature: its name, with an underscore behind if the format has that name itself.

    >>> feature_column("steps", "observation/state"), feature_column("steps", "action")
    ('observation/state', 'action_')
    """
    return f"{name}_" if name in _TAKEN[kind] else name
