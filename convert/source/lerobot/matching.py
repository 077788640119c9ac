"""Frames of a video file that belong to the rows of an episode: each row has its own, or none.

Frames are counted. Their times only tell whether the count is plausible: LeRobot's own reader takes the nearest frame
and raises where that is more than 0.0001 s away, so wherever it reads, counting gives the same frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from convert.errors import DamagedEpisode

_SLACK = 0.1
"""Most misfit between a row and its frame, in frames."""


@dataclass(frozen=True, slots=True)
class VideoPart:
    """The part of a video file that has the frames of one episode.

    Attributes:
        name: Name of the file.
        start: Time at which the episode begins, in seconds: ``from_timestamp``.
        stop: Time at which it ends: ``to_timestamp``.
        length: Count of its rows.
        first: Count of the rows of the episodes before it in the file.
        rows: Count of the rows of all episodes of the file.
        end: Time at which the last of them ends.
        alone: True for the only episode of a file, at its start.
        apart: True if the episode ends before the next begins, and begins after the end of the one before.
        joined: True if both are at the same time, so that no frame lies between episodes.
    """

    name: str
    start: float
    stop: float
    length: int
    first: int = 0
    rows: int = 0
    end: float = 0.0
    alone: bool = False
    apart: bool = True
    joined: bool = True


def share_file(parts: Sequence[VideoPart], *, fps: float) -> list[VideoPart]:
    """Return the parts of one file with what each has to know of the others; they follow each other by ``start``."""
    slack = _SLACK / fps
    order = sorted(range(len(parts)), key=lambda number: (parts[number].start, parts[number].stop))
    gaps = [parts[order[0]].start, *(parts[after].start - parts[before].stop for before, after in pairwise(order)), 0.0]
    firsts = np.cumsum([0, *(parts[number].length for number in order)]).tolist()
    end = max(part.stop for part in parts)
    found = list(parts)
    for place, number in enumerate(order):
        around = gaps[place : place + 2]
        found[number] = replace(
            parts[number],
            first=firsts[place],
            rows=firsts[-1],
            end=end,
            alone=len(parts) == 1 and abs(parts[number].start) <= slack,
            apart=min(around) >= -slack,
            joined=max(map(abs, around)) <= slack,
        )
    return found


def match_rows(
    times: np.ndarray, part: VideoPart, stamps: np.ndarray, *, fps: float, listed: int = 0
) -> tuple[np.ndarray, int]:
    """Return the number of the frame of each row of an episode, -1 where the file lacks it, and the count of others.

    Where the file has as many frames as its episodes have rows, or the time of an episode as many as the episode, the
    k-th frame is the k-th row's. Elsewhere a row has the frame at its time, and either every row has one, or every
    frame of this time has a row: anything else may be a shift.

    Args:
        times: Times of all frames of the file, ascending, in seconds.
        part: The episode's part of the file.
        stamps: Times of the rows in the episode, in seconds.
        listed: Count of the frames that the file would have if it was not cut short.

    Raises:
        DamagedEpisode: The frames of the episode cannot be told from those of others; the message says why.

    >>> part = VideoPart(name="front.mp4", start=0, stop=0.3, length=3, rows=3, alone=True)
    >>> match_rows(np.array([0, 0.1, 0.2]), part, np.zeros(3), fps=10)[0].tolist()
    [0, 1, 2]
    >>> match_rows(np.array([0, 0.1]), part, np.arange(3) / 10, fps=10)[0].tolist()
    [0, 1, -1]
    """
    slack = _SLACK / fps
    if not part.length:
        return np.zeros(0, np.int64), 0
    if len(times) == part.rows:
        begins = np.array([part.first / fps, times[part.first]])
        if np.abs(begins - part.start).min() > slack:
            told = f"it begins at {part.start:.3f} s, and its first frame would be number {part.first}"
            raise _untold(times, part, f"{told}, at {begins[1]:.3f} s")
        return np.arange(part.first, part.first + part.length), 0
    if part.alone:
        return _match_times(times, part, stamps, first=0, slack=slack)
    ends = times[-1] + 1 / fps if len(times) else 0.0
    if abs(ends - part.end) > slack and listed != part.rows:
        raise _untold(times, part, f"the file ends at {ends:.3f} s, its episodes at {part.end:.3f} s")
    first, stop = np.searchsorted(times, [part.start - slack, part.stop - slack]).tolist()
    if part.apart and stop - first == part.length and abs(times[first] - part.start) <= slack:
        return np.arange(first, stop), 0
    if not part.joined:
        raise _untold(times, part, f"{stop - first} frames lie between {part.start:.3f} and {part.stop:.3f} s")
    return _match_times(times[first:stop], part, stamps, first=first, slack=slack)


def _match_times(
    times: np.ndarray, part: VideoPart, stamps: np.ndarray, *, first: int, slack: float
) -> tuple[np.ndarray, int]:
    """Match rows and frames by their times; ``first`` is the number of the first of ``times``."""
    if abs(stamps[0]) > slack or (np.diff(stamps) <= 2 * slack).any():
        raise _untold(times, part, f"timestamp goes from {stamps[0]:.3f} to {stamps[-1]:.3f} s, not from 0 upwards")
    wanted = part.start + stamps
    after = np.searchsorted(times, wanted - slack)
    found = np.append(times, np.inf)[after] <= wanted + slack
    spare = len(times) - int(found.sum())
    if not found.any() or (spare and not found.all()):
        raise _untold(times, part, f"{found.sum()} of its {len(stamps)} rows have a frame at their time")
    return np.where(found, first + after, -1), spare


def _untold(times: np.ndarray, part: VideoPart, why: str) -> DamagedEpisode:
    return DamagedEpisode(
        f"{part.name}: {len(times)} frames for {part.rows} rows, so those of this episode of {part.length} rows cannot "
        f"be told: {why}",
        reason="unmatched_frames",
    )
