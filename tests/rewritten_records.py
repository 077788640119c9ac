"""Records of a converted shard changed so that all files still fit each other: only what they hold is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pyarrow as pa
from array_record.python.array_record_module import ArrayRecordReader

from convert.record_file import RecordWriter
from convert.sidecars import write_sidecar
from stream.format import PLACE_FIELDS, RECORDS_SCHEMA, open_sidecar, shard_file
from stream.manifest import FileEntry, describe_file, encode_manifest, read_manifest

Edit = Callable[[list[bytes]], list[bytes]]
Kind = Literal["arrayrecord", "records", "steps", "episodes"]
CHANGED: tuple[Kind, ...] = ("arrayrecord", "records")


def rewrite_records(folder: Path, stem: str, edit: Edit) -> dict[Kind, FileEntry]:
    """Change the records of a shard in the folder of its split, and where ``records`` says they lie if there are as
    many as before; returns what belongs into the manifest."""
    path = folder / shard_file(stem, "arrayrecord")
    reader = ArrayRecordReader(str(path))
    before = list(reader.read(0, reader.num_records()))
    reader.close()
    with RecordWriter(path, output=folder) as writer:
        records = edit(list(before))
        for record in records:
            writer.write(record)
    if len(records) == len(before):
        _change_table(folder, stem, lambda table: _placed(table, writer))
    return {kind: describe_file(folder / shard_file(stem, kind), kind) for kind in CHANGED}


def forget_places(dataset: Path) -> None:
    """Make a converted dataset as it was written before ``records`` had PLACE_FIELDS."""
    manifest = read_manifest(dataset)
    names = [field.name for field in PLACE_FIELDS]
    for split, entry in manifest.splits.items():
        for shard in entry.shards:
            shard.files["records"] = _change_table(dataset / split, shard.name, lambda t: t.drop_columns(names))
    (dataset / "dataset.json").write_bytes(encode_manifest(manifest))


def change_first_table(dataset: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change ``records`` of the first training shard, its checksums put right."""
    manifest = read_manifest(dataset)
    shard = manifest.splits["train"].shards[0]
    shard.files["records"] = _change_table(dataset / "train", shard.name, change)
    (dataset / "dataset.json").write_bytes(encode_manifest(manifest))


def _placed(table: pa.Table, writer: RecordWriter) -> pa.Table:
    places = writer.places()
    columns = [pa.array(places[name]) if name in places else table[name] for name in RECORDS_SCHEMA.names]
    return pa.Table.from_arrays(columns, schema=RECORDS_SCHEMA)


def _change_table(folder: Path, stem: str, change: Callable[[pa.Table], pa.Table]) -> FileEntry:
    path = folder / shard_file(stem, "records")
    # Not mapped: the file is written anew.
    table = open_sidecar(path, pa.py_buffer(path.read_bytes()))
    write_sidecar(path, change(table))
    return describe_file(path, "records")
