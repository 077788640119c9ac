"""Parts of shards as converting leaves them in the journal, with a column of every kind that sources have."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from convert.dataset import Part
from convert.index_file import write_part
from stream.format import TableKind
from stream.schema import EPISODE_FIELDS, RECORD_FIELDS, STEP_FIELDS, TEXT

OFFSET = 2
ACTION = (
    Part(path="action", dims=3, quantity="other", mode="delta"),
    Part(path="flag", dims=1, quantity="gripper", mode="flag"),
)
STATE = (Part(path="observation/state", dims=2, select=(4, 0), quantity="other", mode="absolute", names=("b", "a")),)


def shard_tables(episodes: int, seed: int, *, absent: bool = True) -> dict[TableKind, pa.Table]:
    """Return the parts of one shard of random content.

    Args:
        episodes: Number of them, of 0 to 6 steps each.
        seed: Of the content.
        absent: Whether features are missing in some rows.
    """
    random = np.random.default_rng(seed)
    steps = random.integers(0, 7, episodes)
    records = np.maximum(steps - OFFSET, 0)
    first_steps, first_records = np.cumsum(steps) - steps, np.cumsum(records) - records
    zeros = np.zeros(episodes, np.int64)
    rows = int(steps.sum())

    def texts(prefix: str, count: int) -> list[str]:
        return [f"{prefix} {number}" for number in random.integers(0, 4, count)]

    def feature(name: str, kind: pa.DataType, count: int, value: Callable[[], Any]) -> tuple[pa.Field, pa.Array]:
        values = [None if absent and random.random() < 0.2 else value() for _ in range(count)]
        return pa.field(name, kind, metadata={"shape": json.dumps([])}), _array(values, kind)

    def numbers(count: int) -> list[float]:
        return [float(number) for number in random.standard_normal(count).astype(np.float32)]

    def words() -> list[str]:
        return ["ab"[: random.integers(0, 3)] for _ in range(random.integers(0, 4))]

    def bits(count: int) -> list[bool]:
        return [bool(bit) for bit in random.integers(0, 2, count)]

    heads = {
        "episode": np.arange(episodes),
        "shard": zeros,
        "episode_id": [f"shard-{seed}__{number}" for number in range(episodes)],
        "source_file": [f"shard-{seed}"] * episodes,
        "source_position": np.arange(episodes),
        "status": ["ok" if count else "too_short" for count in records],
        "num_steps": steps,
        "first_steps_row": first_steps,
        "num_records": records,
        "first_record": first_records,
        "language": texts("open", episodes),
        "robot": ["arm"] * episodes,
    }
    number = np.repeat(np.arange(episodes), records)
    step = np.arange(len(number)) - np.repeat(first_records, records)
    places = {
        "shard": np.zeros(len(number), np.int64),
        "episode": number,
        "step": step,
        "camera": np.zeros(len(number), np.int64),
        "offset": np.full(len(number), OFFSET),
        "steps_row": np.repeat(first_steps, records) + step,
        "position": np.arange(len(number)) * 1000,
        "num_bytes": random.integers(1, 1000, len(number)),
        "xxh3_64": random.integers(0, 1 << 64, len(number), np.uint64),
    }
    own = {
        "episode": np.repeat(np.arange(episodes), steps),
        "step": np.arange(rows) - np.repeat(first_steps, steps),
        "language": texts("open", rows),
    }
    features = [
        feature("action_", pa.list_(pa.float32(), 3), rows, lambda: numbers(3)),
        feature("flag", pa.bool_(), rows, lambda: bits(1)[0]),
        feature("observation/state", pa.list_(pa.float64(), 5), rows, lambda: numbers(5)),
        feature("half", pa.float16(), rows, lambda: np.float16(random.random())),
        feature("count", pa.uint64(), rows, lambda: int(random.integers(0, 1 << 63)) * 2),
        feature("bits", pa.list_(pa.bool_(), 5), rows, lambda: bits(5)),
        feature("words", pa.list_(pa.large_string(), 2), rows, lambda: [*words(), None, "é"][:2]),
        feature(
            "ragged", pa.large_list(pa.int16()), rows, lambda: random.integers(0, 9, random.integers(0, 4)).tolist()
        ),
        feature("nested", pa.large_list(pa.large_list(pa.large_string())), rows, lambda: [words(), [], words()]),
        feature("pairs", pa.large_list(pa.list_(pa.float32(), 2)), rows, lambda: [numbers(2)] * random.integers(0, 3)),
        feature("said", TEXT, rows, lambda: texts("say", 1)[0]),
    ]
    more = [
        feature("success", pa.bool_(), episodes, lambda: bits(1)[0]),
        feature("notes", pa.large_list(pa.large_string()), episodes, words),
        feature("scene", pa.large_string(), episodes, lambda: texts("kitchen", 1)[0]),
    ]
    return {
        "episodes": _table(EPISODE_FIELDS, heads, more),
        "steps": _table(STEP_FIELDS, own, features),
        "records": _table(RECORD_FIELDS, places, []),
    }


def write_parts(folder: Path, shards: Sequence[Mapping[TableKind, pa.Table]]) -> list[dict[TableKind, Path]]:
    """Write the parts of shards into a new folder; returns the files of each."""
    folder.mkdir(parents=True)
    parts = []
    for number, tables in enumerate(shards):
        parts.append({kind: folder / f"{number:05}.{kind}.arrow" for kind in tables})
        for kind, table in tables.items():
            write_part(parts[-1][kind], table)
    return parts


def _table(
    fields: Sequence[pa.Field], values: Mapping[str, Any], more: Sequence[tuple[pa.Field, pa.Array]]
) -> pa.Table:
    arrays = [_array(values[field.name], field.type) for field in fields]
    schema = pa.schema([*fields, *(field for field, _ in more)])
    return pa.Table.from_arrays([*arrays, *(array for _, array in more)], schema=schema)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.large_string()).dictionary_encode() if kind == TEXT else pa.array(values, kind)
