"""LeRobot datasets on the Hugging Face Hub: files come into the cache of its library, each when it is opened."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from stream.storage.hub import SCHEME, hub_requests

PLACE = re.compile(rf"(?:{SCHEME})?(?P<name>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>.+))?", re.ASCII)
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
        start = self._path("")
        found = (f"{each}/" for each in _listing(self.name, self.commit))
        return sorted({each[len(start) :].partition("/")[0] for each in found if each.startswith(start)} - {""})

    def sizes(self) -> dict[str, int]:
        """Return the size of each file directly in the folder, by name."""
        return _listing(self.name, self.commit).get(self.below, {})

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""
        parent, _, last = self._path(name).rpartition("/")
        return _listing(self.name, self.commit).get(parent, {}).get(last)

    def read(self, name: str) -> bytes:
        """Return the content of a file; raise FileNotFoundError if it does not exist."""
        if self.size(name) is None:
            raise FileNotFoundError(f"{self}/{name}")
        return self.fetch(name).read_bytes()

    def fetch(self, name: str) -> Path:
        """Return the path of a file in the cache, where it comes first if it is not there yet."""
        with hub_requests(f"{self}/{name}", done="read"):
            from huggingface_hub import hf_hub_download

            return Path(hf_hub_download(self.name, self._path(name), repo_type="dataset", revision=self.commit))


def open_dataset(url: str) -> HubFolder:
    """Return the dataset of a URL with a commit, ``hf://datasets/ORG/NAME@COMMIT``."""
    name, _, commit = url.removeprefix(SCHEME).partition("@")
    return HubFolder(name, commit)


def find_dataset(name: str, revision: str | None) -> HubFolder:
    """Return a dataset at the commit that a branch or tag names now, by default ``main``.

    Raises:
        stream.storage.remote.RemoteError: There is no such dataset or revision, no access, or no network.
    """
    return HubFolder(name, _fetch_metadata(name, revision or "main"))


def _fetch_metadata(name: str, revision: str) -> str:
    """Bring the folder ``meta`` and the list of all files into the cache, and return the commit."""
    with hub_requests(f"{SCHEME}{name}@{revision}", done="read"):
        from huggingface_hub import logging, snapshot_download
        from huggingface_hub.utils.tqdm import disable_progress_bars

        # Workers would draw their bars and repeat their advice over each other.
        disable_progress_bars()
        logging.set_verbosity_error()
        return Path(snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns="meta/*")).name


@cache
def _listing(name: str, commit: str) -> dict[str, dict[str, int]]:
    """Return the sizes of all files of a dataset, by folder and name."""
    _fetch_metadata(name, commit)
    found: dict[str, dict[str, int]] = {}
    with hub_requests(f"{SCHEME}{name}@{commit}", done="read"):
        from huggingface_hub import get_cached_repo_tree

        for file in get_cached_repo_tree(name, repo_type="dataset", revision=commit):
            parent, _, last = file.path.rpartition("/")
            found.setdefault(parent, {})[last] = file.size
    return found
