"""The commit of labels: the step that makes files next to an index part of it.

A table of labels is written under a waiting name. The manifest that names it makes it valid, then the file gets its
final name. Before a file is removed, it gets its waiting name again. So a kill at any moment leaves the old labels or
the new ones, and the next command corrects the names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from stream.format.manifest import Manifest, TableEntry, encode_manifest, read_manifest
from stream.format.names import LABELS, MANIFEST_NAME, label_file, waiting_label
from stream.storage.files import write_atomically


def commit_labels(folder: Path, labels: Mapping[str, Mapping[str, TableEntry]]) -> None:
    """Write a manifest with labels, by split and name, which makes them valid."""
    content = encode_manifest(read_manifest(folder).with_labels(labels))
    write_atomically(folder / MANIFEST_NAME, content)


def settle_labels(folder: Path, manifest: Manifest) -> None:
    """Give files of labels their final names, and remove files left by a killed process."""
    for label_path in folder.glob(f".{MANIFEST_NAME}.*"):
        label_path.unlink(missing_ok=True)
    for split, split_entry in manifest.splits.items():
        label_folder = folder / split / LABELS
        labels = split_entry.labels.items()
        name_by_waiting = {waiting_label(name, table_entry.sha256): label_file(name) for name, table_entry in labels}
        for label_path in list(label_folder.glob(".*")):
            if label_path.name in name_by_waiting:
                label_path.replace(label_path.with_name(name_by_waiting[label_path.name]))
            else:
                label_path.unlink(missing_ok=True)
        if not split_entry.labels:
            # The folder is not empty if a user put a file into it.
            with contextlib.suppress(OSError):
                label_folder.rmdir()
