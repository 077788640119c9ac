"""Converted datasets of tiny frames, written straight to the format: quick to make, with a column of every kind."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import simplejpeg

from convert.index.tables import merge_index
from convert.jobs import shard_stem
from convert.registry.dataset import Part
from convert.shard.record_file import RecordWriter, encode_record
from stream.format.catalog import Catalog
from stream.format.index import SplitIndex, open_index
from stream.format.manifest import (
    Manifest,
    ShardEntry,
    Source,
    SplitEntry,
    describe_file,
    encode_manifest,
)
from stream.format.names import TABLE_KINDS, DerivedName, TableKind, shard_file, table_file
from stream.format.schema import EPISODE_FIELDS, RECORD_FIELDS, STEP_FIELDS, TEXT
from stream.loader.open_mixture import OpenMixture, open_mixture
from stream.loader.sample_spec import SampleSpec
from tests.fixtures.datasets.arrow_part import write_part
from tests.fixtures.datasets.rewritten_records import admit_table

VERSION = "1.0.0"
Shards = Sequence[Sequence[int]]
"""Steps of each episode, by shard."""


def write_dataset(
    root: Path,
    name: str,
    splits: Mapping[str, Shards],
    *,
    offset: int = 2,
    frame_offsets: Sequence[int] | None = None,
    action: Sequence[str] = ("displacement", "displacement", "flag"),
    state: int = 2,
    rate: float | None = 10.0,
    size: tuple[int, int] = (16, 16),
) -> Path:
    """Write a dataset, and return its folder.

    ``name`` and ``splits`` determine the content. ``offset`` is the distance of the frames of a pair, ``frame_offsets``
    are those of a record's frames from t, ``action`` are the kinds of its dimensions, ``state`` counts those of the
    state (0 for none), ``rate`` is in steps a second, ``size`` in height and width.
    """
    offsets = tuple(frame_offsets or (0, offset))
    folder = root / name / VERSION
    action_parts = [
        Part(path="action", dims=1, select=(i,), quantity="other", kind=kind, names=(f"a{i}",))
        for i, kind in enumerate(action)
    ]
    state_parts = [Part(path="observation/state", dims=state, quantity="other", kind="absolute")] if state else []
    entries = {}
    for split, shards in splits.items():
        split_folder = folder / split
        split_folder.mkdir(parents=True)
        parts: list[dict[TableKind, Path]] = []
        listed = []
        first = 0
        for number, lengths in enumerate(shards):
            stem = shard_stem(split, number, len(shards))
            random = np.random.default_rng(zlib.crc32(f"{name} {stem}".encode()))
            source = f"{name}-{split}.tfrecord-{number:05d}-of-{len(shards):05d}"
            tables = _part_tables(random, lengths, offset, source, len(action), state, name)
            path = split_folder / shard_file(stem)
            with RecordWriter(path, output=split_folder) as writer:
                for row in tables["records"].to_pylist():
                    steps = [row["step"] + distance for distance in offsets]
                    frames = [encoded_frame(name, split, first + row["episode"], step, size) for step in steps]
                    writer.write(encode_record(frames))
            for column, values in writer.locations().items():
                tables["records"] = with_values(tables["records"], column, values)
            parts.append({kind: folder / f"{stem}.{kind}.arrow" for kind in TABLE_KINDS})
            for kind, table in tables.items():
                write_part(parts[-1][kind], table)
            listed.append(
                ShardEntry(
                    name=stem,
                    source_file=source,
                    source_bytes=1,
                    source_digest="0",
                    episodes=len(lengths),
                    steps=len(tables["steps"]),
                    records=len(tables["records"]),
                    paired_episodes=sum(steps > offset for steps in lengths),
                    left_out={},
                    file=describe_file(path),
                )
            )
            first += len(lengths)
        vectors: dict[DerivedName, Any] = {"action": tuple(action_parts), "state": tuple(state_parts)}
        index = merge_index(split_folder, parts, {name: vector for name, vector in vectors.items() if vector})
        for part in parts:
            for path in part.values():
                path.unlink()
        entries[split] = SplitEntry(shards=tuple(listed), index=index, **_totals(listed))
    spec = {
        "action": [part.model_dump() for part in action_parts],
        "state": [part.model_dump() for part in state_parts],
        "control_frequency": rate,
    }
    manifest = Manifest(
        format_version=2,
        layout="pairs",
        dataset=name,
        version=VERSION,
        source=Source(tfds_name=name, version=VERSION, path="", fingerprint="f" * 64),
        parameters={"offset": offset, "frames": "endpoints", "frame_offsets": list(offsets), "columns": []},
        spec=spec,
        image={"encoding": "jpeg", "sizes": {f"{size[0]}x{size[1]}": 1}},
        left_out={},
        quarantine=None,
        splits=entries,
        statistics={},
        versions={},
        **_totals(list(entries.values())),
    )
    (folder / "dataset.json").write_bytes(encode_manifest(manifest))
    return folder


@functools.cache
def encoded_frame(name: str, split: str, episode: int, step: int, size: tuple[int, int] = (16, 16)) -> bytes:
    """Return the JPEG of a step; episode counts in the split."""
    random = np.random.default_rng(zlib.crc32(f"{name} {split} {episode} {step}".encode()))
    image = random.integers(0, 256, (*size, 3), np.uint8)
    return simplejpeg.encode_jpeg(image, quality=90)


def open_data(root: Path, mixture: Any, *, split: str = "train", **options: Any) -> OpenMixture:
    """Open a mixture of a root."""
    return open_mixture(root, mixture, split=split, spec=SampleSpec(**options))


def open_split(folder: Path, split: str = "train") -> SplitIndex:
    """Open the index of a split of a dataset's folder."""
    return open_index(Catalog(folder.parents[1]).open(folder.parent.name), split)


def read_table(folder: Path, kind: TableKind, split: str = "train") -> pa.Table:
    """Return a table of an index as Arrow's own reader gives it, in memory."""
    return pa.ipc.open_file(pa.py_buffer((folder / split / table_file(kind)).read_bytes())).read_all()


def change_table(
    folder: Path, kind: TableKind, change: Callable[[pa.Table], pa.Table], *, split: str = "train"
) -> None:
    """Change a table of an index, and admit it to the manifest."""
    path = folder / split / table_file(kind)
    table = change(read_table(folder, kind, split))
    # Another file: what has mapped the old one keeps it.
    path.unlink()
    write_part(path, table)
    admit_table(folder, split, kind)


def with_values(table: pa.Table, name: str, values: Any) -> pa.Table:
    """Return a table with other values in a column of the same type."""
    field = table.schema.field(name)
    return table.set_column(table.column_names.index(name), field, pa.array(values, field.type))


def _totals(parts: Sequence[ShardEntry | SplitEntry]) -> dict[str, int]:
    return {key: sum(getattr(part, key) for part in parts) for key in ("episodes", "steps", "records")}


def _part_tables(
    random: np.random.Generator, lengths: Sequence[int], offset: int, source: str, action: int, state: int, name: str
) -> dict[TableKind, pa.Table]:
    steps = np.array(lengths, np.int64)
    records = np.maximum(steps - offset, 0)
    count, rows = len(lengths), int(steps.sum())
    first_steps, first_records = np.cumsum(steps) - steps, np.cumsum(records) - records
    episode = np.repeat(np.arange(count), records)
    step = np.arange(len(episode)) - np.repeat(first_records, records)

    def texts(size: int) -> list[str]:
        words = [f"open {name}", "close é", "", "pick up the ☕"]
        return [words[number] for number in random.integers(0, len(words), size)]

    def sometimes(values: Sequence[Any]) -> list[Any]:
        return [None if random.random() < 0.2 else value for value in values]

    def vectors(size: int) -> list[list[float]]:
        return random.normal(size=(rows, size)).astype(np.float32).tolist()

    def bits(size: int) -> list[list[bool]]:
        return (random.random((rows, size)) < 0.5).tolist()

    more_steps: dict[str, tuple[pa.DataType, list[Any]]] = {
        **({"action_": (pa.list_(pa.float32(), action), vectors(action))} if action else {}),
        "observation/state": (pa.list_(pa.float64(), max(1, state)), vectors(max(1, state))),
        "reward": (pa.float32(), sometimes(random.normal(size=rows).tolist())),
        "is_last": (pa.bool_(), sometimes([bit for (bit,) in bits(1)])),
        "bits": (pa.list_(pa.bool_(), 5), sometimes(bits(5))),
        "count": (pa.int64(), sometimes((random.integers(0, 1 << 62, rows) | 1).tolist())),
        "three": (pa.list_(pa.int16(), 3), sometimes(random.integers(-99, 99, (rows, 3)).tolist())),
        "half": (pa.float16(), [np.float16(value) for value in random.normal(size=rows)]),
        "note": (TEXT, sometimes(texts(rows))),
        "words": (pa.large_list(pa.large_string()), sometimes([["a", "b"]] * rows)),
    }
    more_episodes: dict[str, tuple[pa.DataType, list[Any]]] = {
        "score": (pa.float64(), sometimes(random.normal(size=count).tolist())),
        "success": (pa.bool_(), sometimes((random.random(count) < 0.5).tolist())),
        "scene": (pa.large_string(), sometimes(texts(count))),
    }
    zeros = np.zeros(len(episode), np.int64)
    numbers = np.arange(count)
    ids = [f"{source}__{number}" for number in range(count)]
    statuses = ["ok" if n else "too_short" for n in records]
    places = [numbers, 0 * numbers, ids, [source] * count, numbers, statuses]
    sizes = [steps, first_steps, records, first_records]
    step_numbers = np.arange(rows) - np.repeat(first_steps, steps)
    steps_rows = np.repeat(first_steps, records) + step
    part_columns: dict[TableKind, list[Any]] = {
        "episodes": [*places, *sizes, texts(count), ["arm"] * count],
        "steps": [np.repeat(numbers, steps), step_numbers, texts(rows)],
        "records": [zeros, episode, step, zeros, zeros + offset, steps_rows, zeros, zeros, zeros],
    }
    return {
        "episodes": _table(EPISODE_FIELDS, part_columns["episodes"], more_episodes),
        "steps": _table(STEP_FIELDS, part_columns["steps"], more_steps),
        "records": _table(RECORD_FIELDS, part_columns["records"], {}),
    }


def _table(
    fields: Sequence[pa.Field], values: Sequence[Any], more: Mapping[str, tuple[pa.DataType, list[Any]]]
) -> pa.Table:
    arrays = [_array(column, field.type) for column, field in zip(values, fields, strict=True)]
    arrays += [_array(column, kind) for kind, column in more.values()]
    return pa.Table.from_arrays(arrays, schema=pa.schema([*fields, *((key, kind) for key, (kind, _) in more.items())]))


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_list(kind):
        # Numbers of missing rows are not missing themselves, as convert writes them.
        filler = [False if pa.types.is_boolean(kind.value_type) else 0] * kind.list_size
        flat = [number for value in values for number in (filler if value is None else value)]
        numbers = pa.array(flat, kind.value_type)
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.FixedSizeListArray.from_arrays(numbers, type=kind, mask=mask)
    return pa.array(values, pa.large_string()).dictionary_encode() if kind == TEXT else pa.array(values, kind)
