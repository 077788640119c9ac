"""Rows that were planned together are looked up together, before their batches are asked for.

Between two batches the frames push all else out of the processor's caches, so that what is done for a batch costs
several times what it does in a loop of its own. For the rows of many batches it is done in the time of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from stream.metadata import Described, Describer
from stream.ring import Fields, empty_array
from stream.rows import ROW_NAMES, Rows, Share

_BYTES = 4 << 20
"""Of arrays, for the rows that are looked up together."""

_MOST_CUTS = 4
"""So many different parts are looked up of the same batches. Where workers change their pace at each batch, more would
take longer than row by row."""
_AROUND = 8
"""Of a part, an eighth more is looked up on either side: the next batches may be cut elsewhere
(``stream.pace``)."""


class _Stretch(NamedTuple):
    """Rows [first, stop) of some batches up to the step ``until``. steps: number of each among those that were looked
    up, by step; those with rows in shards that are not open are not there."""

    first: int
    stop: int
    until: int
    steps: Mapping[int, int]
    arrays: dict[str, np.ndarray]
    described: Described

    def has(self, step: int, part: Share) -> bool:
        """Whether it was looked for that part of that step."""
        return step < self.until and self.first <= part[0] and part[1] <= self.stop


class Lookahead:
    """What the rows of batches to come hold beside frames, if all of their shards are open, or packed.

    Args:
        describer: looks them up.
        fields: of a batch, beside frames.
        identify: fills those of them that the rows say themselves.
    """

    def __init__(
        self, describer: Describer, fields: Fields, identify: Callable[[Rows, Mapping[str, np.ndarray]], None]
    ) -> None:
        self._describer = describer
        self._fields = dict(fields)
        self._identify = identify
        self._row_bytes = sum(math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape in fields.values())
        self._first = 0
        self._rows = np.zeros((len(ROW_NAMES), 0, 0), np.int64)
        self._known: list[_Stretch] = []

    def plan(self, step: int, rows: Rows, *, steps: int) -> None:
        """Take note of the rows of so many steps from this one on; those of steps noted before are forgotten."""
        self._first = step
        self._rows = np.stack([getattr(rows, name).reshape(steps, -1) for name in ROW_NAMES], dtype=np.int64)
        self._known.clear()

    def describe(self, step: int, part: Share, out: Mapping[str, np.ndarray]) -> Described | None:
        """Fill the arrays of a part of a planned batch.

        Args:
            step: of the batch.
            part: b rows of it.
            out: an array [b, ...] of each field.

        Returns:
            What is not in arrays; None if some of it has to be looked up row by row, or was not planned.
        """
        if not self._first <= step < self._first + self._rows.shape[1]:
            return None
        known = next((known for known in self._known if known.has(step, part)), None)
        if known is None:
            if len(self._known) == _MOST_CUTS:
                return None
            known = self._look_up(step, part)
            self._known.append(known)
        number = known.steps.get(step)
        if number is None:
            return None
        begin = number * (known.stop - known.first) - known.first
        cut = slice(begin + part[0], begin + part[1])
        for name, values in known.arrays.items():
            out[name][:] = values[cut]
        texts, records = known.described
        return Described({key: values[cut] for key, values in texts.items()}, records[cut])

    def _look_up(self, step: int, part: Share) -> _Stretch:
        around = (part[1] - part[0]) // _AROUND
        first, stop = max(0, part[0] - around), min(part[1] + around, self._rows.shape[2])
        begin = step - self._first
        most = _BYTES // max(1, (stop - first) * self._row_bytes)
        rows = self._rows[:, begin : begin + most, first:stop]
        until = step + max(1, rows.shape[1])
        shard = rows[ROW_NAMES.index("shard")]
        ready = np.flatnonzero(self._describer.are_ready(shard).all(axis=1))
        # For one or two it takes more than it saves.
        if len(ready) <= 2:
            return _Stretch(first, stop, until, {}, {}, Described({}, []))
        chosen = Rows(*rows[:, ready].reshape(len(ROW_NAMES), -1))
        arrays = {name: empty_array(len(chosen), *field) for name, field in self._fields.items()}
        self._identify(chosen, arrays)
        described, failed = self._describer.describe_ready(chosen, arrays)
        steps = {step + place: number for number, place in enumerate(ready.tolist())}
        for number in {row // (stop - first) for row in failed}:
            del steps[step + ready.item(number)]
        return _Stretch(first, stop, until, steps, arrays, described)
