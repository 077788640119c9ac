"""Windows: the frames of a sample, as distances from its step t, for all datasets of a mixture."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError
from stream.base.random_numbers import make_key, uniform

if TYPE_CHECKING:
    # At run time it would bring pydantic into every worker.
    from stream.format.fields import Fields


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
        low: Smallest distance from t of each frame, in steps, int64 [F].
        high: Largest distance, int64 [F]; equal to ``low`` unless the frame is random.
        kinds: 0 for a distance, 1 for a goal, 2 for ``last``, int8 [F].
        discounts: Discount of each geometric goal, 0 for other frames, float64 [F].
    """

    low: np.ndarray
    high: np.ndarray
    kinds: np.ndarray
    discounts: np.ndarray

    @classmethod
    def at(cls, distances: Sequence[int]) -> Window:
        """Return the window of frames at fixed distances from t."""
        steps = np.array(distances, np.int64)
        return cls(steps, steps, np.zeros(len(steps), np.int8), np.zeros(len(steps)))

    def __len__(self) -> int:
        return len(self.low)

    @property
    def margins(self) -> tuple[int, int]:
        """Count of steps before and after t that an episode needs for all frames to be inside it."""
        is_distance = self.kinds == _STEPS
        before = max(0, -int(self.low[is_distance].min(initial=0)))
        after = max(int(self.high[is_distance].max(initial=0)), int((self.kinds == _GOAL).any()))
        return before, after

    @property
    def takes_last(self) -> bool:
        """True if a frame is the last step of the episode."""
        return bool((self.kinds == _LAST).any())

    @property
    def first(self) -> Window:
        """The window of only the first frame."""
        return Window(self.low[:1], self.high[:1], self.kinds[:1], self.discounts[:1])

    @property
    def history(self) -> np.ndarray:
        """Mask of the frames that are before t, whatever is drawn, bool [F]."""
        return np.asarray((self.kinds == _STEPS) & (self.high < 0))

    @property
    def fixed(self) -> list[int]:
        """Distances from t of the frames that are not random, in steps."""
        return self.low[(self.kinds == _STEPS) & (self.low == self.high)].tolist()


@dataclass(frozen=True)
class StepSpan:
    """Steps of a vector of each member's samples.

    Attributes:
        firsts: First step, from t.
        lengths: Count of the steps.
        strides: Steps of the episode from one step to the next.
    """

    firsts: tuple[int, ...]
    lengths: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def longest(self) -> int:
        """Steps in a batch, to which shorter vectors are padded."""
        return max(self.lengths)

    @classmethod
    def of_one(cls, num_members: int) -> StepSpan:
        """Return the span of only the step t."""
        return cls((0,) * num_members, (1,) * num_members, (1,) * num_members)

    def distances(self, member: int) -> np.ndarray:
        """Return the distances from t of the steps of a member, int64 [W].

        >>> StepSpan((-3,), (4,), (3,)).distances(0).tolist()
        [-3, 0, 3, 6]
        """
        return self.firsts[member] + self.strides[member] * np.arange(self.lengths[member])


def nearest_steps(is_step: np.ndarray) -> np.ndarray:
    """Return for each step of some windows the number of the nearest one between the first and the last that exist.

    Args:
        is_step: Mask of the steps that exist, bool [n, W].

    >>> nearest_steps(np.array([[False, True, True, False]])).tolist()
    [[1, 1, 2, 2]]
    """
    num_steps = is_step.shape[1]
    first_step, last_step = is_step.argmax(axis=1), num_steps - 1 - is_step[:, ::-1].argmax(axis=1)
    return np.clip(np.arange(num_steps), first_step[:, None], last_step[:, None])


def canonical_steps(argument: str, value: Any, *, least: int, most: int) -> int | str:
    """Return a count of steps, or seconds as a text in its JSON form.

    Raises:
        ArgumentError: The value is neither, too small, or too large.

    >>> canonical_steps("steps", "1.5 s", least=1, most=10), canonical_steps("steps", 4, least=1, most=10)
    ('1.5s', 4)
    """
    if not isinstance(value, str):
        num_steps = check_whole_number(argument, value, least=least)
        if num_steps > most:
            raise ArgumentError(f"{argument}={num_steps}; at most {most:,}")
        return num_steps
    match = _SECONDS.fullmatch(value.strip())
    if match is None or (least > 0 and not float(match[1]) > 0):
        qualifier = " above 0" if least > 0 else ""
        raise ArgumentError(f"{argument}={value!r:.60}; expected steps, or seconds{qualifier} such as '0.6s'")
    return f"{match[1]}s"


def resolve_steps(
    argument: str,
    values: Sequence[int | str],
    fields: Sequence[Fields],
    names: Sequence[str],
    *,
    least: int,
    most: int,
) -> tuple[int, ...]:
    """Return a count of steps, or of seconds at the rate of each member, in steps.

    Args:
        argument: Argument of the count, for messages.
        values: Steps or seconds of each member.
        fields: Manifest's fields of each member.
        names: Names of the members.
        least: Least count.
        most: Largest count.

    Raises:
        ArgumentError: Datasets have no fixed rate, or seconds are too few or too many steps. The message names all of
            these datasets.
    """
    timed = [number for number, value in enumerate(values) if isinstance(value, str)]
    context = f"{argument}={values[timed[0]]!r}" if timed else argument
    check_rates(context, [fields[number] for number in timed], [names[number] for number in timed])
    member_steps = []
    out_of_range = []
    for value, member_fields, dataset_name in zip(values, fields, names, strict=True):
        rate = member_fields.control_frequency
        num_steps = value if isinstance(value, int) else _closest_step(float(value[:-1]), rate)
        member_steps.append(num_steps)
        if not least <= num_steps <= most:
            out_of_range.append(f"{num_steps:,} at the {rate} Hz of {dataset_name}")
    if out_of_range:
        raise ArgumentError(
            f"{context}: expected {least:,} to {most:,} steps, and it is {', '.join(out_of_range)}; give another time "
            "or steps, or load these datasets separately"
        )
    return tuple(member_steps)


def check_rates(context: str, fields: Sequence[Fields], names: Sequence[str]) -> None:
    """Raise ArgumentError if datasets have no fixed rate, which seconds need; the message names all of them."""
    rates = zip(names, fields, strict=True)
    if without_rate := [name for name, member_fields in rates if member_fields.control_frequency is None]:
        raise ArgumentError(
            f"{context}: seconds need a fixed rate, which these datasets do not have: {', '.join(without_rate)}; give "
            "steps, or load these datasets separately"
        )


def canonical_frames(frames: Any) -> list[int | str] | None:
    """Return the ``frames`` argument in its JSON form.

    Raises:
        ArgumentError: The argument is not a list of frames, or a frame has another form.

    >>> canonical_frames((-1, 0, "0.6 s", "1 .. 10", "goal")), canonical_frames(range(2))
    ([-1, 0, '0.6s', '1..10', 'goal'], [0, 1])
    """
    if frames is None:
        return None
    if not isinstance(frames, list | tuple | range | np.ndarray) or not 1 <= len(frames) <= _MOST_FRAMES:
        raise ArgumentError(f"frames={frames!r:.100}; expected a list of 1 to {_MOST_FRAMES}, each {_FORMS}")
    return [_canonical_frame(frame) for frame in frames]


def _canonical_frame(frame: Any) -> int | str:
    context = f"frames: {frame!r:.60}"
    if not isinstance(frame, str):
        try:
            steps = check_whole_number("frames", frame, least=None)
        except ArgumentError:
            raise ArgumentError(f"{context}; expected {_FORMS}") from None
        if abs(steps) > _FARTHEST:
            raise ArgumentError(f"{context}; expected at most {_FARTHEST:,} steps from t")
        return steps
    if match := _RANGE.fullmatch(frame.strip()):
        low, high = int(match[1]), int(match[2])
        if low > high or max(-low, high) > _FARTHEST:
            raise ArgumentError(f"{context}; expected a range A..B with A <= B, at most {_FARTHEST:,} steps from t")
        return f"{low}..{high}"
    if match := _SECONDS.fullmatch(frame.strip()):
        return f"{match[1]}s"
    if match := _GEOMETRIC.fullmatch(frame):
        if not 0 < float(match[1]) <= _MOST_DISCOUNT:
            raise ArgumentError(f"{context}; expected a discount above 0, at most {_MOST_DISCOUNT}")
        return f"goal:geometric:{float(match[1]):.9f}".rstrip("0")
    if frame not in _NAMED:
        raise ArgumentError(f"{context}; expected {_FORMS}")
    return frame


def resolve_windows(
    steps: Sequence[Sequence[int | str] | None], fields: Sequence[Fields], names: Sequence[str]
) -> list[Window]:
    """Return the window of each member.

    Args:
        steps: Frames of each member in their JSON form; None takes the frames of a pair.
        fields: Manifest's fields of each member.
        names: Names of the members.

    Raises:
        ArgumentError: Frames are in seconds and datasets have no fixed rate, or the layout ``pairs`` does not hold
            them. The message names all of these datasets.
    """
    times = [_times(frames) for frames in steps]
    timed = [number for number, member_times in enumerate(times) if member_times]
    context = f"frames={list(steps[timed[0]] or ())!r:.100}" if timed else "frames"
    check_rates(context, [fields[number] for number in timed], [names[number] for number in timed])
    slow = []
    for dataset_name, member_fields, member_times in zip(names, fields, times, strict=True):
        rate = member_fields.control_frequency
        # Two times at one step, t included, would give the same picture twice.
        distinct_times = {*member_times, 0.0}
        if member_times and len({_closest_step(time, rate) for time in distinct_times}) < len(distinct_times):
            slow.append(f"{dataset_name} ({rate} Hz)")
    if slow:
        raise ArgumentError(
            f"{context}: times that are the same step at the rate of {', '.join(slow)}; give longer times or steps, or "
            "load these datasets separately"
        )
    windows = [_resolve(frames, member_fields) for frames, member_fields in zip(steps, fields, strict=True)]
    for dataset_name, member_fields, window in zip(names, fields, windows, strict=True):
        if member_fields.layout == "pairs":
            _check_pair(dataset_name, member_fields, window)
    return windows


def _times(frames: Sequence[int | str] | None) -> set[float]:
    """Return the seconds of the frames that are times."""
    return {float(match[1]) for frame in frames or () if (match := _SECONDS.fullmatch(str(frame)))}


def _resolve(frames: Sequence[int | str] | None, fields: Fields) -> Window:
    """Return the window of a member; distances are in its steps."""
    if frames is None:
        frames = fields.frame_offsets if fields.layout == "pairs" else (0, fields.offset)
    specs = []
    for frame in frames:
        frame_kind, low, high, discount = _STEPS, 0, 0, 0.0
        if isinstance(frame, int):
            low = high = frame
        elif frame == "offset":
            low = high = fields.offset
        elif match := _SECONDS.fullmatch(frame):
            low = high = _closest_step(float(match[1]), fields.control_frequency)
        elif match := _RANGE.fullmatch(frame):
            low, high = int(match[1]), int(match[2])
        else:
            frame_kind = _LAST if frame == "last" else _GOAL
            discount = float(match[1]) if (match := _GEOMETRIC.fullmatch(frame)) else 0.0
        specs.append((low, high, frame_kind, discount))
    dtypes = (np.int64, np.int64, np.int8, np.float64)
    return Window(*map(np.array, zip(*specs, strict=True), dtypes))


def _closest_step(seconds: float, rate: float | None) -> int:
    """Return the closest step of a time."""
    return math.floor(seconds * (rate or 0) + 0.5)


def _check_pair(dataset_name: str, fields: Fields, window: Window) -> None:
    stored_frames = set(fields.frame_offsets)
    ranges = zip(window.low.tolist(), window.high.tolist(), strict=True)
    if window.kinds.any() or not all(stored_frames.issuperset(range(low, high + 1)) for low, high in ranges):
        listed_frames = ", ".join(map(str, sorted(stored_frames)[:12])) + (", ..." if len(stored_frames) > 12 else "")
        raise ArgumentError(
            f"dataset {dataset_name}: its pairs hold the frames t + {{{listed_frames}}} and no others; convert it with "
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
        history: Mask of the frames that are before t, bool [M, F].
    """

    def __init__(self, windows: Sequence[Window], *, seed: int) -> None:
        self.frames = max(map(len, windows))
        shape = (len(windows), self.frames)
        self._low, self._high = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self._kinds, self.used = np.zeros(shape, np.int8), np.zeros(shape, bool)
        self.history = np.zeros(shape, bool)
        self._tails: dict[int, np.ndarray] = {}
        for member, window in enumerate(windows):
            used = slice(len(window))
            self._low[member, used], self._high[member, used] = window.low, window.high
            self._kinds[member, used], self.used[member, used] = window.kinds, True
            self.history[member, used] = window.history
            for frame in np.flatnonzero(window.discounts).tolist():
                self._tails[frame] = _tails(float(window.discounts[frame]))
        self._count = self._high - self._low + 1
        is_random = (self._count > 1) | (self._kinds == _GOAL)
        self._random = np.flatnonzero(is_random.any(axis=0))
        self._keys = np.array([make_key(seed, "frames", int(frame)) for frame in self._random], np.uint64)
        self._has_named = bool(self._kinds.any())

    def steps(
        self, members: np.ndarray, sample_steps: np.ndarray, num_steps: np.ndarray, samples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps of the frames of samples.

        A random frame depends only on the seed, the number of the sample and the number of the frame.

        Args:
            members: Member of each sample, int [n].
            sample_steps: t of each sample, int [n].
            num_steps: Steps of its episode, at least 1, int [n].
            samples: Global number of the sample, int64 [n].

        Returns:
            Steps, int64 [n, F], moved to the closest step of the episode; bool [n, F], False for moved steps and for
            frames that a member does not have.
        """
        last_steps = (num_steps - 1)[:, None]
        distances = self._low[members]
        frame_kinds = self._kinds[members]
        random_numbers = np.zeros(distances.shape if len(self._random) else 0)
        if len(self._random):
            for frame, key in zip(self._random.tolist(), self._keys, strict=True):
                random_numbers[:, frame] = uniform(int(key), samples)
            distances = distances + (random_numbers * self._count[members]).astype(np.int64)
        target_steps = sample_steps[:, None] + distances
        if self._has_named:
            target_steps = np.where(frame_kinds == _LAST, last_steps, target_steps)
            if len(self._random):
                goals = sample_steps[:, None] + self._goal_distances(random_numbers, last_steps - sample_steps[:, None])
                target_steps = np.where(frame_kinds == _GOAL, goals, target_steps)
        frame_steps = np.clip(target_steps, 0, last_steps)
        return frame_steps, (frame_steps == target_steps) & self.used[members]

    def _goal_distances(self, random_numbers: np.ndarray, num_later: np.ndarray) -> np.ndarray:
        """Return the distance of a random later step for each random number, int64 [n, F], at least 1.

        Args:
            random_numbers: Random numbers, float64 [n, F].
            num_later: Count of the episode's steps after t, int64 [n, 1]; for 0 the distance is beyond its end.
        """
        distances = 1 + (random_numbers * num_later).astype(np.int64)
        for frame, tails in self._tails.items():
            # The distance is the smallest k whose tail discount^k is below 1 - u, so at most the last step.
            geometric = 1 + len(tails) - np.searchsorted(tails, 1 - random_numbers[:, frame])
            distances[:, frame] = np.clip(geometric, 1, np.maximum(num_later[:, 0], 1))
        return distances


def _tails(discount: float) -> np.ndarray:
    """Return the probability discount^k that a geometric distance is above k, from the largest k to 1, ascending.

    Only products are used, because they are the same on every processor.
    """
    num_tails = math.ceil(-53 * math.log(2) / math.log(discount)) + 1
    return np.cumprod(np.full(num_tails, discount))[::-1].copy()
