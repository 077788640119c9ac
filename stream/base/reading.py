"""Files of limited size that are read at once."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class FileTooLarge(ValueError):
    """A file with more bytes than the limit; the message gives the limit."""


def check_regular(path: str | Path) -> int:
    """Return the size of a file in bytes; symbolic links are followed.

    Raises:
        OSError: The file is missing, or it is a folder, a device or a pipe; reading a device might never end.
    """
    file_status = os.stat(path)
    if stat.S_ISDIR(file_status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(file_status.st_mode):
        raise OSError(errno.EINVAL, "it is a device or pipe, expected a file", str(path))
    return file_status.st_size


def read_whole(path: str | Path, limit: int) -> bytes:
    """Return the content of a file of at most ``limit`` bytes; symbolic links are followed.

    Raises:
        FileTooLarge: The file has more bytes.
        OSError: The file cannot be read, or ``check_regular`` refuses it.
    """
    if check_regular(path) > limit:
        raise FileTooLarge(f"larger than {limit:,} bytes")
    return Path(path).read_bytes()
