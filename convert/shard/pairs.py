"""Which frames make a pair: the grammar of offsets and of stored frames, as integers in and integers out."""

from __future__ import annotations

import math
import re

from convert.errors import UsageError

_OFFSET = re.compile(r"(?P<steps>[0-9]{1,9})|(?P<seconds>[0-9]{1,9}(\.[0-9]{1,9})?|\.[0-9]{1,9})\s*s")
_FRAMES = re.compile(r"endpoints|all|stride:(?P<stride>[0-9]{1,9})|fixed:(?P<fixed>[0-9]{1,9})")
_MAX_OFFSET = 10_000
_MAX_FIXED = 10_000


def offset_in_steps(text: str | int, control_frequency: float | None, *, dataset: str) -> int:
    """Return an offset such as ``5`` or ``0.6s`` in steps.

    Args:
        text: a number of steps, or seconds with an ``s`` behind.
        control_frequency: steps a second, None if the dataset has no fixed rate.
        dataset: for messages.

    >>> offset_in_steps("5", None, dataset="d"), offset_in_steps("0.6s", 5.0, dataset="d")
    (5, 3)

    Raises:
        UsageError: neither form, below 1 or above 10,000 steps, or seconds for a dataset without a rate.
    """
    match = _match_offset(text, where=f"{dataset}: offset")
    if match["steps"]:
        steps = int(match["steps"])
    elif control_frequency is None:
        raise UsageError(f"{dataset}: offset {text!r} is in seconds, but this dataset has no fixed rate; give steps")
    else:
        steps = math.floor(float(match["seconds"]) * control_frequency + 0.5)
    if not 1 <= steps <= _MAX_OFFSET:
        rate = f" at {control_frequency:g} Hz" if control_frequency else ""
        raise UsageError(f"{dataset}: offset {text!r}{rate} is {steps} steps, expected 1 to {_MAX_OFFSET}")
    return steps


def is_seconds(text: str | int) -> bool:
    """Return whether an offset is in seconds.

    >>> is_seconds("0.6s"), is_seconds(5)
    (True, False)
    """
    return str(text).strip().endswith("s")


def check_offset(text: str) -> str:
    """Return ``--offset`` if it is a number of steps or of seconds, else raise UsageError; rates are not known here."""
    _match_offset(text, where="--offset")
    return text


def check_frames(text: str) -> str:
    """Return ``--frames`` if it is one of ``endpoints | all | stride:S | fixed:N``, else raise UsageError."""
    match = _FRAMES.fullmatch(text)
    if (
        not match
        or (match["stride"] and int(match["stride"]) < 1)
        or (match["fixed"] and not 2 <= int(match["fixed"]) <= _MAX_FIXED)
    ):
        raise UsageError(
            f"frames {text[:80]!r} is none of: endpoints, all, stride:S (S >= 1), fixed:N (N from 2 to {_MAX_FIXED:,})"
        )
    return text


def frame_offsets(frames: str, offset: int) -> tuple[int, ...]:
    """Return which frames of [t, t+offset] a record stores, as distances from t; the first and last always.

    ``fixed:N`` spaces N frames evenly, rounded to whole steps, and repeats one where there are fewer steps than frames.

    >>> frame_offsets("endpoints", 5), frame_offsets("all", 3)
    ((0, 5), (0, 1, 2, 3))
    >>> frame_offsets("stride:2", 5), frame_offsets("fixed:3", 5)
    ((0, 2, 4, 5), (0, 3, 5))
    """
    match = _FRAMES.fullmatch(check_frames(frames))
    assert match
    if match["stride"]:
        return (*range(0, offset, int(match["stride"])), offset)
    if match["fixed"]:
        last = int(match["fixed"]) - 1
        return tuple((2 * i * offset + last) // (2 * last) for i in range(last + 1))
    return tuple(range(offset + 1)) if frames == "all" else (0, offset)


def _match_offset(text: str | int, *, where: str) -> re.Match[str]:
    match = _OFFSET.fullmatch(str(text).strip())
    if not match:
        raise UsageError(f"{where} {str(text)[:80]!r} is neither a number of steps (5) nor seconds (0.6s)")
    return match


def first_steps(num_steps: int, offset: int) -> range:
    """Return every t of which both t and t+offset are in an episode.

    >>> list(first_steps(8, 5)), list(first_steps(5, 5))
    ([0, 1, 2], [])
    """
    return range(max(num_steps - offset, 0))
