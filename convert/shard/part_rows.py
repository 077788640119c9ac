"""Rows of one shard's part of the index, gathered episode by episode and given on in batches of Arrow columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from convert.source.episode import Column, Episode, absent_column, episode_id
from convert.source.features import Feature
from stream.format.names import TABLE_KINDS, TableKind
from stream.format.schema import FIRST_FIELDS, TEXT, feature_column

_LEVELS: dict[TableKind, str] = {"steps": "step", "episodes": "episode"}
_BATCH = 8 << 20
"""Bytes of columns that memory holds."""


class PartRows:
    """Rows of a part; their numbers count in the shard.

    Args:
        offset: Distance of a record's last frame from its first.
        write_batch: Takes the batches of each table, in order. ``records`` has one batch, the last of all.
    """

    def __init__(
        self, features: Sequence[Feature], *, offset: int, write_batch: Callable[[TableKind, pa.RecordBatch], None]
    ) -> None:
        self._offset = offset
        self._write = write_batch
        self._held = 0
        self._features = {
            kind: [feature for feature in features if feature.level == _LEVELS.get(kind)] for kind in TABLE_KINDS
        }
        # By level, because a step and its episode may have a feature of the same name.
        self._columns: dict[TableKind, list[Mapping[str, Column]]] = {"steps": [], "episodes": []}
        self._rows: dict[TableKind, list[dict[str, Any]]] = {kind: [] for kind in TABLE_KINDS}
        self.num_episodes = self.num_steps = self.num_records = self.paired_episodes = self.longest = 0

    def add(
        self,
        episode: Episode | None,
        position: int,
        *,
        source_file: str,
        status: str,
        language: Sequence[str],
        robot: str,
        first_steps: Sequence[int],
        cameras: Sequence[int],
    ) -> None:
        """Add an episode, None if it could not be read.

        Args:
            position: Record number in its file.
            status: See ``stream.format.schema.EPISODE_FIELDS``.
            language: Instruction of each step.
            first_steps: First step of each record.
            cameras: Number of the camera of each record.
        """
        num_steps, num_records = 0 if episode is None else episode.num_steps, len(first_steps)
        episode_row = {
            "episode": self.num_episodes,
            "shard": 0,
            "episode_id": episode_id(source_file, position),
            "source_file": source_file,
            "source_position": position,
            "status": status,
            "num_steps": num_steps,
            "first_steps_row": self.num_steps,
            "num_records": num_records,
            "first_record": self.num_records,
            "language": next((instruction for instruction in language if instruction), ""),
            "robot": robot,
        }
        self._rows["episodes"].append({column: [value] for column, value in episode_row.items()})
        self._rows["steps"].append(
            {"episode": np.full(num_steps, self.num_episodes), "step": np.arange(num_steps), "language": language}
        )
        constants = {"episode": self.num_episodes, "offset": self._offset, "shard": 0}
        first_step_numbers, camera_numbers = np.array(first_steps, np.int64), np.array(cameras, np.int64)
        self._rows["records"].append(
            {column: np.full(num_records, value) for column, value in constants.items()}
            | {"step": first_step_numbers, "camera": camera_numbers, "steps_row": first_step_numbers + self.num_steps}
        )
        self._columns["steps"].append({} if episode is None else episode.steps)
        self._columns["episodes"].append({} if episode is None else episode.episode)
        self._held += sum(map(_size, chain(*(level_columns[-1].values() for level_columns in self._columns.values()))))
        self.num_episodes += 1
        self.num_steps += num_steps
        self.num_records += num_records
        self.paired_episodes += num_records > 0
        self.longest = max(self.longest, num_steps)
        if self._held > _BATCH:
            self._write_features()

    def finish(self, record_locations: dict[str, np.ndarray]) -> None:
        """Write what is left; ``record_locations`` are the columns of ``find_locations``."""
        self._write_features()
        self._write("records", self._batch("records", record_locations))

    def _write_features(self) -> None:
        for kind in _LEVELS:
            self._write(kind, self._batch(kind, {}))
            self._rows[kind].clear()
            self._columns[kind].clear()
        self._held = 0

    def _batch(self, kind: TableKind, known_columns: Mapping[str, np.ndarray]) -> pa.RecordBatch:
        fields = list(FIRST_FIELDS[kind])
        arrays = []
        for field in fields:
            is_known = field.name in known_columns
            blocks = [known_columns[field.name]] if is_known else [row[field.name] for row in self._rows[kind]]
            arrays.append(_array(blocks, field))
        for feature in self._features[kind]:
            # An unreadable episode has no steps, and one row without a value in the table of episodes.
            absent = absent_column(feature, num_rows=1 if kind == "episodes" else 0)
            field = arrow_field(feature)
            fields.append(field.with_name(feature_column(kind, field.name)))
            arrays.append(arrow_array(feature, [row.get(feature.name, absent) for row in self._columns[kind]]))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _size(column: Column) -> int:
    """Return about how many bytes of memory a column takes."""
    return column.values.nbytes if isinstance(column.values, np.ndarray) else 64 * len(column.values or ())


def _array(value_blocks: Sequence[Any], arrow_column: pa.Field) -> pa.Array:
    if pa.types.is_integer(arrow_column.type):
        return pa.array(np.concatenate(value_blocks) if value_blocks else [], arrow_column.type)
    all_texts = list(chain.from_iterable(value_blocks))
    if pa.types.is_dictionary(arrow_column.type):
        return pa.array(all_texts, arrow_column.type.value_type).dictionary_encode()
    return pa.array(all_texts, arrow_column.type)


def arrow_field(feature: Feature) -> pa.Field:
    """Return the Arrow field of a feature.

    Scalars are plain columns, values with a shape are fixed-size lists (row-major; the shape is in the metadata),
    sequences are lists around that. Texts of steps are dictionary-encoded, because they mostly repeat.
    """
    arrow_type = pa.large_string() if feature.dtype == "string" else pa.from_numpy_dtype(feature.dtype)
    if feature.shape:
        arrow_type = pa.list_(arrow_type, feature.size or 0)
    for _ in feature.sequences:
        arrow_type = pa.large_list(arrow_type)
    if arrow_type == pa.large_string() and feature.level == "step":
        arrow_type = TEXT
    metadata = {"dtype": feature.dtype, "shape": json.dumps(list(feature.shape))}
    return pa.field(feature.name, arrow_type, metadata=metadata)


def arrow_array(feature: Feature, columns: Sequence[Column]) -> pa.Array:
    """Join the columns of one feature of several episodes, in order; rows that lack it are null."""
    is_text, value_size = feature.dtype == "string", feature.size or 0
    null_rows = None
    if any(column.values is None or column.valid is not None for column in columns):
        null_rows = np.concatenate([_null_rows(column) for column in columns], dtype=bool)
    value_blocks: list[Any] = []
    for column in columns:
        # A row without a value has values under its null, unless it is a list of any length.
        num_fillers = 0 if feature.sequences else column.rows * value_size
        fillers = [None] * num_fillers if is_text else np.zeros(num_fillers, feature.dtype)
        value_blocks.append(fillers if column.values is None else column.values)
    value_mask = None if feature.sequences or feature.shape else null_rows
    if is_text:
        arrow_values: pa.Array = pa.array(list(chain.from_iterable(value_blocks)), pa.large_string(), mask=value_mask)
        if arrow_field(feature).type == TEXT:
            return arrow_values.dictionary_encode()
    else:
        numbers = [np.asarray(block, feature.dtype) for block in ([], *value_blocks)]
        arrow_values = pa.array(np.concatenate(numbers), mask=value_mask)
    null_mask = None if null_rows is None else pa.array(null_rows)
    if feature.shape:
        list_mask = None if feature.sequences else null_mask
        arrow_values = pa.FixedSizeListArray.from_arrays(arrow_values, value_size, mask=list_mask)
    for depth in reversed(range(len(feature.sequences))):
        lengths = np.concatenate([[0], *(column.lengths[depth] for column in columns)])
        offsets = pa.array(np.cumsum(lengths, dtype=np.int64))
        arrow_values = pa.LargeListArray.from_arrays(offsets, arrow_values, mask=null_mask if depth == 0 else None)
    return arrow_values


def _null_rows(column: Column) -> np.ndarray:
    """Return the mask of rows without a value."""
    return np.full(column.rows, column.values is None) if column.valid is None else ~column.valid
