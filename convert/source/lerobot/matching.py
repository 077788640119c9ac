"""Frames of a video file that belong to the rows of an episode: each row has its own, or none.

Frames are counted, and times only tell whether the count is plausible. Where LeRobot itself finds a frame for each
row (within 0.0001 s) and the count is right, both give the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np

from convert.errors import DamagedEpisode

_SLACK = 0.1
"""Most misfit between a row and its frame, in frames."""


@dataclass(frozen=True, slots=True)
class VideoPart:
    """The part of a video file that has the frames of one episode.

    Attributes:
        name: Name of the file.
        episode: Number of the episode.
        start, stop: ``from_timestamp`` and ``to_timestamp``, in seconds.
        length: Count of its rows.
        first: Count of the rows of the episodes before it in the file.
        rows: Count of the rows of all episodes of the file.
        end: ``to_timestamp`` of the last of them.
        gaps: Time between it and the episodes before and after it, or the start of the file, negative if they overlap.
    """

    name: str
    episode: int
    start: float
    stop: float
    length: int
    first: int = 0
    rows: int = 0
    end: float = 0.0
    gaps: tuple[float, ...] = ()


def share_files(parts: Iterable[VideoPart]) -> dict[VideoPart, VideoPart]:
    """Return each part with what it has to know of the others in its file, where they are ordered by ``start``."""
    found = {}
    ordered = sorted(parts, key=lambda part: (part.name, part.start, part.stop))
    for group in (list(each) for _, each in groupby(ordered, key=lambda part: part.name)):
        edges = (group[0].start, *(after.start - before.stop for before, after in pairwise(group)), 0.0)
        firsts = np.cumsum([0, *(part.length for part in group)]).tolist()
        whole = {"rows": firsts[-1], "end": max(part.stop for part in group)}
        for place, part in enumerate(group):
            found[part] = replace(part, first=firsts[place], gaps=edges[place : place + 2], **whole)
    return found


def match_rows(
    times: np.ndarray, part: VideoPart, stamps: np.ndarray, *, fps: float, listed: int = 0
) -> tuple[np.ndarray, int]:
    """Return the number of the frame of each row of an episode, -1 where the file lacks it, and the count of others.

    Where the file has as many frames as its episodes have rows, the k-th frame is the k-th row's. Elsewhere a row has
    the frame at its time, and either every row has one, or every frame of this time has a row: anything else may be a
    shift. So may be what ends elsewhere than its episodes.

    Args:
        times: Times of all frames of the file, ascending, in seconds.
        part: The episode's part of the file.
        stamps: Times of the rows in the episode, in seconds.
        listed: Count of the frames that the file would have if it was not cut short.

    Raises:
        DamagedEpisode: The frames of the episode cannot be told from those of others; the message says why.

    >>> part = VideoPart(name="front.mp4", episode=0, start=0, stop=0.3, length=3, rows=3)
    >>> match_rows(np.array([0, 0.1, 0.2]), part, np.zeros(3), fps=10)[0].tolist()
    [0, 1, 2]
    >>> match_rows(np.array([0, 0.1]), part, np.arange(3) / 10, fps=10)[0].tolist()
    [0, 1, -1]
    """
    slack, first, stop = _SLACK / fps, 0, len(times)
    fault, joined = "", True
    if not part.length:
        return np.zeros(0, np.int64), 0
    if len(times) == part.rows:
        if min(abs(part.start - part.first / fps), abs(part.start - times[part.first])) <= slack:
            return np.arange(part.first, part.first + part.length), 0
        fault = f"it begins at {part.start:.3f} s, and after {part.first} frames of others"
    elif part.length < part.rows or part.start > slack:
        ends = times[-1] + 1 / fps if len(times) else 0.0
        if min(part.gaps) < -slack or (abs(ends - part.end) > slack and listed != part.rows):
            fault = f"the file ends at {ends:.3f} s, its episodes at {part.end:.3f} s, or some overlap"
        joined = max(map(abs, part.gaps)) <= slack
        first, stop = np.searchsorted(times, [part.start - slack, part.stop - slack]).tolist()
    if abs(stamps[0]) > slack or (np.diff(stamps) <= 2 * slack).any():
        fault = fault or f"timestamp goes from {stamps[0]:.3f} to {stamps[-1]:.3f} s, not from 0 upwards"
    wanted = part.start + stamps
    after = first + np.searchsorted(times[first:stop], wanted - slack)
    found = np.append(times[:stop], np.inf)[after] <= wanted + slack
    spare = stop - first - int(found.sum())
    if fault or not found.any() or (spare and not (joined and found.all())) or not (joined or found.all()):
        fault = fault or f"{found.sum()} of its {len(stamps)} rows have one of the {stop - first} frames at their time"
        raise DamagedEpisode(
            f"{part.name}: {len(times)} frames for {part.rows} rows, so those of the {part.length} rows of episode "
            f"{part.episode} cannot be told: {fault}",
            reason="unmatched_frames",
        )
    return np.where(found, after, -1), spare
