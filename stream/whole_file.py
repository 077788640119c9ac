"""A file that is there whole or not at all: who reads it finds the old content or the new, never half of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes | str, *, durable: bool = False, suffix: str = "") -> None:
    """Write a file into a folder that is there, text as UTF-8, and put it into its place when it is complete.

    Args:
        path: its place.
        content: all of it.
        durable: wait until it is on the disk, where something else is built on it being there.
        suffix: of its name until then, by which somebody else finds what a killed process left.

    Raises:
        OSError: it cannot be written; what was there before stays.
    """
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=suffix)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        # As other files are: a temporary one is its owner's alone.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
