"""Slices on the Hugging Face Hub."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pairstream.export.lerobot import VERSION
from stream.storage.hub import SCHEME, hub_requests

_FOLDERS = ("data/*", "meta/*", "videos/*")


def push_slice(folder: Path, repository: str, *, private: bool) -> str:
    """Put a slice into a dataset of the Hub, which is made if needed, and return its address.

    Files of an earlier slice there are removed; its history keeps them. The tag ``v3.0``, by which LeRobot looks for
    datasets of a format, is set to what was put there.

    Raises:
        stream.storage.remote.RemoteError: The library is missing, or the Hub refused something.
    """
    with hub_requests(f"{SCHEME}{repository}", done="written"):
        from huggingface_hub import HfApi
        from huggingface_hub.errors import RevisionNotFoundError

        hub_api = HfApi()
        address = hub_api.create_repo(repository, repo_type="dataset", private=private or None, exist_ok=True)
        hub_api.upload_folder(
            repo_id=repository,
            repo_type="dataset",
            folder_path=folder,
            commit_message="Slice of pairstream",
            delete_patterns=list(_FOLDERS),
        )
        with contextlib.suppress(RevisionNotFoundError):
            hub_api.delete_tag(repository, tag=VERSION, repo_type="dataset")
        hub_api.create_tag(repository, tag=VERSION, repo_type="dataset")
    return str(address)
