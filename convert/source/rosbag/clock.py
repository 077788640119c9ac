"""The clock of an episode: its steps at a fixed rate, and the message that stands for each step."""

from __future__ import annotations

import numpy as np

from convert.errors import MalformedEpisode

MOST_STEPS = 10_000_000
"""Most steps of an episode; more come of stamps that are wrong."""


def check_stamps(stamps: np.ndarray, topic: str, *, gap: int) -> None:
    """Refuse the stamps of a topic that no clock gave.

    Args:
        stamps: int64 in nanoseconds, in the order of receipt.
        gap: Most by which a stamp may lie before an earlier one.

    Raises:
        MalformedEpisode: A stamp is 0, or the clock was set back.
    """
    if zeros := int((stamps == 0).sum()):
        raise MalformedEpisode(f"{topic}: {zeros} of {len(stamps)} stamps are 0; take layout: stamps: receive")
    back = np.maximum.accumulate(stamps) - stamps
    if len(back) and back.max() > gap:
        at = int(back.argmax())
        raise MalformedEpisode(f"{topic}: the clock jumps back by {back[at] / 1e9:.3f} s at message {at}")


def make_ticks(clock: np.ndarray, first: int, *, rate: float) -> np.ndarray:
    """Return the times of the steps.

    The first is the first stamp of the clock at or after ``first``; the others follow at the rate, until half a period
    after the clock's last stamp.

    Args:
        clock: Stamps of the clock's topic, int64 in nanoseconds, ascending.
        first: Time from which every feature has a value.

    >>> make_ticks(np.array([0, 100, 200, 290]) * 1_000_000, 50_000_000, rate=10).tolist()
    [100000000, 200000000, 300000000]

    Raises:
        MalformedEpisode: There is no such step, or there are more than ``MOST_STEPS``.
    """
    at = int(np.searchsorted(clock, first))
    if at == len(clock):
        raise MalformedEpisode("the clock's topic ends before every feature has a value")
    count = int((int(clock[-1]) - int(clock[at])) * rate / 1e9 + 0.5) + 1
    if count > MOST_STEPS:
        raise MalformedEpisode(f"the clock's topic spans {count:,} steps, so its stamps are wrong")
    return int(clock[at]) + np.round(np.arange(count) * (1e9 / rate)).astype(np.int64)


def choose(stamps: np.ndarray, ticks: np.ndarray, *, nearest: bool) -> np.ndarray:
    """Return for each step the number of the last stamp at or before it, or of the nearest one, the earlier of two.

    Args:
        stamps: int64, ascending; the first lies at or before the first step.

    >>> choose(np.array([0, 10, 10, 20]), np.array([0, 10, 16]), nearest=False).tolist()
    [0, 2, 2]
    >>> choose(np.array([0, 10, 10, 20]), np.array([0, 10, 16]), nearest=True).tolist()
    [0, 2, 3]
    """
    last = np.maximum(np.searchsorted(stamps, ticks, side="right") - 1, 0)
    if not nearest:
        return last
    following = np.minimum(last + 1, len(stamps) - 1)
    return np.where(np.abs(stamps[following] - ticks) < np.abs(ticks - stamps[last]), following, last)
