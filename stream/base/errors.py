"""Errors of this project; each message says what was found, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


EXIT_FAILED = 1
"""Exit code of a command that stopped half-way."""
EXIT_USAGE = 2
"""Exit code of a command that was refused: a wrong name, path, option or configuration."""
EXIT_INTERRUPTED = 130
"""Exit code after Ctrl-C."""
EXIT_PIPE = 141
"""Exit code after the reader of the output has left."""


class StreamError(Exception):
    """Base class of all errors of this project, including the conversion.

    ``refused`` is True if the same call would fail again: the caller has to change something first. Commands then end
    with exit code 2 instead of 1.
    """

    refused = False


class FormatError(StreamError, ValueError):
    """Bytes or names that break the on-disk format."""


class ArgumentError(StreamError, ValueError):
    """A request that cannot be fulfilled: a wrong name, split, weight, size or option."""

    refused = True


class StateError(StreamError, ValueError):
    """A saved state or ``loader.json`` of another order of samples; the message names the field that differs."""

    refused = True


class RingError(MemoryError, StreamError):
    """A lack of memory for the batches; the message says how much is needed."""


class LimitError(StreamError, RuntimeError):
    """A limit of this process or machine that is too low, for example on threads or open files."""


class WorkerError(StreamError, RuntimeError):
    """A worker process that ended, or a transform that failed in one; ``step`` is its batch, -1 if unknown."""

    def __init__(self, message: str, *, step: int = -1) -> None:
        super().__init__(message)
        self.step = step


@dataclass(eq=False)
class RecordError(StreamError, RuntimeError):
    """A record that cannot be read or decoded.

    Attributes:
        reason: Fault of the record.
        dataset, split, shard, record: Location of the record.
        episode: Number of the episode in the split, -1 if unknown.
        sample: Global number of the sample.
        step: Batch of the sample, -1 if no batch was asked for.
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
        remedy = "check it with `pairstream verify`, which says how to repair it, or load with on_error='replace'"
        record = f"dataset {self.dataset}, split {self.split}, shard {self.shard}, record {self.record}{episode}"
        return f"{step}sample {self.sample}: {record}: {self.reason}; {remedy}"


def closest(name: object, candidates: Iterable[str], *, noun: str) -> str:
    """Return a hint for an unknown name: the closest candidates in any case, or else the list of them.

    >>> closest("Brigde", ["bridge", "kuka"], noun="datasets")
    "did you mean 'bridge'?"
    >>> closest("xyz", ["bridge", "kuka"], noun="datasets")
    'datasets there: bridge, kuka'
    """
    names = sorted(candidates)
    by_lowercase = {candidate.lower(): candidate for candidate in names}
    matches = [by_lowercase[match] for match in difflib.get_close_matches(str(name)[:80].lower(), by_lowercase, n=3)]
    if matches:
        return f"did you mean {' or '.join(map(repr, matches))}?"
    return f"{noun} there: {', '.join(names[:40]) or 'none'}{' ...' if len(names) > 40 else ''}"


def first_fault(validation_error: ValidationError) -> str:
    """Return field, reason and value of the first fault."""
    fault = validation_error.errors(include_url=False)[0]
    field_path = ".".join(str(location_part) for location_part in fault["loc"]) or "value"
    return f"{field_path}: {fault['msg']} (found {fault['input']!r:.80})"
