"""What the sidecars of shards that are used often say, of all of them together in a few arrays.

A batch of such shards is looked up with a dozen calls of numpy in place of some twenty of Python for every row. Between
two batches the frames push all else out of the processor's caches, so each of these costs several times what it does in
a loop of its own. Measured in turns with the caches emptied before each part of 32 rows, in a slow hour: 9 microseconds
a row in place of 22.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from stream.record_reader import Place
from stream.spec import BatchSpec
from stream.tables import ShardTables

_BYTES = 32 << 20
_EMPTY = 1
"""The first step and record stand for none: a row of them is all zeros."""


class Found(NamedTuple):
    """What was found of the rows of a batch, b of each; zeros of those that are not here.

    left: which are not here. length: real steps of the window; place: episode (in the dataset), step and offset,
    int64 [b, 3]; language: the instructions. records: where they lie, None where that is not known.
    """

    left: list[int]
    length: np.ndarray
    place: np.ndarray
    language: list[str]
    records: list[Place | None]


class _Arrays(NamedTuple):
    """All that is known of records and steps; those of a shard are neighbours.

    records: first step (a row of the others), real steps of the window, episode, step, offset, the number of the
    instruction, and where it lies, int64 [rows, 9]. actions, states: of each step, zeros beyond its dimensions, float32
    [rows, A] and [rows, S].
    """

    records: np.ndarray
    actions: np.ndarray
    states: np.ndarray


class PackedTables:
    """Metadata of shards that were added, as long as there is room; they stay. Safe to use from several threads.

    Args:
        spec: what a batch holds; further columns are not kept here.
        nbytes: of memory at most, taken as shards are added.
    """

    def __init__(self, spec: BatchSpec, nbytes: int = _BYTES) -> None:
        self._horizon = spec.horizon
        self._window = np.arange(spec.window)
        # By shard, where its records begin; 0 if it is not here.
        self._first_record = np.zeros(len(spec.shards), np.int64)
        self._arrays = _Arrays(
            np.zeros((_EMPTY, 9), np.int64),
            np.zeros((_EMPTY, spec.action_size), np.float32),
            np.zeros((_EMPTY, spec.state_size), np.float32),
        )
        most = max(int(spec.shards.column(name).sum()) for name in ("records", "steps"))
        self._most_rows = min(_EMPTY + most, nbytes // sum(values.nbytes for values in self._arrays))
        self._records = self._steps = _EMPTY
        self._text = [""]
        self._numbers: dict[str, int] = {"": 0}
        self._lock = threading.Lock()

    def add(self, shard: int, tables: ShardTables) -> bool:
        """Add a shard; returns whether it is here now."""
        with self._lock:
            if self._first_record[shard]:
                return True
            records = slice(self._records, self._records + len(tables))
            steps = slice(self._steps, self._steps + tables.rows)
            if max(records.stop, steps.stop) > self._most_rows:
                return False
            if len(self._arrays.records) == _EMPTY:
                # All at once: the kernel gives pages as they are written, and takes back none that malloc keeps.
                self._arrays = _Arrays(*(_enlarged(values, self._most_rows) for values in self._arrays))
            arrays = self._arrays
            arrays.actions[steps] = 0
            arrays.states[steps] = 0
            tables.vectors(arrays.actions[steps], arrays.states[steps])
            known = arrays.records[records]
            known[:, :5] = tables.records(self._horizon)
            texts, of_rows = tables.instructions()
            known[:, 5] = np.array([self._number(text) for text in texts], np.int64)[of_rows[known[:, 0]]]
            known[:, 0] += steps.start
            places = tables.places()
            known[:, 6:] = 0 if places is None else places
            self._records, self._steps = records.stop, steps.stop
            # Last: whoever finds it there takes the arrays after that.
            self._first_record[shard] = records.start
        return True

    def has(self, shard: np.ndarray) -> np.ndarray:
        """Return of each of some shards whether it is here, bool alike."""
        return self._first_record[shard] > 0

    def find(self, shard: np.ndarray, record: np.ndarray, window: np.ndarray, state: np.ndarray) -> Found:
        """Look up the rows of a batch.

        Args:
            shard: of each row, int [b].
            record: in the shard, int [b].
            window: actions are written here, float32 [b, W, A], zero beyond those that are real.
            state: and states here, float32 [b, S].
        """
        first_record = self._first_record[shard]
        arrays, text = self._arrays, self._text
        if np.count_nonzero(first_record) == len(first_record):
            left, places = [], first_record + record
        else:
            there = first_record > 0
            left, places = np.flatnonzero(~there).tolist(), np.where(there, first_record + record, 0)
        found = arrays.records.take(places, axis=0)
        first, length = found[:, 0], found[:, 1]
        steps = np.where(self._window < length[:, None], first[:, None] + self._window, 0)
        # With another mode numpy makes a copy of ``out``.
        arrays.actions.take(steps, axis=0, out=window, mode="clip")
        arrays.states.take(first, axis=0, out=state, mode="clip")
        numbers, position, num_bytes, xxh3_64 = found[:, 5:].T
        lies = zip(position.tolist(), num_bytes.tolist(), xxh3_64.view(np.uint64).tolist(), strict=True)
        return Found(
            left,
            length,
            found[:, 2:5],
            [text[number] for number in numbers.tolist()],
            [place if place[1] else None for place in lies],
        )

    def _number(self, text: str) -> int:
        number = self._numbers.get(text)
        if number is None:
            self._text.append(text)
            number = self._numbers[text] = len(self._text) - 1
        return number


def _enlarged(values: np.ndarray, rows: int) -> np.ndarray:
    larger = np.empty((rows, *values.shape[1:]), values.dtype)
    larger[: len(values)] = values
    return larger
