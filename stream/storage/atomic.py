"""Atomic writes: readers see the old content or the new, never a mixture."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes | str, *, durable: bool = False, suffix: str = "") -> None:
    """Replace a file atomically.

    Args:
        path: File to write, in a folder that exists.
        content: Complete content; text is encoded as UTF-8.
        durable: Wait until the content is on the disk.
        suffix: End of the temporary file's name.

    Raises:
        OSError: The file cannot be written; the old file stays.
    """
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=suffix)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        # mkstemp makes a file that only its owner can read.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
