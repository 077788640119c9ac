"""A converted dataset that somebody changed and signed anew, so that its checksums are right and its content is not."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from stream.format.names import TableKind, table_file
from tests.fixtures.datasets.rewritten_records import admit_table


class CraftedRoot:
    """A copy of ``bridge`` below ``root``."""

    def __init__(self, source: Path, root: Path) -> None:
        self.root = root
        shutil.copytree(source / "bridge", root / "bridge")
        (self.manifest,) = root.glob("bridge/*/dataset.json")

    def edit(self, edit: Callable[[Any], object]) -> None:
        """Change the manifest and sign it."""
        content = json.loads(self.manifest.read_text())
        edit(content)
        content["checksum"] = "0" * 64
        unsigned = json.dumps(content).encode()
        self.manifest.write_bytes(unsigned.replace(b"0" * 64, hashlib.sha256(unsigned).hexdigest().encode()))

    def set(self, key_path: str, value: Any) -> None:
        """Set a field of the manifest at a place such as ``parameters/offset``."""
        *parents, last = key_path.split("/")

        def edit(content: Any) -> None:
            for key in parents:
                content = content[key]
            content[last] = value

        self.edit(edit)

    def path(self, kind: TableKind) -> Path:
        """Return a table of the training split."""
        return self.manifest.parent / "train" / table_file(kind)

    def table(self, kind: TableKind) -> pa.Table:
        """Return a table of the training split, in memory."""
        return pa.ipc.open_file(pa.py_buffer(self.path(kind).read_bytes())).read_all()

    def write(self, kind: TableKind, table: pa.Table, *, compression: str | None = None) -> None:
        """Write a table and admit it."""
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.OSFile(str(self.path(kind)), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as out:
            out.write_table(table)
        self.admit(kind)

    def admit(self, kind: TableKind) -> None:
        """Put size and hashes of a table into the manifest."""
        admit_table(self.manifest.parent, "train", kind)


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """Return the table with other values in a column, which is as nullable as before."""
    column_number = table.schema.get_field_index(name)
    nullable = table.schema.field(column_number).nullable
    return table.set_column(column_number, pa.field(name, values.type, nullable), values)
