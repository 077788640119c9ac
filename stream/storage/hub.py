"""Requests to the Hugging Face Hub by ``huggingface_hub``, which reads ``HF_HOME``, ``HF_TOKEN`` and the like."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, Self
from urllib.parse import quote, unquote

from stream.base.extras import missing
from stream.storage.remote import RemoteError

SCHEME = "hf://datasets/"
"""Start of the URL of a dataset: ``hf://datasets/ORG/NAME@REVISION``."""
_LOG_IN = "set HF_TOKEN or run `hf auth login`"
_RETRIED = (408, 429)
"""Answers of 4xx after which the same request may succeed."""
_ADDRESS = re.compile(
    r"hf://datasets/(?P<name>[A-Za-z0-9][\w.-]*/[\w.-]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/@]+|[^/@]+))?(?:/(?P<path>[^@]*))?",
    re.ASCII,
)
_COMMIT = re.compile("[0-9a-f]{40}")


class HubAddress(NamedTuple):
    """Parts of ``hf://datasets/ORG/NAME@REVISION/PATH``.

    Attributes:
        name: ``ORG/NAME``.
        revision: Branch, tag or commit, empty for the default branch; a slash in it may be written as ``%2F``.
        path: Folder or file in the dataset, empty for all of it.
    """

    name: str
    revision: str
    path: str

    @classmethod
    def of(cls, url: str) -> Self:
        """Return the parts of an address; raise RemoteError if it is another one."""
        address = _ADDRESS.fullmatch(url.rstrip("/"))
        if address is None:
            remedy = "; a bucket of the Hub is read through its S3 gateway, see docs/object-stores.md"
            hint = remedy if url.startswith("hf://buckets/") else ""
            raise RemoteError(f"{url}: expected {SCHEME}ORG/NAME[@REVISION][/FOLDER]{hint}", refused=True)
        return cls(address["name"], unquote(address["revision"] or ""), (address["path"] or "").strip("/"))

    def __str__(self) -> str:
        revision = f"@{quote(self.revision, safe='')}" if self.revision else ""
        return f"{SCHEME}{self.name}{revision}" + (f"/{self.path}" if self.path else "")


def pin_commit(url: str) -> str:
    """Return an address with the commit that its branch or tag names now; any other address stays as it is.

    Raises:
        RemoteError: There is no such dataset or revision, no access, or no answer.
    """
    if not url.startswith("hf://"):
        return url
    address = HubAddress.of(url)
    if _COMMIT.fullmatch(address.revision):
        return url
    with hub_requests(url, done="read"):
        from huggingface_hub import HfApi

        commit = HfApi().dataset_info(address.name, revision=address.revision or "main", expand=["sha"]).sha
    if commit is None:
        raise RemoteError(f"{url}: the Hub names no commit of it; give one as @COMMIT", refused=True)
    return str(address._replace(revision=commit))


@lru_cache(8)
def list_tree(dataset_name: str, commit: str) -> Mapping[str, Mapping[str, int]]:
    """Return the sizes of all files of a dataset at a commit, by folder and name."""
    sizes_by_folder: dict[str, dict[str, int]] = {}
    with hub_requests(f"{SCHEME}{dataset_name}@{commit}", done="listed"):
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile

        for entry in HfApi().list_repo_tree(dataset_name, recursive=True, repo_type="dataset", revision=commit):
            if isinstance(entry, RepoFile):
                folder, _, file_name = entry.path.rpartition("/")
                sizes_by_folder.setdefault(folder, {})[file_name] = entry.size
    return sizes_by_folder


@contextlib.contextmanager
def hub_requests(context: str, *, done: str) -> Iterator[None]:
    """Turn any exception of the library, and its absence, into one clear RemoteError.

    ``context`` is the dataset or a file of it, and ``done`` the participle of the request: ``read`` or ``written``.
    """
    try:
        from huggingface_hub import constants, errors
    except ImportError as error:
        raise RemoteError(f"{missing('huggingface_hub', 'hub', by=context)} ({error})", refused=True) from None
    # Subclasses come before their bases.
    sentences: dict[type[Exception], str] = {
        errors.GatedRepoError: f"its owners grant access on request; ask on its page, then {_LOG_IN}",
        errors.RepositoryNotFoundError: f"no such dataset on {constants.ENDPOINT}, or a private one that these "
        f"credentials do not open; check the name, and {_LOG_IN} for a private one",
        errors.RevisionNotFoundError: "no such branch, tag or commit",
    }
    try:
        yield
    except RemoteError:
        raise
    except errors.LocalEntryNotFoundError as error:
        offline, unavailable = constants.is_offline_mode(), f"{constants.ENDPOINT} does not give it"
        reason = "HF_HUB_OFFLINE is set" if offline else f"{unavailable}: {_line(error.__cause__)}"
        message = f"{context}: is not in {constants.HF_HUB_CACHE}, and {reason}"
        raise RemoteError(message, refused=offline) from error
    except Exception as error:
        for error_type, sentence in sentences.items():
            if isinstance(error, error_type):
                raise RemoteError(f"{context}: {sentence}", refused=True) from error
        status_code = getattr(getattr(error, "response", None), "status_code", 0)
        refused = isinstance(error, ValueError) or (400 <= status_code < 500 and status_code not in _RETRIED)
        advice = f"; {_LOG_IN} with a token that allows it" if status_code in (401, 403) else ""
        raise RemoteError(f"{context}: cannot be {done}: {_line(error)}{advice}", refused=refused) from error


def _line(error: BaseException | None) -> str:
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}"
