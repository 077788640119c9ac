"""Files of a LeRobot dataset: those of ``meta``, and local copies of the others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from convert.errors import DamagedEpisode, SourceError
from convert.source.lerobot.hub import HubFolder, open_dataset
from convert.storage.object_store import StoreFolder, open_folder
from convert.storage.staging import stage, staging_base
from stream.base.errors import closest
from stream.storage.hub import SCHEME
from stream.storage.remote import LocalFolder

Folder = LocalFolder | StoreFolder | HubFolder
_POINTER = b"version https://git-lfs"
_NO_FILE = "a pointer of Git LFS, not the file itself; run `git lfs pull` in the dataset"


def open_files(path: str) -> Folder:
    """Return the folder of a dataset, local, in an object store, or on the Hub."""
    return open_dataset(path) if path.startswith(SCHEME) else open_folder(path)


def read_files(folder: Folder, names: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of metadata files by name. Raises SourceError if one is missing."""
    try:
        found = {name: folder.read(name) for name in names}
    except FileNotFoundError as error:
        raise SourceError(f"{error.filename or error}: missing; copy the whole folder meta again") from None
    for name, content in found.items():
        if content.startswith(_POINTER):
            raise SourceError(f"{folder}/{name}: {_NO_FILE}")
    return found


def list_files(folder: Folder, below: str) -> dict[str, int]:
    """Return the sizes of the files one folder below a folder, such as ``data/chunk-000/file-000.parquet``."""
    inner = [f"{below}/{name}" for name in (folder / below).folders()]
    return {f"{each}/{name}": size for each in inner for name, size in (folder / each).sizes().items()}


class LocalFiles:
    """The files of a dataset on the local disk, each hashed when first opened.

    Those of an object store are copied to ``staging``, and ``stack`` removes the copies. Those of the Hub stay in the
    cache of its library.
    """

    def __init__(self, root: str, stack: ExitStack, *, staging: str | None) -> None:
        self.folder = open_files(root)
        self._copies: Path | None = None
        if isinstance(self.folder, StoreFolder):
            self._copies = stack.enter_context(stage(staging_base(staging)))
        self._hashes: dict[str, str] = {}

    def path(self, name: str) -> Path:
        """Return the local path of a file. Raises DamagedEpisode if the dataset lacks it."""
        size = self.folder.size(name)
        if size is None:
            raise DamagedEpisode(f"{self.folder}/{name}: {self._why_missing(name)}", reason="unreadable")
        if isinstance(self.folder, LocalFolder):
            path = self.folder.path / name
        elif isinstance(self.folder, HubFolder):
            path = self.folder.fetch(name)
        else:
            assert self._copies is not None
            path = self._copies / name.replace("/", "--")
            if name not in self._hashes:
                self.folder.download(name, path, num_bytes=size)
        with path.open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise DamagedEpisode(f"{self.folder}/{name}: {_NO_FILE}", reason="unreadable")
            if name not in self._hashes:
                file.seek(0)
                self._hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
        return path

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        """Return the SHA-256 of each file; a missing one counts as such."""
        for name in names:
            try:
                self.path(name)
            except DamagedEpisode:
                self._hashes[name] = "missing"
        return {name: self._hashes[name] for name in names}

    def _why_missing(self, name: str) -> str:
        top, folders = name.partition("/")[0], self.folder.folders()
        if top in folders:
            return "missing; copy it again"
        return f"missing, as the dataset has no folder {top}; {closest(top, folders, noun='folders')}"
