"""Storage of one converted dataset: a folder of a disk or of an object store, behind the same methods.

Names are relative to the folder, such as ``train/steps.arrow``. A file of either store is complete or does not exist:
on a disk, files are written under temporary names in the journal and renamed; an object appears when all of it is sent.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from convert.errors import ShardError
from convert.storage.durable import write_durably, writing
from convert.storage.object_store import StoreFolder
from convert.storage.staging import stage, staging_base, sweep
from stream.format.manifest import FileEntry, describe_file
from stream.storage.files import make_folder, rename_durably, sync_folder
from stream.storage.remote import LocalFolder

FOLDER = ".convert"
"""Name of the journal's folder."""
PARAMETERS = "parameters.json"
LOCK = ".lock"
_TEMPORARY = ".tmp"
_STALE = 24 * 3600.0
"""Seconds after which a temporary folder of another machine counts as left behind."""
_Value = TypeVar("_Value")


class LocalStore:
    """A folder of a local or mounted disk. Methods that write raise ConvertError if the disk refuses.

    Files are written on the disk of the folder ``scratch`` before they are placed.
    """

    def __init__(self, output_folder: str | Path) -> None:
        self.scratch = Path(output_folder)
        self.folders = LocalFolder(self.scratch).folders
        self._journal = self.scratch / FOLDER
        self._removed = self.scratch / f"{FOLDER}.removed"

    def exists(self) -> bool:
        """Return whether the journal exists."""
        return self._journal.exists()

    def make(self) -> None:
        """Make the folder of the journal, if it does not exist."""
        with writing(self.scratch):
            make_folder(self._journal)

    def names(self, folder: str) -> set[str]:
        """Return the names in a folder, which need not exist."""
        try:
            return set(os.listdir(self.scratch / folder))
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def sizes(self, file_names: Iterable[str]) -> dict[str, int]:
        """Return the sizes of the named files that exist."""
        return self._read(file_names, lambda file_path: file_path.stat().st_size)

    def get(self, file_names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of the named files that exist."""
        return self._read(file_names, Path.read_bytes)

    def _read(self, file_names: Iterable[str], read_file: Callable[[Path], _Value]) -> dict[str, _Value]:
        read_values = {}
        for name in file_names:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                read_values[name] = read_file(self.scratch / name)
        return read_values

    def put(self, name: str, content: bytes, *, owner: str, unless_exists: bool = False) -> None:
        """Replace a file, or keep it with ``unless_exists``, atomically and durably, under the lock ``owner``."""
        target = self.scratch / name
        with writing(self.scratch), self.stage(owner) as folder:
            temporary = folder / target.name
            write_durably(temporary, content)
            if unless_exists:
                # A link fails if the file exists. Some network file systems have no links: there the last one wins.
                with contextlib.suppress(OSError):
                    os.link(temporary, target)
                if target.exists():
                    return
            rename_durably(temporary, target)

    def place(self, stage_path: Path, name: str) -> None:
        """Move a complete file of a stage to its name, durably."""
        target = self.scratch / name
        with writing(self.scratch):
            # A journal that another process removed must not come back.
            if target.parent != self._journal:
                target.parent.mkdir(exist_ok=True)
            rename_durably(stage_path, target)
            sync_folder(self.scratch)

    def fetch(self, name: str, file_entry: FileEntry, folder: Path) -> Path:
        """Return the local path of a file; raises ShardError if its content is not what the entry says."""
        file_path = self.scratch / name
        return _checked(file_path, file_entry, location=file_path)

    def remove(self, file_names: Iterable[str]) -> None:
        """Remove files, as far as they exist, and folders of splits that become empty."""
        file_paths = [self.scratch / name for name in file_names]
        with writing(self.scratch):
            for file_path in file_paths:
                file_path.unlink(missing_ok=True)
            for folder in {file_path.parent for file_path in file_paths}:
                sync_folder(folder)
        folders = {file_path.parent for file_path in file_paths} - {self.scratch, self._journal}
        # Those inside of others first.
        for folder in sorted(folders, reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def remove_journal(self) -> None:
        """Remove the journal atomically, so that no other process finds half of it."""
        # A kill may have left one.
        self._remove_removed()
        with writing(self.scratch), contextlib.suppress(FileNotFoundError):
            self._journal.replace(self._removed)
        self._remove_removed()

    def _remove_removed(self) -> None:
        # A file that somebody made in the journal's place goes too.
        with contextlib.suppress(OSError):
            self._removed.unlink()
        shutil.rmtree(self._removed, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self, lock_name: str, *, wait: bool = False) -> Iterator[bool]:
        """Hold the lock of a shard or split; yields False if another process has it, or waits with ``wait``.

        The kernel releases a lock however its holder ends. On a file system without locks, or with locks that only one
        machine sees, two processes may convert one shard. They write under unused names and rename, so they only waste
        work.
        """
        with writing(self.scratch):
            lock_descriptor = os.open(self._journal / (lock_name + LOCK), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(lock_descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    yield False
                    return
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
                    raise
            yield True
        finally:
            os.close(lock_descriptor)

    def stage(self, owner: str) -> AbstractContextManager[Path]:
        """Make a temporary folder on the same file system for the time of the context, under the lock ``owner``."""
        return stage(self._journal, prefix=f"{owner}.", suffix=_TEMPORARY)

    def remove_stale(self) -> None:
        """Remove what killed processes left half-written or half-removed."""
        self._remove_removed()
        sweep(self._journal, prefix="*.", suffix=_TEMPORARY, stale_seconds=_STALE)

    def adopt(self, other_store: LocalStore, file_names: Iterable[str]) -> None:
        """Move complete files of another store on the same disk into place."""
        with writing(self.scratch):
            make_folder(self.scratch)
        for name in file_names:
            self.place(other_store.scratch / name, name)

    def remove_folders(self) -> None:
        """Remove the folder and those above it, as far as they are empty."""
        for folder in (self.scratch, *self.scratch.parents[:2]):
            with contextlib.suppress(OSError):
                folder.rmdir()


class ObjectStore:
    """A folder of an object store; see ``LocalStore``. All methods may raise RemoteError.

    There are no locks: two conversions of one shard store the same bytes. ``scratch`` is a local folder.
    """

    def __init__(self, output_folder: str, staging: str | None) -> None:
        self._root = StoreFolder(output_folder)
        self.scratch = staging_base(staging)
        self.folders = self._root.folders
        self.get = self._root.read_some
        self.place = self._root.upload
        self.remove = self._root.remove

    def exists(self) -> bool:
        """Return whether the journal exists."""
        return bool(self.names(FOLDER))

    def make(self) -> None:
        """Do nothing: folders are parts of names."""

    def names(self, folder: str) -> set[str]:
        """Return the names in a folder."""
        return set((self._root / folder).sizes())

    def sizes(self, object_names: Iterable[str]) -> dict[str, int]:
        """Return the sizes of the named objects that exist."""
        requested = set(object_names)
        sizes: dict[str, int] = {}
        for folder in {name.rpartition("/")[0] for name in requested}:
            sizes |= {f"{folder}/{name}": num_bytes for name, num_bytes in (self._root / folder).sizes().items()}
        return {name: sizes[name] for name in requested & sizes.keys()}

    def put(self, name: str, content: bytes, *, owner: str, unless_exists: bool = False) -> None:
        """Store an object and compare it with what the store reports."""
        self._root.write(name, content, unless_there=unless_exists)

    def fetch(self, name: str, file_entry: FileEntry, folder: Path) -> Path:
        """Copy an object to a local folder; raises ShardError if its content is not what the entry says."""
        target = folder / name.rpartition("/")[2]
        with writing(self.scratch):
            self._root.download(name, target, num_bytes=file_entry.bytes)
        return _checked(target, file_entry, location=f"{self._root}/{name}")

    def remove_journal(self) -> None:
        """Remove the objects of the journal, and at the end the one that says that it exists."""
        self.remove(f"{FOLDER}/{name}" for name in self.names(FOLDER) - {PARAMETERS})
        self.remove([f"{FOLDER}/{PARAMETERS}"])

    def lock(self, lock_name: str, *, wait: bool = False) -> AbstractContextManager[bool]:
        """Yield True."""
        return contextlib.nullcontext(True)

    def stage(self, owner: str) -> AbstractContextManager[Path]:
        """Make a local folder for the time of the context."""
        return stage(self.scratch)

    def remove_stale(self) -> None:
        """Remove what killed processes of this machine left on its disk."""
        sweep(self.scratch)

    def adopt(self, other_store: ObjectStore, file_names: Iterable[str]) -> None:
        """Copy complete objects of another store, within the object store."""
        self._root.copy(other_store._root, file_names)

    def remove_folders(self) -> None:
        """Do nothing: folders are parts of names."""


def _checked(file_path: Path, file_entry: FileEntry, *, location: str | Path) -> Path:
    if describe_file(file_path).sha256 != file_entry.sha256:
        raise ShardError(f"{location}: its SHA-256 is not the recorded one; remove it and run the same command again")
    return file_path
