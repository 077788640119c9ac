"""The errors of streaming. Each message says what was found, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class StreamError(Exception):
    """Base of all errors of ours."""


class ArgumentError(StreamError, ValueError):
    """What was asked for cannot be loaded: a wrong name, split, weight, size or option."""


class StateError(StreamError, ValueError):
    """A saved state or ``loader.json`` that belongs to another order of samples; names the field that differs."""


class RingError(StreamError, MemoryError):
    """The memory for the batches cannot be had; says how much is needed."""


class LimitError(StreamError, RuntimeError):
    """A limit that was set for this process or machine, on threads for example, is too low."""


class WorkerError(StreamError, RuntimeError):
    """A worker process ended, or a transform failed in it. ``step`` is the batch that it was at."""

    def __init__(self, message: str, *, step: int) -> None:
        super().__init__(message)
        self.step = step

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), str(self), {"step": self.step})


class RecordError(StreamError, RuntimeError):
    """A record that cannot be read or decoded.

    sample: its global number. step: the batch it belongs to, -1 where no batch was asked for. dataset, split, shard,
    record, episode: where it lies; episode counts in the split, -1 if it could not be read.
    """

    def __init__(
        self,
        reason: str,
        *,
        dataset: str,
        split: str,
        shard: str,
        record: int,
        episode: int = -1,
        sample: int = -1,
        step: int = -1,
    ) -> None:
        self.reason = reason
        self.dataset = dataset
        self.split = split
        self.shard = shard
        self.record = record
        self.episode = episode
        self.sample = sample
        self.step = step
        episode_text = f", episode {episode}" if episode >= 0 else ""
        step_text = f"step {step}, " if step >= 0 else ""
        super().__init__(
            f"{step_text}sample {sample}: dataset {dataset}, split {split}, shard {shard}, record "
            f"{record}{episode_text}: "
            f"{reason}; check it with `python -m convert.verify`, or load with on_error='replace'"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.reason, {key: getattr(self, key) for key in _PLACE})

    def at(self, *, step: int) -> RecordError:
        """Return the same error, said of a batch."""
        return RecordError(self.reason, **{key: getattr(self, key) for key in _PLACE} | {"step": step})

    def because(self, reason: str) -> RecordError:
        """Return the same error with another reason."""
        return RecordError(reason, **{key: getattr(self, key) for key in _PLACE})


_PLACE = ("dataset", "split", "shard", "record", "episode", "sample", "step")


def _rebuild(kind: type[Exception], message: str, fields: dict[str, object]) -> Exception:
    return kind(message, **fields)


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
