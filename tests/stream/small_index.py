"""A small index of one split, written by Arrow: three episodes of six steps, four records each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from stream.format.index import SplitIndex
from stream.format.names import TableKind, table_file
from stream.format.schema import FIRST_FIELDS, TEXT
from stream.format.shards import SplitShards
from stream.format.table import open_table

EPISODES, STEPS, RECORDS = 3, 6, 4


@dataclass(frozen=True, eq=False)
class SmallIndex(SplitIndex):
    """An open index, and its rows as Python's own values."""

    rows: list[dict[str, Any]]
    """What the three tables say of each record, by ``table.column``."""


def small_index(folder: Path, **further: Mapping[str, Any]) -> SmallIndex:
    """Write and open an index. ``further``: columns of each table beside those of the format, by name."""
    ranges = range(EPISODES), range(EPISODES * STEPS), range(EPISODES * RECORDS)
    values: dict[TableKind, dict[str, Any]] = {
        "episodes": {
            "episode": list(ranges[0]),
            "shard": [0, 0, 1],
            "episode_id": [f"e{i}" for i in ranges[0]],
            "source_file": ["a", "a", "b"],
            "source_position": [0, 1, 0],
            "status": ["ok"] * EPISODES,
            "num_steps": [STEPS] * EPISODES,
            "first_steps_row": [STEPS * i for i in ranges[0]],
            "num_records": [RECORDS] * EPISODES,
            "first_record": [RECORDS * i for i in ranges[0]],
            "language": ["", "pick", "place"],
            "robot": ["arm", "arm", "hand"],
        },
        "steps": {
            "episode": [i // STEPS for i in ranges[1]],
            "step": [i % STEPS for i in ranges[1]],
            "language": [("pick", "place", "wait")[i % 3] for i in ranges[1]],
        },
        "records": {
            "shard": [(0, 0, 1)[i // RECORDS] for i in ranges[2]],
            "episode": [i // RECORDS for i in ranges[2]],
            "step": [i % RECORDS for i in ranges[2]],
            "camera": [0 for _ in ranges[2]],
            "offset": [2 for _ in ranges[2]],
            "steps_row": [i // RECORDS * STEPS + i % RECORDS for i in ranges[2]],
            "position": [1000 * i for i in ranges[2]],
            "num_bytes": [900 for _ in ranges[2]],
            "xxh3_64": [2**64 - 1 - i for i in ranges[2]],
        },
    }
    tables, python = {}, {}
    for kind, fields in FIRST_FIELDS.items():
        columns = {field.name: pa.array(values[kind][field.name], _plain(field.type)) for field in fields}
        arrays = [
            column.dictionary_encode() if field.type == TEXT else column
            for field, column in zip(fields, columns.values(), strict=True)
        ]
        schema = pa.schema(fields)
        for name, column in further.get(kind, {}).items():
            array = column if isinstance(column, pa.Array) else pa.array(column)
            arrays.append(array)
            schema = schema.append(pa.field(name, array.type))
        batch = pa.record_batch(arrays, schema=schema)
        path = folder / table_file(kind)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(batch)
        tables[kind], python[kind] = open_table(path, kind), batch.to_pylist()
    rows = [
        {f"records.{name}": value for name, value in record.items()}
        | {f"steps.{name}": value for name, value in python["steps"][record["steps_row"]].items()}
        | {f"episodes.{name}": value for name, value in python["episodes"][record["episode"]].items()}
        for record in python["records"]
    ]
    return SmallIndex(
        member=0,
        dataset="bridge",
        split="train",
        folder=str(folder),
        remote=None,
        shards=SplitShards.of(()),
        episodes=tables["episodes"],
        steps=tables["steps"],
        records=tables["records"],
        rows=rows,
    )


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.large_string() if kind == TEXT else kind
