"""Reading a file that is small if it is what it should be: never a device or pipe, and never more than a limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class FileTooLarge(ValueError):
    """The file has more bytes than the limit; says both."""


def read_whole(path: str | Path, limit: int) -> bytes:
    """Return the content of a file of at most ``limit`` bytes; links are followed.

    Raises:
        FileTooLarge: The file has more bytes.
        OSError: The file cannot be read, or is a folder, a device or a pipe, which might be read without end.
    """
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a device or pipe, expected a file", str(path))
    if found.st_size > limit:
        raise FileTooLarge(f"larger than {limit:,} bytes")
    return Path(path).read_bytes()
