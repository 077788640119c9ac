"""The errors of streaming. Each message says what was found, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class StreamError(Exception):
    """Base of all errors of ours.

    Attributes:
        refused: Whether trying the same again is no use.
    """

    refused = False


class FormatError(ValueError):
    """Bytes or names that are not in the on-disk format; the message says what was found and where."""


class ArgumentError(StreamError, ValueError):
    """What was asked for cannot be loaded: a wrong name, split, weight, size or option."""

    refused = True


class StateError(StreamError, ValueError):
    """A saved state or ``loader.json`` that belongs to another order of samples; names the field that differs."""

    refused = True


class RingError(StreamError, MemoryError):
    """The memory for the batches cannot be had; says how much is needed."""


class LimitError(StreamError, RuntimeError):
    """A limit that was set for this process or machine, on threads for example, is too low."""


class WorkerError(StreamError, RuntimeError):
    """A worker process ended, or a transform failed in it. ``step`` is the batch that it was at."""

    def __init__(self, message: str, *, step: int = -1) -> None:
        super().__init__(message)
        self.step = step


@dataclass(eq=False)
class RecordError(StreamError, RuntimeError):
    """A record that cannot be read or decoded.

    Attributes:
        reason: What is wrong with it.
        dataset, split, shard, record: Location of the record.
        episode: Number of the episode in the split, -1 if unknown.
        sample: Global number of the sample.
        step: Batch that the record belongs to, -1 if no batch was asked for.
    """

    reason: str = ""
    _: KW_ONLY
    dataset: str = ""
    split: str = ""
    shard: str = ""
    record: int = -1
    episode: int = -1
    sample: int = -1
    step: int = -1

    def __str__(self) -> str:
        step = f"step {self.step}, " if self.step >= 0 else ""
        episode = f", episode {self.episode}" if self.episode >= 0 else ""
        return (
            f"{step}sample {self.sample}: dataset {self.dataset}, split {self.split}, shard {self.shard}, record "
            f"{self.record}{episode}: {self.reason}; check it with `python -m convert.verify`, or load with "
            "on_error='replace'"
        )


def closest(name: object, known: Iterable[str], *, noun: str) -> str:
    """Say which known names come near to ``name``, whatever their case, or which there are at all.

    >>> closest("Brigde", ["bridge", "kuka"], noun="datasets")
    "did you mean 'bridge'?"
    >>> closest("xyz", ["bridge", "kuka"], noun="datasets")
    'datasets there: bridge, kuka'
    """
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    near = [lowered[hit] for hit in difflib.get_close_matches(str(name)[:80].lower(), lowered, n=3)]
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"{noun} there: {', '.join(names[:40]) or 'none'}{' ...' if len(names) > 40 else ''}"


def first_fault(error: ValidationError) -> str:
    """Say which field is wrong, why, and what stands there, of the first fault."""
    detail = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in detail["loc"]) or "value"
    return f"{field}: {detail['msg']} (found {detail['input']!r:.80})"
