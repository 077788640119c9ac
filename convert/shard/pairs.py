"""Frame pairs: the grammar of offsets and of stored frames, as integers in and integers out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from convert.errors import UsageError
from stream.format.mixture_file import OFFSET
from stream.format.names import Layout

_FRAMES = re.compile(r"endpoints|all|stride:(?P<stride>0*[1-9][0-9]{0,8})|fixed:(?P<fixed>[0-9]{1,9})")
_MAX_OFFSET = 10_000
_MAX_FIXED = 10_000


def offset_in_steps(offset_text: str | int, control_frequency: float | None, *, dataset_name: str) -> int:
    """Return an offset such as ``5`` or ``0.6s`` in steps; ``control_frequency`` is in steps per second.

    >>> offset_in_steps("5", None, dataset_name="d"), offset_in_steps("0.6s", 5.0, dataset_name="d")
    (5, 3)

    Raises:
        UsageError: Neither form, below 1 or above 10,000 steps, or seconds for a dataset without a rate.
    """
    check_offset(offset_text, option_name=f"{dataset_name}: offset")
    context = f"{dataset_name}: offset {offset_text!r}"
    number = float(str(offset_text).strip().rstrip("s"))
    if is_seconds(offset_text) and control_frequency is None:
        raise UsageError(f"{context} is in seconds, but this dataset has no fixed rate; give steps")
    num_steps = math.floor(number * (control_frequency or 0) + 0.5) if is_seconds(offset_text) else int(number)
    if not 1 <= num_steps <= _MAX_OFFSET:
        rate_note = f" at {control_frequency:g} Hz" if control_frequency else ""
        raise UsageError(f"{context}{rate_note} is {num_steps} steps, expected 1 to {_MAX_OFFSET}")
    return num_steps


def is_seconds(offset_text: str | int) -> bool:
    """Return whether an offset is in seconds.

    >>> is_seconds("0.6s"), is_seconds(5)
    (True, False)
    """
    return str(offset_text).strip().endswith("s")


def check_offset(offset_text: str | int, *, option_name: str = "--offset") -> str:
    """Return an offset if it is a number of steps or of seconds, else raise UsageError with the name."""
    if not OFFSET.fullmatch(str(offset_text).strip()):
        raise UsageError(f"{option_name} {str(offset_text)[:80]!r} is neither a number of steps (5) nor seconds (0.6s)")
    return str(offset_text)


def check_frames(frames_text: str) -> str:
    """Return ``--frames`` if it is one of ``endpoints | all | stride:S | fixed:N``, else raise UsageError."""
    grammar_match = _FRAMES.fullmatch(frames_text)
    if not grammar_match or (grammar_match["fixed"] and not 2 <= int(grammar_match["fixed"]) <= _MAX_FIXED):
        grammar = f"endpoints, all, stride:S (S >= 1), fixed:N (N from 2 to {_MAX_FIXED:,})"
        raise UsageError(f"frames {frames_text[:80]!r} is none of: {grammar}")
    return frames_text


def frame_offsets(frames_text: str, offset: int) -> tuple[int, ...]:
    """Return the stored frames of [t, t+offset], as distances from t; always with the first and the last.

    ``fixed:N`` spaces N frames evenly, rounded to whole steps, and repeats one where there are fewer steps than frames.

    >>> frame_offsets("endpoints", 5), frame_offsets("all", 3)
    ((0, 5), (0, 1, 2, 3))
    >>> frame_offsets("stride:2", 5), frame_offsets("fixed:3", 5)
    ((0, 2, 4, 5), (0, 3, 5))
    """
    frames_kind, _, frames_number = check_frames(frames_text).partition(":")
    if frames_kind == "fixed":
        last_frame = int(frames_number) - 1
        return tuple((2 * number * offset + last_frame) // (2 * last_frame) for number in range(last_frame + 1))
    stride = {"all": 1, "endpoints": offset}.get(frames_kind) or int(frames_number)
    return (*range(0, offset, stride), offset)


def record_offsets(layout: Layout, parameters: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the distances from t of the frames of each record, in order; None if the parameters contradict.

    ``layout`` and ``parameters`` are those of a manifest.
    """
    if layout == "frames":
        return (0,)
    offset, frames_text = parameters.get("offset"), str(parameters.get("frames"))
    if not isinstance(offset, int) or not 1 <= offset <= _MAX_OFFSET:
        return None
    try:
        expected_offsets = frame_offsets(frames_text, offset)
    except UsageError:
        return None
    return expected_offsets if parameters.get("frame_offsets") == list(expected_offsets) else None


def first_steps(num_steps: int, offset: int) -> range:
    """Return every t of which both t and t+offset are in an episode.

    >>> list(first_steps(8, 5)), list(first_steps(5, 5))
    ([0, 1, 2], [])
    """
    return range(max(num_steps - offset, 0))
