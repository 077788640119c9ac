"""Reading a file that is small if it is what it should be: never a device or pipe, and never more than a limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class FileTooLarge(ValueError):
    """The file has more bytes than the limit; says both."""


def read_whole(path: str | Path, limit: int) -> bytes:
    """Return the content of a file.

    A pipe in its place would be waited for without end, and a device such as /dev/zero read without end: both have
    size 0, so their size does not tell.

    Args:
        path: the file; a link to a file will do.
        limit: the most bytes that it may have.

    Raises:
        FileTooLarge: it has more.
        OSError: it cannot be read, or is not a regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # Asked before Python opens it: of a folder that would raise with the handle's number for a name.
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is a device or pipe, expected a file", str(path))
        with open(handle, "rb", closefd=False) as file:
            # Python takes memory for as much as is asked for, whatever there is.
            content = file.read(min(limit, found.st_size) + 1)
    finally:
        os.close(handle)
    if len(content) > limit:
        raise FileTooLarge(f"larger than {limit:,} bytes")
    return content
