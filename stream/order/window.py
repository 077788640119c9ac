"""Windows: the frames of a sample, as distances from its step t, for all datasets of a mixture."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stream.base.arguments import check_whole
from stream.base.errors import ArgumentError
from stream.order.random_numbers import uniform
from stream.order.shuffle import make_key

if TYPE_CHECKING:
    # At run time it would bring pydantic into every worker.
    from stream.format.fields import Fields

Bounds = Literal["inside", "clamp"]
BOUNDS: tuple[Bounds, ...] = ("inside", "clamp")

_SECONDS = re.compile(r"(-?[0-9]{1,9}(?:\.[0-9]{1,9})?)\s*s")
_RANGE = re.compile(r"(-?[0-9]{1,9})\s*\.\.\s*(-?[0-9]{1,9})")
_GEOMETRIC = re.compile(r"goal:geometric:([0-9]*\.?[0-9]{1,9})")
_NAMED = ("offset", "goal", "last")
_FORMS = "a number of steps, seconds ('0.6s'), a range ('1..10'), 'offset', 'goal', 'goal:geometric:0.99' or 'last'"
_MOST_FRAMES = 1024
_MOST_DISCOUNT = 0.9999
_FARTHEST = 1_000_000
_STEPS, _GOAL, _LAST = 0, 1, 2
"""Kinds of frames: a distance from t, a random later step of the episode, its last step."""


@dataclass(frozen=True)
class Window:
    """Frames of one member's samples.

    Attributes:
        low, high: Smallest and largest distance from t of each frame, in steps, int64 [F]; equal unless it is random.
        kinds: 0 for a distance, 1 for a goal, 2 for ``last``, int8 [F].
        discounts: Discount of each geometric goal, 0 for other frames, float64 [F].
    """

    low: np.ndarray
    high: np.ndarray
    kinds: np.ndarray
    discounts: np.ndarray

    def __len__(self) -> int:
        return len(self.low)

    @property
    def margins(self) -> tuple[int, int]:
        """Count of the steps before and after t that all frames take, so that they lie inside of the episode."""
        steps = self.kinds == _STEPS
        before = max(0, -int(self.low[steps].min(initial=0)))
        after = max(int(self.high[steps].max(initial=0)), int((self.kinds == _GOAL).any()))
        return before, after

    @property
    def takes_last(self) -> bool:
        """True if a frame is the last step of the episode."""
        return bool((self.kinds == _LAST).any())

    @property
    def first(self) -> Window:
        """The window of the first frame alone."""
        return Window(self.low[:1], self.high[:1], self.kinds[:1], self.discounts[:1])

    @property
    def fixed(self) -> list[int]:
        """Distances from t of the frames that are not random, in steps."""
        return self.low[(self.kinds == _STEPS) & (self.low == self.high)].tolist()


@dataclass(frozen=True)
class StepSpan:
    """Steps of a vector of each member's samples: ``firsts``, from t, and ``lengths``, counts."""

    firsts: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def longest(self) -> int:
        """Steps in a batch, to which shorter ones are padded."""
        return max(self.lengths)


def canonical_steps(name: str, value: Any, *, least: int, most: int) -> int | str:
    """Return a count of steps, or seconds as a text in its JSON form.

    Raises:
        ArgumentError: It is neither, too small, or too large.

    >>> canonical_steps("horizon", "1.5 s", least=1, most=10), canonical_steps("horizon", 4, least=1, most=10)
    ('1.5s', 4)
    """
    if not isinstance(value, str):
        number = check_whole(name, value, least=least)
        if number > most:
            raise ArgumentError(f"{name}={number}; at most {most:,}")
        return number
    match = _SECONDS.fullmatch(value.strip())
    if match is None or (least > 0 and not float(match[1]) > 0):
        above = " above 0" if least > 0 else ""
        raise ArgumentError(f"{name}={value!r:.60}; expected a number of steps, or seconds{above} such as '0.6s'")
    return f"{match[1]}s"


def resolve_steps(
    name: str, value: int | str, fields: Sequence[Fields], names: Sequence[str], *, least: int, most: int
) -> tuple[int, ...]:
    """Return a count of steps, or seconds by the rate of each member, in steps.

    Raises:
        ArgumentError: Datasets have no fixed rate, or seconds are too few or too many steps; names all of them.
    """
    if isinstance(value, int):
        return (value,) * len(names)
    check_rates(f"{name}={value!r}", fields, names)
    found = tuple(_at(float(value[:-1]), each.control_frequency) for each in fields)
    wrong = [
        f"{steps:,} at the {each.control_frequency} Hz of {own}"
        for own, each, steps in zip(names, fields, found, strict=True)
        if not least <= steps <= most
    ]
    if wrong:
        raise ArgumentError(
            f"{name}={value!r}: expected {least:,} to {most:,} steps, and it is {', '.join(wrong)}; give another time "
            "or steps, or load these datasets apart"
        )
    return found


def check_rates(where: str, fields: Sequence[Fields], names: Sequence[str]) -> None:
    """Raise ArgumentError if datasets have no fixed rate, which seconds need; names all of them."""
    if without := [name for name, each in zip(names, fields, strict=True) if each.control_frequency is None]:
        raise ArgumentError(
            f"{where}: seconds need a fixed rate, which these datasets do not have: {', '.join(without)}; give steps, "
            "or load these datasets apart"
        )


def canonical_frames(frames: Any) -> list[int | str] | None:
    """Return the ``frames`` argument in its JSON form.

    Raises:
        ArgumentError: It is not a list of frames, or one of them has another form.

    >>> canonical_frames((-1, 0, "0.6 s", "1 .. 10", "goal")), canonical_frames(range(2))
    ([-1, 0, '0.6s', '1..10', 'goal'], [0, 1])
    """
    if frames is None:
        return None
    if not isinstance(frames, list | tuple | range | np.ndarray) or not 1 <= len(frames) <= _MOST_FRAMES:
        raise ArgumentError(f"frames={frames!r:.100}; expected a list of 1 to {_MOST_FRAMES}, each {_FORMS}")
    return [_canonical_frame(frame) for frame in frames]


def _canonical_frame(frame: Any) -> int | str:
    where = f"frames: {frame!r:.60}"
    if not isinstance(frame, str):
        try:
            steps = check_whole("frames", frame, least=None)
        except ArgumentError:
            raise ArgumentError(f"{where}; expected {_FORMS}") from None
        if abs(steps) > _FARTHEST:
            raise ArgumentError(f"{where}; expected at most {_FARTHEST:,} steps from t")
        return steps
    if match := _RANGE.fullmatch(frame.strip()):
        low, high = int(match[1]), int(match[2])
        if low > high or max(-low, high) > _FARTHEST:
            raise ArgumentError(f"{where}; expected a range A..B with A <= B, at most {_FARTHEST:,} steps from t")
        return f"{low}..{high}"
    if match := _SECONDS.fullmatch(frame.strip()):
        return f"{match[1]}s"
    if match := _GEOMETRIC.fullmatch(frame):
        if not 0 < float(match[1]) <= _MOST_DISCOUNT:
            raise ArgumentError(f"{where}; expected a discount above 0, at most {_MOST_DISCOUNT}")
        return f"goal:geometric:{float(match[1]):.9f}".rstrip("0")
    if frame not in _NAMED:
        raise ArgumentError(f"{where}; expected {_FORMS}")
    return frame


def resolve_windows(frames: Sequence[int | str] | None, fields: Sequence[Fields], names: Sequence[str]) -> list[Window]:
    """Return the window of each member.

    Args:
        frames: Frames in their JSON form; None takes the frames of a pair.
        fields: Manifest's fields of each member.
        names: Names of the members.

    Raises:
        ArgumentError: Frames are in seconds and datasets have no fixed rate, or the layout ``pairs`` does not hold
            them; names all of these datasets.
    """
    times = {float(match[1]) for frame in frames or () if (match := _SECONDS.fullmatch(str(frame)))}
    rates = {name: each.control_frequency for name, each in zip(names, fields, strict=True)}
    where = f"frames={list(frames or ())!r:.100}"
    if times:
        check_rates(where, fields, names)
    # Two times at one step, t included, would give the same picture twice.
    times.add(0.0)
    slow = [
        f"{name} ({rate} Hz)" for name, rate in rates.items() if len({_at(each, rate) for each in times}) < len(times)
    ]
    if slow:
        raise ArgumentError(
            f"{where}: times that are the same step at the rate of {', '.join(slow)}; give longer times or steps, or "
            "load these datasets apart"
        )
    windows = [_resolve(frames, each) for each in fields]
    for name, each, window in zip(names, fields, windows, strict=True):
        if each.layout == "pairs":
            _check_pair(name, each, window)
    return windows


def _resolve(frames: Sequence[int | str] | None, fields: Fields) -> Window:
    if frames is None:
        frames = fields.frame_offsets if fields.layout == "pairs" else (0, fields.offset)
    found = []
    for frame in frames:
        kind, low, high, discount = _STEPS, 0, 0, 0.0
        if isinstance(frame, int):
            low = high = frame
        elif frame == "offset":
            low = high = fields.offset
        elif match := _SECONDS.fullmatch(frame):
            low = high = _at(float(match[1]), fields.control_frequency)
        elif match := _RANGE.fullmatch(frame):
            low, high = int(match[1]), int(match[2])
        else:
            kind = _LAST if frame == "last" else _GOAL
            discount = float(match[1]) if (match := _GEOMETRIC.fullmatch(frame)) else 0.0
        found.append((low, high, kind, discount))
    types = (np.int64, np.int64, np.int8, np.float64)
    return Window(*(np.array(column, dtype) for column, dtype in zip(zip(*found, strict=True), types, strict=True)))


def _at(seconds: float, rate: float | None) -> int:
    """Return the closest step of a time."""
    return math.floor(seconds * (rate or 0) + 0.5)


def _check_pair(name: str, fields: Fields, window: Window) -> None:
    held = set(fields.frame_offsets)
    ranges = zip(window.low.tolist(), window.high.tolist(), strict=True)
    if window.kinds.any() or not all(held.issuperset(range(low, high + 1)) for low, high in ranges):
        listed = ", ".join(map(str, sorted(held)[:12])) + (", ..." if len(held) > 12 else "")
        raise ArgumentError(
            f"dataset {name}: its pairs hold the frames t + {{{listed}}} and no others; convert it with "
            "`--layout frames` to load any frames"
        )


class WindowTable:
    """Windows of all members, padded to the same count of frames.

    Args:
        windows: Window of each member.
        seed: Seed of random frames.

    Attributes:
        frames: Largest count of frames, F.
        used: Mask of the frames that a member has, bool [M, F].
    """

    def __init__(self, windows: Sequence[Window], *, seed: int) -> None:
        self.frames = max(map(len, windows))
        shape = (len(windows), self.frames)
        self._low, self._high = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self._kinds, self.used = np.zeros(shape, np.int8), np.zeros(shape, bool)
        for member, window in enumerate(windows):
            for table, values in ((self._low, window.low), (self._high, window.high), (self._kinds, window.kinds)):
                table[member, : len(window)] = values
            self.used[member, : len(window)] = True
        self._count = self._high - self._low + 1
        random = (self._count > 1) | (self._kinds == _GOAL)
        self._random = np.flatnonzero(random.any(axis=0))
        self._keys = np.array([make_key(seed, "frames", int(frame)) for frame in self._random], np.uint64)
        self._has_named = bool(self._kinds.any())
        discounts = {frame: value for each in windows for frame, value in enumerate(each.discounts.tolist()) if value}
        self._tails = {frame: _tails(discount) for frame, discount in discounts.items()}

    def steps(
        self, member: np.ndarray, step: np.ndarray, num_steps: np.ndarray, sample: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps of the frames of samples.

        A random frame depends on the seed, the number of the sample and of the frame alone.

        Args:
            member: Member of each sample, int [n].
            step: t of each sample, int [n].
            num_steps: Steps of its episode, at least 1, int [n].
            sample: Global number of the sample, int64 [n].

        Returns:
            Steps, int64 [n, F], moved to the closest step of the episode; bool [n, F], False where one was moved, and
            for frames that a member does not have.
        """
        last = (num_steps - 1)[:, None]
        distance = self._low[member]
        kinds = self._kinds[member]
        if len(self._random):
            drawn = np.zeros(distance.shape)
            for frame, key in zip(self._random.tolist(), self._keys, strict=True):
                drawn[:, frame] = uniform(int(key), sample)
            distance = distance + (drawn * self._count[member]).astype(np.int64)
        wanted = step[:, None] + distance
        if self._has_named:
            wanted = np.where(kinds == _LAST, last, wanted)
            if len(self._random):
                goal = step[:, None] + 1 + (drawn * (last - step[:, None])).astype(np.int64)
                for frame, tails in self._tails.items():
                    ahead = 1 + len(tails) - np.searchsorted(tails, 1 - drawn[:, frame])
                    # Beyond the end of the episode only where t is its last step.
                    goal[:, frame] = step + np.clip(ahead, 1, np.maximum(num_steps - 1 - step, 1))
                wanted = np.where(kinds == _GOAL, goal, wanted)
        taken = np.clip(wanted, 0, last)
        return taken, (taken == wanted) & self.used[member]


def _tails(discount: float) -> np.ndarray:
    """Return the probability that a geometric distance is above k, discount^k, for falling k from 1 on, ascending.

    Made by products alone, which are the same on every processor.
    """
    count = math.ceil(-53 * math.log(2) / math.log(discount)) + 1
    return np.cumprod(np.full(count, discount))[::-1].copy()
