"""Atomic writes: readers see the old content or the new, never a mixture."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes | str, *, durable: bool = False, suffix: str = "") -> None:
    """Write a file into a folder that exists, text as UTF-8.

    Args:
        path: File.
        content: All of it.
        durable: Wait until it is on the disk.
        suffix: End of its name until it is complete.

    Raises:
        OSError: It cannot be written; the old file stays.
    """
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=suffix)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        # A temporary file is readable by its owner alone.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
