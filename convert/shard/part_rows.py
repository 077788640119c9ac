"""The rows of one shard's part of the index, gathered episode by episode, and the tables that they become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from convert.shard.columns import arrow_array, arrow_field
from convert.source.features import Feature
from convert.source.rlds import Column, Episode
from stream.format.names import TableKind
from stream.format.schema import FIRST_FIELDS, RECORD_FIELDS, feature_column

_Head = dict[str, str | int]


class PartRows:
    """Rows of a part. Numbers count in the shard.

    Attributes:
        num_steps: Steps so far.
        num_records: Records so far.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self._features: dict[TableKind, list[Feature]] = {
            "steps": [feature for feature in features if feature.level == "step"],
            "episodes": [feature for feature in features if feature.level == "episode"],
        }
        # By level, because a step and its episode may have a feature of the same name.
        self._columns: dict[TableKind, list[dict[str, Column]]] = {"steps": [], "episodes": []}
        self._records: list[dict[str, np.ndarray]] = []
        self._language: list[str] = []
        self._heads: list[_Head] = []
        self.num_steps = 0
        self.num_records = 0

    @property
    def num_episodes(self) -> int:
        """Episodes so far."""
        return len(self._heads)

    @property
    def paired_episodes(self) -> int:
        """Episodes with records so far."""
        return sum(int(head["num_records"]) > 0 for head in self._heads)

    @property
    def longest(self) -> int:
        """Steps of the longest episode so far."""
        return max((int(head["num_steps"]) for head in self._heads), default=0)

    def add(
        self,
        episode: Episode | None,
        *,
        source_file: str,
        position: int,
        status: str,
        language: Sequence[str],
        robot: str,
        starts: Sequence[int],
        offset: int,
    ) -> None:
        """Add an episode.

        Args:
            episode: Episode, None if it could not be read.
            source_file: Name of its file.
            position: Record number in its file.
            status: See ``stream.format.schema.EPISODE_FIELDS``.
            language: Instruction of each step.
            robot: Name of the robot.
            starts: First step of each record.
            offset: Distance of a record's last frame from its first.
        """
        steps = 0 if episode is None else episode.num_steps
        first = np.array(starts, np.int64)
        numbers = {"episode": self.num_episodes, "offset": offset, "camera": 0, "shard": 0}
        self._records.append(
            {
                "step": first,
                "steps_row": first + self.num_steps,
                **{name: np.full(len(first), number) for name, number in numbers.items()},
            }
        )
        self._heads.append(
            {
                "episode": self.num_episodes,
                "shard": 0,
                "episode_id": f"{source_file}__{position}",
                "source_file": source_file,
                "source_position": position,
                "status": status,
                "num_steps": steps,
                "first_steps_row": self.num_steps,
                "num_records": len(starts),
                "first_record": self.num_records,
                "language": next((text for text in language if text), ""),
                "robot": robot,
            }
        )
        found = {"steps": episode.steps, "episodes": episode.episode} if episode else {"steps": {}, "episodes": {}}
        for kind, features in self._features.items():
            absent = {feature.name: _absent(feature) for feature in features}
            self._columns[kind].append({**absent, **found[kind]})
        self._language += language
        self.num_steps += steps
        self.num_records += len(starts)

    def tables(self, places: dict[str, np.ndarray]) -> dict[TableKind, pa.Table]:
        """Return the tables of the part.

        Args:
            places: Columns ``position``, ``num_bytes`` and ``xxh3_64`` of the records.
        """
        lengths = np.array([head["num_steps"] for head in self._heads], np.int64)
        steps = {
            "episode": np.repeat(np.arange(len(lengths)), lengths),
            "step": np.concatenate([np.zeros(0, np.int64), *map(np.arange, lengths)]),
            "language": self._language,
        }
        return {
            "episodes": self._table("episodes", {name: [head[name] for head in self._heads] for name in _EPISODES}),
            "steps": self._table("steps", steps),
            "records": self._record_table(places),
        }

    def _record_table(self, places: dict[str, np.ndarray]) -> pa.Table:
        none = np.zeros(0, np.int64)
        joined = {
            field.name: np.concatenate([none, *(rows[field.name] for rows in self._records)])
            for field in RECORD_FIELDS
            if field.name not in places
        }
        arrays = [_array({**joined, **places}[field.name], field) for field in RECORD_FIELDS]
        return pa.Table.from_arrays(arrays, schema=pa.schema(RECORD_FIELDS))

    def _table(self, kind: TableKind, own: dict[str, Any]) -> pa.Table:
        fields = list(FIRST_FIELDS[kind])
        arrays = [_array(own[field.name], field) for field in fields]
        for feature in self._features[kind]:
            field = arrow_field(feature)
            fields.append(field.with_name(feature_column(kind, field.name)))
            arrays.append(arrow_array(feature, [row[feature.name] for row in self._columns[kind]]))
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


_EPISODES = [field.name for field in FIRST_FIELDS["episodes"]]


def _array(values: Any, field: pa.Field) -> pa.Array:
    if pa.types.is_dictionary(field.type):
        return pa.array(values, field.type.value_type).dictionary_encode()
    return pa.array(values, field.type)


def _absent(feature: Feature) -> Column:
    """Return the column of an episode that could not be read: no steps, or one episode without a value."""
    rows = 1 if feature.level == "episode" else 0
    lengths = tuple(np.zeros(rows if level == 0 else 0, np.int64) for level in range(len(feature.sequences)))
    return Column(feature=feature, values=None, lengths=lengths, rows=rows)
