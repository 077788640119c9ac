"""Files of limited size that are read at once."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from stream.base.errors import FormatError


def check_regular(file_path: str | Path) -> int:
    """Return the size of a file in bytes; symbolic links are followed.

    Raises OSError for a missing file, a folder, a device and a pipe; reading a device might never end.
    """
    file_status = os.stat(file_path)
    if stat.S_ISDIR(file_status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file_path))
    if not stat.S_ISREG(file_status.st_mode):
        raise OSError(errno.EINVAL, "it is a device or pipe, expected a file", str(file_path))
    return file_status.st_size


def read_limited(file_path: str | Path, limit: int) -> bytes:
    """Return the content of a file; raise FormatError beyond ``limit`` bytes, and OSError as ``check_regular`` does."""
    if check_regular(file_path) > limit:
        raise FormatError(f"larger than {limit:,} bytes")
    return Path(file_path).read_bytes()
