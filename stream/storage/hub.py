"""Requests to the Hugging Face Hub by ``huggingface_hub``, which reads ``HF_HOME``, ``HF_TOKEN`` and the like."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from stream.base.extras import missing
from stream.storage.remote import RemoteError

SCHEME = "hf://datasets/"
"""Start of the URL of a dataset: ``hf://datasets/ORG/NAME@REVISION``."""
_LOG_IN = "set HF_TOKEN or run `hf auth login`"
_RETRIED = (408, 429)
"""Answers of 4xx after which the same request may succeed."""


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
