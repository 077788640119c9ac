"""A small index of one split, written by Arrow: three episodes of six steps, four records each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stream.format.index import SplitIndex
from stream.format.names import TableKind, table_file
from stream.format.record_file import SplitShards
from stream.format.schema import FIRST_FIELDS, TEXT
from stream.format.table import open_table

EPISODES, STEPS, RECORDS = 3, 6, 4


@dataclass(frozen=True, eq=False)
class SmallIndex(SplitIndex):
    """An open index, and its rows as Python's own values."""

    rows: list[dict[str, Any]]
    """What the three tables say of each record, by ``table.column``."""


def small_index(folder: Path, **further: Mapping[str, Any]) -> SmallIndex:
    """Write and open an index. ``further``: columns of each table beside those of the format, by name."""
    values = _values()
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
    rows = []
    for record in python["records"]:
        tables_of_record = {
            "records": record,
            "steps": python["steps"][record["steps_row"]],
            "episodes": python["episodes"][record["episode"]],
        }
        rows.append({f"{kind}.{key}": value for kind, row in tables_of_record.items() for key, value in row.items()})
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


def _values() -> dict[TableKind, dict[str, Any]]:
    """Return the values of the format's columns, by table."""
    episodes, steps, records = np.arange(EPISODES), np.arange(EPISODES * STEPS), np.arange(EPISODES * RECORDS)
    return {
        "episodes": {
            "episode": episodes,
            "shard": [0, 0, 1],
            "episode_id": [f"e{episode}" for episode in episodes],
            "source_file": ["a", "a", "b"],
            "source_position": [0, 1, 0],
            "status": ["ok"] * EPISODES,
            "num_steps": [STEPS] * EPISODES,
            "first_steps_row": STEPS * episodes,
            "num_records": [RECORDS] * EPISODES,
            "first_record": RECORDS * episodes,
            "language": ["", "pick", "place"],
            "robot": ["arm", "arm", "hand"],
        },
        "steps": {
            "episode": steps // STEPS,
            "step": steps % STEPS,
            "language": [("pick", "place", "wait")[step % 3] for step in steps],
        },
        "records": {
            "shard": np.array([0, 0, 1])[records // RECORDS],
            "episode": records // RECORDS,
            "step": records % RECORDS,
            "camera": 0 * records,
            "offset": 0 * records + 2,
            "steps_row": records // RECORDS * STEPS + records % RECORDS,
            "position": 1000 * records,
            "num_bytes": 0 * records + 900,
            "xxh3_64": np.uint64(2**64 - 1) - records.astype(np.uint64),
        },
    }


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.large_string() if kind == TEXT else kind
