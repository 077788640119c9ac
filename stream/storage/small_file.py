"""Reading of small files from sources that are not trusted: no devices, no pipes, no more bytes than a limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class FileTooLarge(ValueError):
    """A file with more bytes than the limit; the message gives the limit."""


def read_whole(path: str | Path, limit: int) -> bytes:
    """Return the content of a file of at most ``limit`` bytes; symbolic links are followed.

    Raises:
        FileTooLarge: The file has more bytes.
        OSError: The file cannot be read, or it is a folder, a device or a pipe; reading a device might never end.
    """
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a device or pipe, expected a file", str(path))
    if found.st_size > limit:
        raise FileTooLarge(f"larger than {limit:,} bytes")
    return Path(path).read_bytes()
