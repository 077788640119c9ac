"""Steps of actions and states around the step t, for each dataset of a mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stream.base.errors import ArgumentError
from stream.format.fields import Fields
from stream.format.names import VectorName
from stream.sample.dropout import Delay
from stream.sample.vector import MOST_STEPS, STEP_LIMITS, Vector
from stream.sample.window import StepSpan, Window, resolve_steps


@dataclass(frozen=True, kw_only=True)
class VectorSpans:
    """Steps of the vectors of a batch, with times turned into steps at the rate of each dataset.

    Attributes:
        names: Names of the datasets.
        fields: Fields of each dataset.
        vectors: Vector of each dataset, by name; without those that batches do not have.
    """

    names: Sequence[str]
    fields: Sequence[Fields]
    vectors: Mapping[VectorName, Sequence[Vector]]

    def of_action(self) -> StepSpan:
        """Return the steps of the action, by default as many as a pair is apart."""
        return self._of_vector("action", [fields.offset for fields in self.fields])

    def of_state(self) -> StepSpan:
        """Return the steps of the state, by default the step t."""
        return self._of_vector("state", [1] * len(self.names))

    def between_frames(self, windows: Sequence[Window], *, argument: object) -> StepSpan:
        """Return the steps from the first to the last frame.

        Args:
            windows: Frames of each dataset.
            argument: Frames as they were given, for the message.

        Raises:
            ArgumentError: A frame is drawn or chosen, or the frames do not ascend.
        """
        for name, window in zip(self.names, windows, strict=True):
            is_fixed = not window.kinds.any() and np.array_equal(window.low, window.high)
            if len(window) != len(windows[0]) or len(window) < 2 or not is_fixed or np.diff(window.low).min() < 1:
                raise ArgumentError(
                    f"action=Vector(between='frames'): frames of {name} are {argument!r:.100}; "
                    "expected two or more at fixed, ascending steps, such as Frames.clip(16, rate=5); a range such as "
                    "'0..15' draws one frame"
                )
        firsts = tuple(int(window.low[0]) for window in windows)
        lengths = tuple(int(window.low[-1] - window.low[0]) for window in windows)
        return StepSpan(firsts, lengths, (1,) * len(lengths))

    def strides(self, vector_name: VectorName) -> tuple[int, ...]:
        """Return the steps from one step of a vector to the next; 1 if batches do not have the vector."""
        vectors = self.vectors.get(vector_name)
        if vectors is None:
            return (1,) * len(self.names)
        return self._resolve(vector_name, "stride", [vector.stride for vector in vectors])

    def delay(self, action: Vector | None, *, seed: int) -> Delay | None:
        """Return the delay of the actions; raise ArgumentError if it leaves no action of a chunk."""
        if action is None or not action.has_delay:
            return None
        span = self.of_action()
        limits = []
        for argument, value in {"min_delay": action.min_delay, "max_delay": action.max_delay}.items():
            values = [value] * len(self.names)
            limits.append(_count_strides(self._resolve("action", argument, values), values, span.strides))
        least, most = limits
        for name, low, high, length in zip(self.names, least, most, span.lengths, strict=True):
            if not low <= high < length:
                raise ArgumentError(
                    f"action=Vector(min_delay={action.min_delay!r}, max_delay={action.max_delay!r}): {low} to {high} "
                    f"steps of {name}, whose chunk has {length}; expected min_delay <= max_delay, and an action "
                    "behind it: give more steps or a smaller delay"
                )
        return Delay.of(least, most, seed=seed)

    def _of_vector(self, vector_name: VectorName, default_lengths: Sequence[int]) -> StepSpan:
        vectors = self.vectors.get(vector_name)
        if vectors is None:
            return StepSpan.of_one(len(self.names))
        lengths = [
            default if vector.steps is None else vector.steps
            for vector, default in zip(vectors, default_lengths, strict=True)
        ]
        firsts = self._resolve(vector_name, "start", [vector.start for vector in vectors])
        num_steps = self._resolve(vector_name, "steps", lengths)
        strides = self.strides(vector_name)
        return StepSpan(firsts, _count_strides(num_steps, lengths, strides), strides)

    def _resolve(self, vector_name: VectorName, argument: str, values: Sequence[int | str]) -> tuple[int, ...]:
        """Return a count of steps by dataset; raise ArgumentError for a time that is too short or too long."""
        least = STEP_LIMITS[argument]
        return resolve_steps(f"{vector_name}.{argument}", values, self.fields, self.names, least=least, most=MOST_STEPS)


def _count_strides(counts: Sequence[int], arguments: Sequence[int | str], strides: Sequence[int]) -> tuple[int, ...]:
    """Return counts of steps of a chunk: a number counts them already, a time counts steps of the episode."""
    return tuple(
        len(range(0, count, stride)) if isinstance(argument, str) else count
        for count, argument, stride in zip(counts, arguments, strides, strict=True)
    )
