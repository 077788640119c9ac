"""Files of a converted dataset, compared with the size and SHA-256 in the manifest."""

from __future__ import annotations

import hashlib
import stat
from io import BufferedReader
from pathlib import Path

from convert.report import human_bytes
from convert.verify.report import Findings
from stream.format.manifest import FileEntry


def is_unchanged(path: Path, entry: FileEntry, *, name: str, findings: Findings) -> bool:
    """Return whether a file has the size and SHA-256 of its manifest entry; add a finding if not.

    Args:
        path: File.
        entry: Manifest entry of the file.
        name: Path of the file below the version folder, for the finding.
        findings: Findings to add to.
    """
    try:
        with open_regular(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
    except FileNotFoundError:
        findings.add(name, f"is not there, expected {human_bytes(entry.bytes)}")
        return False
    except OSError as error:
        findings.add(name, f"cannot be read: {error.strerror or error}")
        return False
    if size != entry.bytes:
        findings.add(name, f"has {size:,} bytes, expected {entry.bytes:,}", sha256=digest)
    elif digest != entry.sha256:
        findings.add(name, f"has SHA-256 {digest}, expected {entry.sha256}", sha256=digest)
    return (size, digest) == (entry.bytes, entry.sha256)


def check_regular(path: Path) -> None:
    """Raise OSError if ``path`` exists and is not a file; opening a pipe would wait without end."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        what = "folder" if stat.S_ISDIR(mode) else "device or pipe"
        raise OSError(None, f"it is a {what}, expected a file", str(path))


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read; raises OSError as ``check_regular`` does."""
    check_regular(path)
    return path.open("rb")
