"""Files of a LeRobot dataset on the disk, in an object store or on the Hugging Face Hub, and local copies of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from convert.errors import DamagedEpisode, SourceError
from convert.storage.object_store import StoreFolder, open_folder
from convert.storage.staging import stage, staging_base
from stream.base.errors import closest
from stream.storage.hub import SCHEME, hub_requests
from stream.storage.remote import LocalFolder

HUB_DATASET = re.compile(rf"(?:{SCHEME})?(?P<name>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>.+))?", re.ASCII)
"""A dataset, with a branch, tag or commit."""


@dataclass(frozen=True)
class HubFolder:
    """A folder of a dataset at a commit, with the reading methods of ``stream.storage.remote.LocalFolder``."""

    name: str
    commit: str
    below: str = ""

    def __str__(self) -> str:
        return f"{SCHEME}{self.name}@{self.commit}" + (f"/{self.below}" if self.below else "")

    def __truediv__(self, name: str) -> HubFolder:
        return HubFolder(self.name, self.commit, self._path(name))

    def _path(self, name: str) -> str:
        return f"{self.below}/{name}" if self.below else name

    def folders(self) -> list[str]:
        """Return the names of the subfolders."""
        prefix = self._path("")
        paths = [path.removeprefix(prefix) for path in _listing(self.name, self.commit) if path.startswith(prefix)]
        return sorted({path.partition("/")[0] for path in paths} - {""})

    def sizes(self) -> dict[str, int]:
        """Return the size of each file directly in the folder, by name."""
        return _listing(self.name, self.commit).get(self.below, {})

    def size(self, file_name: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""
        parent, _, base_name = self._path(file_name).rpartition("/")
        return _listing(self.name, self.commit).get(parent, {}).get(base_name)

    def read(self, file_name: str) -> bytes:
        """Return the content of a file; raise FileNotFoundError if it does not exist."""
        if self.size(file_name) is None:
            raise FileNotFoundError(f"{self}/{file_name}")
        return self.fetch(file_name).read_bytes()

    def fetch(self, file_name: str) -> Path:
        """Return the path of a file in the cache, and download the file first if the cache lacks it."""
        with hub_requests(f"{self}/{file_name}", done="read"):
            from huggingface_hub import hf_hub_download

            return Path(hf_hub_download(self.name, self._path(file_name), repo_type="dataset", revision=self.commit))


def find_dataset(dataset_name: str, revision: str | None) -> HubFolder:
    """Return a dataset at the commit that a branch or tag names now; RemoteError if there is none, or no access."""
    return HubFolder(dataset_name, _fetch_metadata(dataset_name, revision or "main"))


def _fetch_metadata(name: str, revision: str) -> str:
    """Download the folder ``meta`` and the list of all files into the cache, and return the commit."""
    with hub_requests(f"{SCHEME}{name}@{revision}", done="read"):
        from huggingface_hub import logging, snapshot_download
        from huggingface_hub.utils.tqdm import disable_progress_bars

        # Workers would draw their bars and repeat their advice over each other.
        disable_progress_bars()
        logging.set_verbosity_error()
        return Path(snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns="meta/*")).name


@cache
def _listing(dataset_name: str, commit: str) -> dict[str, dict[str, int]]:
    """Return the sizes of all files of a dataset, by folder and name."""
    _fetch_metadata(dataset_name, commit)
    sizes_by_folder: dict[str, dict[str, int]] = {}
    with hub_requests(f"{SCHEME}{dataset_name}@{commit}", done="read"):
        from huggingface_hub import get_cached_repo_tree

        for tree_entry in get_cached_repo_tree(dataset_name, repo_type="dataset", revision=commit):
            parent, _, base_name = tree_entry.path.rpartition("/")
            sizes_by_folder.setdefault(parent, {})[base_name] = tree_entry.size
    return sizes_by_folder


Folder = LocalFolder | StoreFolder | HubFolder
_POINTER = b"version https://git-lfs"
_NO_FILE = "a pointer of Git LFS, not the file itself; run `git lfs pull` in the dataset"


def open_files(path: str) -> Folder:
    """Return the folder of a dataset, local, in an object store, or on the Hub."""
    name, _, commit = path.removeprefix(SCHEME).partition("@")
    return HubFolder(name, commit) if path.startswith(SCHEME) else open_folder(path)


def read_files(folder: Folder, file_names: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of metadata files by name. Raises SourceError if one is missing."""
    try:
        content_by_name = {file_name: folder.read(file_name) for file_name in file_names}
    except FileNotFoundError as error:
        raise SourceError(f"{error.filename or error}: missing; copy the whole folder meta again") from None
    for file_name, content in content_by_name.items():
        if content.startswith(_POINTER):
            raise SourceError(f"{folder}/{file_name}: {_NO_FILE}")
    return content_by_name


def list_files(folder: Folder, parent: str) -> dict[str, int]:
    """Return the sizes of the files one folder below a folder, such as ``data/chunk-000/file-000.parquet``."""
    return measure_folders(folder, [f"{parent}/{subfolder}" for subfolder in (folder / parent).folders()])


def measure_folders(folder: Folder, subfolders: Iterable[str]) -> dict[str, int]:
    """Return the size of each file of some subfolders, by path."""
    size_by_file: dict[str, int] = {}
    for subfolder in subfolders:
        size_by_file |= {f"{subfolder}/{name}": num_bytes for name, num_bytes in (folder / subfolder).sizes().items()}
    return size_by_file


class LocalFiles:
    """The files of a dataset on the local disk, each hashed when first opened.

    Files of an object store are copied to ``staging``, and ``stack`` removes the copies. Files of the Hub stay in the
    cache of its library.
    """

    def __init__(self, root: str, stack: ExitStack, *, staging: str | None) -> None:
        self.folder = open_files(root)
        if isinstance(self.folder, StoreFolder):
            self._copies = stack.enter_context(stage(staging_base(staging)))
        self._hashes: dict[str, str] = {}

    def path(self, file_name: str) -> Path:
        """Return the local path of a file. Raises DamagedEpisode if the dataset lacks it."""
        num_bytes = self.folder.size(file_name)
        if num_bytes is None:
            raise DamagedEpisode(f"{self.folder}/{file_name}: {self._why_missing(file_name)}", reason="unreadable")
        if isinstance(self.folder, LocalFolder):
            local_path = self.folder.path / file_name
        elif isinstance(self.folder, HubFolder):
            local_path = self.folder.fetch(file_name)
        else:
            local_path = self._copies / file_name.replace("/", "--")
            if file_name not in self._hashes:
                self.folder.download(file_name, local_path, num_bytes=num_bytes)
        with local_path.open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise DamagedEpisode(f"{self.folder}/{file_name}: {_NO_FILE}", reason="unreadable")
            if file_name not in self._hashes:
                file.seek(0)
                self._hashes[file_name] = hashlib.file_digest(file, "sha256").hexdigest()
        return local_path

    def digests(self, file_names: Iterable[str]) -> dict[str, str]:
        """Return the SHA-256 of each file, or ``missing``."""
        for file_name in file_names:
            try:
                self.path(file_name)
            except DamagedEpisode:
                self._hashes[file_name] = "missing"
        return {file_name: self._hashes[file_name] for file_name in file_names}

    def _why_missing(self, file_name: str) -> str:
        top_folder, folders = file_name.partition("/")[0], self.folder.folders()
        if top_folder in folders:
            return "missing; copy it again"
        return f"missing, as the dataset has no folder {top_folder}; {closest(top_folder, folders, noun='folders')}"
