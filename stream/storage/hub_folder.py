"""Folders of a dataset on the Hugging Face Hub, at a commit."""

from __future__ import annotations

from typing import ClassVar

from stream.storage.hub import HubAddress, list_tree
from stream.storage.remote_folder import RemoteFolder


class HubFolder(RemoteFolder):
    """A folder of a dataset, see ``RemoteFolder``; one listing of the commit answers for all folders and sizes.

    Args:
        url: ``hf://datasets/ORG/NAME@COMMIT/FOLDER``.
    """

    # Each request may need a request to the Hub, which limits their number.
    chunk_bytes: ClassVar[int] = 16 << 20

    def check(self) -> None:
        """Raise RemoteError unless the commit can be listed."""
        self._files("")

    def sizes(self) -> dict[str, int]:
        """Return the size of each file directly in the folder, by name."""
        return dict(self._files(HubAddress.of(self.url).path))

    def size(self, object_name: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""
        parent, _, file_name = HubAddress.of(f"{self.url}/{object_name}").path.rpartition("/")
        return self._files(parent).get(file_name)

    def folders(self) -> list[str]:
        """Return the names of the subfolders."""
        address = HubAddress.of(self.url)
        prefix = f"{address.path}/" if address.path else ""
        paths = list_tree(address.name, address.revision)
        return sorted({path[len(prefix) :].partition("/")[0] for path in paths if path.startswith(prefix)} - {""})

    def _files(self, folder: str) -> dict[str, int]:
        address = HubAddress.of(self.url)
        return dict(list_tree(address.name, address.revision).get(folder, {}))
