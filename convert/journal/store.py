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
from stream.storage.files import make_folder, place_file, sync_folder
from stream.storage.remote import LocalFolder, is_remote

FOLDER = ".convert"
"""Name of the journal's folder."""
LOCK = ".lock"
_TEMPORARY = ".tmp"
_REMOVED = ".removed"
_STALE = 24 * 3600.0
"""Seconds after which a temporary folder of another machine counts as left behind."""
_Value = TypeVar("_Value")


class LocalStore:
    """A folder of a local or mounted disk. Methods that write raise ConvertError if the disk refuses.

    Attributes:
        scratch: Folder on whose disk files are written before they are placed.
    """

    def __init__(self, root: str | Path) -> None:
        self.scratch = Path(root)
        self._journal = self.scratch / FOLDER
        self._removed = self.scratch / (FOLDER + _REMOVED)

    def exists(self) -> bool:
        """Return whether the journal exists."""
        return self._journal.exists()

    def make(self) -> None:
        """Make the folder of the journal, if it does not exist."""
        with writing(self.scratch):
            make_folder(self._journal)

    def folders(self) -> list[str]:
        """Return the names of the folders."""
        return LocalFolder(self.scratch).folders()

    def names(self, folder: str) -> set[str]:
        """Return the names in a folder, which need not exist."""
        try:
            return set(os.listdir(self.scratch / folder))
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Return the sizes of the named files that exist."""
        return self._read(names, lambda path: path.stat().st_size)

    def get(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of the named files that exist."""
        return self._read(names, Path.read_bytes)

    def _read(self, names: Iterable[str], read: Callable[[Path], _Value]) -> dict[str, _Value]:
        found = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found[name] = read(self.scratch / name)
        return found

    def put(self, name: str, content: bytes, *, owner: str, unless_exists: bool = False) -> None:
        """Replace a file, atomically and durably, under the lock ``owner``.

        ``unless_exists`` leaves an existing file as it is.
        """
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
            place_file(temporary, target)

    def place(self, path: Path, name: str) -> None:
        """Move a complete file of a stage to its name, durably."""
        target = self.scratch / name
        with writing(self.scratch):
            # A journal that another process removed must not come back.
            if target.parent != self._journal:
                target.parent.mkdir(exist_ok=True)
            place_file(path, target)
            sync_folder(self.scratch)

    def fetch(self, name: str, entry: FileEntry, folder: Path) -> Path:
        """Return the local path of a file; raises ShardError if its content is not what the entry says."""
        path = self.scratch / name
        return _checked(path, entry, where=path)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, as far as they exist, and folders of splits that become empty."""
        paths = [self.scratch / name for name in names]
        with writing(self.scratch):
            for path in paths:
                path.unlink(missing_ok=True)
            for folder in {path.parent for path in paths}:
                sync_folder(folder)
        # Those inside of others first.
        for folder in sorted({path.parent for path in paths} - {self.scratch, self._journal}, reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def remove_journal(self, last: str) -> None:
        """Remove the journal: it goes as a whole, so that no other process finds half of it."""
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
    def lock(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        """Hold the lock of a shard or split; yields False if another process has it, or waits with ``wait``.

        The kernel releases a lock however its holder ends. On a file system without locks, or with locks that only one
        machine sees, two processes may convert one shard. They write under unused names and rename, so they only waste
        work.
        """
        with writing(self.scratch):
            file = os.open(self._journal / (name + LOCK), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    yield False
                    return
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
                    raise
            yield True
        finally:
            os.close(file)

    def stage(self, owner: str) -> AbstractContextManager[Path]:
        """Make a temporary folder on the same file system for the time of the context, under the lock ``owner``."""
        return stage(self._journal, prefix=f"{owner}.", suffix=_TEMPORARY)

    def remove_stale(self) -> None:
        """Remove what killed processes left half-written or half-removed."""
        self._remove_removed()
        sweep(self._journal, prefix="*.", suffix=_TEMPORARY, stale=_STALE)

    def adopt(self, other: LocalStore, names: Iterable[str]) -> None:
        """Move complete files of another store on the same disk into place."""
        with writing(self.scratch):
            make_folder(self.scratch)
        for name in names:
            self.place(other.scratch / name, name)

    def remove_folders(self) -> None:
        """Remove the folder and those above it, as far as they are empty."""
        for folder in (self.scratch, *self.scratch.parents[:2]):
            with contextlib.suppress(OSError):
                folder.rmdir()


class ObjectStore:
    """A folder of an object store; see ``LocalStore``. All methods may raise RemoteError.

    There are no locks: two conversions of one shard store the same bytes.

    Attributes:
        scratch: Local folder for files on their way to the object store.
    """

    def __init__(self, root: str, staging: str | None) -> None:
        self._root = StoreFolder(root)
        self.scratch = staging_base(staging)

    def exists(self) -> bool:
        """Return whether the journal exists."""
        return bool(self.names(FOLDER))

    def make(self) -> None:
        """Do nothing: folders are parts of names."""

    def folders(self) -> list[str]:
        """Return the names of the folders."""
        return self._root.folders()

    def names(self, folder: str) -> set[str]:
        """Return the names in a folder."""
        return set((self._root / folder).sizes())

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Return the sizes of the named objects that exist."""
        wanted = set(names)
        folders = {name.rpartition("/")[0] for name in wanted}
        listed = ((f"{folder}/{name}", n) for folder in folders for name, n in (self._root / folder).sizes().items())
        return {name: size for name, size in listed if name in wanted}

    def get(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of the named objects that exist."""
        return self._root.read_some(names)

    def put(self, name: str, content: bytes, *, owner: str, unless_exists: bool = False) -> None:
        """Store an object and compare it with what the store reports."""
        self._root.write(name, content, unless_there=unless_exists)

    def place(self, path: Path, name: str) -> None:
        """Store a complete file and compare it with what the store reports."""
        self._root.upload(path, name)

    def fetch(self, name: str, entry: FileEntry, folder: Path) -> Path:
        """Copy an object to a local folder; raises ShardError if its content is not what the entry says."""
        target = folder / name.rpartition("/")[2]
        with writing(self.scratch):
            self._root.download(name, target, size=entry.bytes)
        return _checked(target, entry, where=f"{self._root}/{name}")

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects, as far as they exist."""
        self._root.remove(names)

    def remove_journal(self, last: str) -> None:
        """Remove the objects of the journal, and at the end the one that says that it exists."""
        self.remove(f"{FOLDER}/{name}" for name in self.names(FOLDER) - {last})
        self.remove([f"{FOLDER}/{last}"])

    def lock(self, name: str, *, wait: bool = False) -> AbstractContextManager[bool]:
        """Yield True."""
        return contextlib.nullcontext(True)

    def stage(self, owner: str) -> AbstractContextManager[Path]:
        """Make a local folder for the time of the context."""
        return stage(self.scratch)

    def remove_stale(self) -> None:
        """Remove what killed processes of this machine left on its disk."""
        sweep(self.scratch)

    def adopt(self, other: ObjectStore, names: Iterable[str]) -> None:
        """Copy complete objects of another store, within the object store."""
        self._root.copy(other._root, names)

    def remove_folders(self) -> None:
        """Do nothing: folders are parts of names."""


Store = LocalStore | ObjectStore


def open_store(root: str | Path, staging: str | None) -> Store:
    """Return the store of a folder; ``staging`` is the local folder for files on their way to an object store."""
    return ObjectStore(str(root), staging) if is_remote(root) else LocalStore(root)


def _checked(path: Path, entry: FileEntry, *, where: str | Path) -> Path:
    if describe_file(path).sha256 != entry.sha256:
        raise ShardError(f"{where}: its SHA-256 is not the recorded one; remove it and run the same command again")
    return path
