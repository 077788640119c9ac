"""Durable writes: the content is on the disk when a function returns, or one clear error gives the reason."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from convert.errors import ConvertError, ShardError, UsageError
from stream.format.manifest import FileEntry, describe_file

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk without room."""
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT)


def write_durably(file_path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with file_path.open("wb") as output_file:
        output_file.write(content)
        output_file.flush()
        os.fsync(output_file.fileno())


def describe_durably(file_path: Path) -> FileEntry:
    """Return size and hash of a file once it is on the disk."""
    with file_path.open("rb") as open_file:
        os.fsync(open_file.fileno())
    return describe_file(file_path)


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn the errors of writing into one clear error that names the folder."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise ShardError(f"{folder}: the disk is full; make room and run the same command again") from error
        if error.errno in _NOT_WRITABLE:
            raise UsageError(f"{folder} cannot be written: {error.strerror}; choose another --output") from error
        file_note = f" ({error.filename})" if error.filename else ""
        raise ConvertError(f"{folder}: {error.strerror or error}{file_note}") from error
