"""Changes of a converted dataset after which all files still fit each other: only their content is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from array_record.python.array_record_module import ArrayRecordReader

from convert.durable import describe_file
from convert.record_file import RecordWriter
from convert.table_writer import write_part
from stream.format import FormatError, TableKind, shard_file, table_file
from stream.manifest import read_manifest
from stream.table import hash_column, open_table
from tests.conversion_damage import edit_manifest

Edit = Callable[[list[bytes]], list[bytes]]


def rewrite_records(dataset: Path, split: str, stem: str, edit: Edit) -> None:
    """Change the records of a shard, and their locations in the index if there are as many as before."""
    path = dataset / split / shard_file(stem)
    reader = ArrayRecordReader(str(path))
    before = list(reader.read(0, reader.num_records()))
    reader.close()
    with RecordWriter(path, output=path.parent) as writer:
        records = edit(list(before))
        for record in records:
            writer.write(record)
    if len(records) == len(before):
        number = _stems(dataset, split).index(stem)

        def locate(table: pa.Table) -> pa.Table:
            first = table["shard"].to_pylist().index(number)
            for name, values in writer.places().items():
                place = table.schema.get_field_index(name)
                column = table[name].to_numpy().copy()
                column[first : first + len(values)] = values
                table = table.set_column(place, table.schema.field(place), pa.array(column))
            return table

        change_table(dataset, split, "records", locate)
    admit_shard(dataset, split, stem)


def change_table(dataset: Path, split: str, kind: TableKind, edit: Callable[[pa.Table], pa.Table]) -> None:
    """Change a table of an index."""
    path = dataset / split / table_file(kind)
    # Not mapped: the file is written again.
    write_part(path, edit(pa.ipc.open_file(path.read_bytes()).read_all()))
    admit_table(dataset, split, kind)


def admit_table(dataset: Path, split: str, kind: TableKind) -> None:
    """Put the checksums of a changed table into the manifest; of one that is none, only those of the file."""
    path = dataset / split / table_file(kind)
    found: dict[str, Any] = describe_file(path).model_dump()
    try:
        table = open_table(path, kind)
        found["columns"] = {name: hash_column(table.content, column) for name, column in table.columns.items()}
    except FormatError:
        pass
    edit_manifest(dataset, lambda manifest: manifest["splits"][split]["index"][kind].update(found))


def admit_shard(dataset: Path, split: str, stem: str) -> None:
    """Put the size and hash of a changed ArrayRecord file into the manifest."""
    found = describe_file(dataset / split / shard_file(stem)).model_dump()

    def edit(manifest: Any) -> None:
        (entry,) = (shard for shard in manifest["splits"][split]["shards"] if shard["name"] == stem)
        entry["file"] = found

    edit_manifest(dataset, edit)


def _stems(dataset: Path, split: str) -> list[str]:
    return [shard.name for shard in read_manifest(dataset).splits[split].shards]
