"""The commit of labels: which of the files beside an index count.

A table of labels is written under a waiting name. The manifest that names it makes it count, then the file gets its own
name; before a file goes, it gets its waiting name again. So a kill at any moment leaves what was before or what is new,
and the next command puts the names right.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from stream.format.manifest import Manifest, TableEntry, encode_manifest, read_manifest
from stream.format.names import LABELS, MANIFEST_NAME, label_file, waiting_label
from stream.storage.files import write_whole


def commit_labels(folder: Path, labels: Mapping[str, Mapping[str, TableEntry]]) -> None:
    """Write a manifest with these labels, by split and name, which makes them count."""
    content = encode_manifest(read_manifest(folder).with_labels(labels))
    write_whole(folder / MANIFEST_NAME, content)


def settle_labels(folder: Path, manifest: Manifest) -> None:
    """Give files of labels their names, and remove what a killed process left."""
    for label_path in folder.glob(f".{MANIFEST_NAME}.*"):
        label_path.unlink(missing_ok=True)
    for split, split_entry in manifest.splits.items():
        label_folder = folder / split / LABELS
        name_by_waiting = {
            waiting_label(labels_name, table_entry.sha256): label_file(labels_name)
            for labels_name, table_entry in split_entry.labels.items()
        }
        for label_path in list(label_folder.glob(".*")):
            if label_path.name in name_by_waiting:
                label_path.replace(label_path.with_name(name_by_waiting[label_path.name]))
            else:
                label_path.unlink(missing_ok=True)
        if not split_entry.labels:
            # Not empty where somebody put a file of their own.
            with contextlib.suppress(OSError):
                label_folder.rmdir()
