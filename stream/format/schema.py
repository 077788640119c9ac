"""The columns of an index as Arrow fields, apart from ``names`` because workers run without pyarrow."""

from __future__ import annotations

import pyarrow as pa

from stream.format.names import DERIVED, TableKind

TEXT = pa.dictionary(pa.int32(), pa.large_string())
"""Type of texts that repeat."""


def _fields(**types_by_name: pa.DataType) -> tuple[pa.Field, ...]:
    return tuple(pa.field(name, field_type, nullable=False) for name, field_type in types_by_name.items())


RECORD_FIELDS = _fields(
    shard=pa.int32(),  # number in the manifest's list of shards
    episode=pa.int32(),  # row in ``episodes``
    step=pa.int32(),  # t, counted from 0 in the episode
    camera=pa.int8(),  # number in the parameter ``cameras`` of the manifest, 0 in the layout ``pairs``
    offset=pa.int32(),  # the last frame is of step t + offset; 0 in the layout ``frames``
    steps_row=pa.int64(),  # row of step t in ``steps``
    position=pa.int64(),  # byte offset of the record in its file
    num_bytes=pa.int32(),  # size of the record, without the block headers inside it
    xxh3_64=pa.uint64(),  # XXH3 of the record
)
"""The columns of ``records``. Within a shard, row i describes record i of its ArrayRecord file.

A record that crosses the end of a block of BLOCK bytes is interrupted there by a header of BLOCK_HEADER bytes.
"""

EPISODE_FIELDS = _fields(
    episode=pa.int32(),  # number of this row
    shard=pa.int32(),  # number in the manifest's list of shards
    episode_id=pa.large_string(),  # TFDS's id of the example, ``<source file>__<position>``
    source_file=TEXT,  # path in the source
    source_position=pa.int64(),  # number in the source file; of LeRobot, ``episode_index``
    status=TEXT,  # ``ok``, or why the episode gave no pair, such as ``empty``, ``too_short`` or ``unreadable``
    num_steps=pa.int32(),
    first_steps_row=pa.int64(),
    num_records=pa.int32(),
    first_record=pa.int64(),
    language=TEXT,
    robot=TEXT,
)
"""The first columns of ``episodes``; the dataset's own episode features follow, with their paths as names.

Every requested episode of the source has a row, unreadable ones included, in the order of the source.
"""

STEP_FIELDS = _fields(episode=pa.int32(), step=pa.int32(), language=TEXT)
"""The first columns of ``steps``; derived columns and the dataset's own step features follow.

A feature is named by its path below ``steps`` (``action/world_vector``, ``observation/state``, ``reward``), see
``feature_column``. A feature with a shape is a fixed-size list, flattened row-major; its field metadata has the keys
``shape`` and ``dtype`` of the source.
"""

FIRST_FIELDS: dict[TableKind, tuple[pa.Field, ...]] = {
    "episodes": EPISODE_FIELDS,
    "steps": STEP_FIELDS,
    "records": RECORD_FIELDS,
}
"""The columns that every table of a kind starts with."""

_TAKEN: dict[TableKind, frozenset[str]] = {
    kind: frozenset({*(field.name for field in fields), *(DERIVED if kind == "steps" else ())})
    for kind, fields in FIRST_FIELDS.items()
}


def feature_column(kind: TableKind, feature_name: str) -> str:
    """Return the column of a feature: its name, followed by an underscore if a column of the format has that name.

    >>> feature_column("steps", "observation/state"), feature_column("steps", "action")
    ('observation/state', 'action_')
    """
    return f"{feature_name}_" if feature_name in _TAKEN[kind] else feature_name
