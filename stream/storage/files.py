"""Files and folders, written atomically and durably."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from stream.base.errors import ArgumentError
from stream.storage.remote import check_local


def write_atomically(file_path: Path, content: bytes | str, *, suffix: str = "", parents: bool = False) -> None:
    """Replace a file atomically, and wait until content (text as UTF-8) and name are on the disk.

    Args:
        suffix: End of the temporary file's name.
        parents: Make the folder if it does not exist.

    Raises:
        ArgumentError: The path is an address.
        OSError: The file cannot be written; the old file stays.
    """
    check_local(file_path)
    if parents:
        make_folder(file_path.parent)
    file_bytes = content.encode() if isinstance(content, str) else content
    descriptor, temporary = tempfile.mkstemp(dir=file_path.parent, prefix=f".{file_path.name}.", suffix=suffix)
    try:
        with os.fdopen(descriptor, "wb") as temporary_file:
            temporary_file.write(file_bytes)
            temporary_file.flush()
            os.fsync(temporary_file.fileno())
        # mkstemp makes a file that only its owner can read.
        os.chmod(temporary, 0o644)
        rename_durably(Path(temporary), file_path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def rename_durably(path: Path, target_path: Path) -> None:
    """Rename a file or folder, replacing a file of that name, and wait until the new name is on the disk."""
    path.replace(target_path)
    sync_folder(target_path.parent)


def make_folder(folder_path: Path) -> None:
    """Make a folder and its missing parents, and wait until their names are on the disk."""
    missing_folders = [parent for parent in (folder_path, *folder_path.parents) if not parent.exists()]
    folder_path.mkdir(parents=True, exist_ok=True)
    # A process that was killed may have made the folder itself without waiting.
    for parent in reversed(missing_folders or [folder_path]):
        sync_folder(parent.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk: a power cut may undo a rename in one folder and keep others."""
    # Some network file systems refuse; they do not delay names.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def lock_folder(folder: Path, *, doing: str) -> Iterator[None]:
    """Lock a folder against other processes on this machine that ask; the kernel releases the lock with the process.

    ``doing`` is the activity of the process with the lock, for the message of a process that waits.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Some file systems have no locks.
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"waiting: another process {doing} {folder}", file=sys.stderr)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def new_folder(folder_path: Path) -> Iterator[Path]:
    """Give a hidden folder to fill, which is renamed to ``folder_path`` if the block ends without an error.

    The folder is renamed when all files are on the disk, so a power cut leaves no incomplete folder. After an error or
    an interrupt the hidden folder is removed. A process that is killed leaves it.

    Raises:
        ArgumentError: The path exists, or its parent does not, or it is an address.
        OSError: The folder cannot be made.
    """
    check_local(folder_path)
    folder_path = Path(os.path.abspath(folder_path))
    if os.path.lexists(folder_path):
        raise ArgumentError(f"{folder_path}: exists already; choose another folder, or remove it")
    if not folder_path.parent.is_dir():
        raise ArgumentError(f"{folder_path.parent}: no such folder; make it first")
    temporary = Path(tempfile.mkdtemp(dir=folder_path.parent, prefix=f".{folder_path.name}."))
    try:
        # mkdtemp makes a folder that only its owner can open.
        temporary.chmod(0o755)
        yield temporary
        if os.path.lexists(folder_path):
            raise ArgumentError(f"{folder_path}: was made by another program meanwhile; choose another, or remove it")
        _sync_tree(temporary)
        rename_durably(temporary, folder_path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _sync_tree(top_folder: Path) -> None:
    """Wait until all files and names below a folder are on the disk."""
    for folder, _, file_names in os.walk(top_folder):
        for file_name in file_names:
            with open(os.path.join(folder, file_name), "rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(folder))
