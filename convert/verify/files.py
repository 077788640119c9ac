"""Files of a converted dataset, compared with the size and SHA-256 in the manifest."""

from __future__ import annotations

import hashlib
from pathlib import Path

from convert.report import human_bytes
from convert.verify.report import Findings
from convert.verify.split_shard import open_regular
from stream.format.manifest import FileEntry


def hash_file(path: Path) -> FileEntry:
    """Return the size and SHA-256 of a file, reading it once; raises OSError."""
    with open_regular(path) as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileEntry(bytes=file.tell(), sha256=digest.hexdigest())


def is_unchanged(path: Path, entry: FileEntry, *, name: str, findings: Findings) -> bool:
    """Return whether a file is the one in the manifest; if not, add a finding.

    Args:
        path: File.
        entry: Manifest's entry of the file.
        name: File below the version folder, for the finding.
        findings: List of findings to add to.
    """
    try:
        found = hash_file(path)
    except FileNotFoundError:
        findings.add(name, f"is not there, expected {human_bytes(entry.bytes)}")
        return False
    except OSError as error:
        findings.add(name, f"cannot be read: {error.strerror or error}")
        return False
    if (found.bytes, found.sha256) == (entry.bytes, entry.sha256):
        return True
    text = f"has SHA-256 {found.sha256}, expected {entry.sha256}"
    if found.bytes != entry.bytes:
        text = f"has {found.bytes:,} bytes, expected {entry.bytes:,}"
    findings.add(name, text, sha256=found.sha256)
    return False
