"""The sidecars of an open shard as a batch takes them: checked once, then looked up row by row."""

from __future__ import annotations

import threading
import weakref
from functools import cached_property

import numpy as np

from stream.columns import Column, check_column, column_validity, column_values
from stream.format import MAX_FRAMES, FormatError
from stream.shards import OpenShard
from stream.vectors import Filled, Vector, gather, vector_columns

_MERGE_AFTER = 16
_MERGED_BYTES = 64 << 20


class Budget:
    """Memory that merged vectors of all open shards together may take."""

    def __init__(self, size: int = _MERGED_BYTES) -> None:
        self._left = size
        self._lock = threading.Lock()

    def take(self, owner: object, size: int) -> bool:
        """Take so many bytes until ``owner`` is gone; False if they are not left."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
        weakref.finalize(owner, self._give, size).atexit = False
        return True

    def _give(self, size: int) -> None:
        with self._lock:
            self._left += size


class ShardTables:
    """The columns of a shard that a batch takes.

    Args:
        shard: an open shard.
        action, state: its vectors.
        columns: further columns.
        offset: the largest that a pair may have.
        budget: for vectors that are put together from several columns.

    Raises:
        FormatError: the sidecars do not fit together.
        OSError: one cannot be opened.
    """

    def __init__(
        self,
        shard: OpenShard,
        *,
        action: Vector,
        state: Vector,
        columns: tuple[Column, ...],
        offset: int,
        budget: Budget,
    ) -> None:
        member = shard.info.member
        self._episode, self._step, self._offset, self._steps_row = (
            shard.record_column(name) for name in ("episode", "step", "offset", "steps_row")
        )
        # The shard keeps these tables; kept by them, it would not close before a garbage collection.
        self._shard = weakref.ref(shard)
        # That files are those of the manifest is known; this is for manifests that were made by somebody else. The
        # episodes are not opened for it: that would be a seventh of what opening a shard takes.
        if not shard.was_checked("places of records"):
            steps, frames = len(shard.steps), shard.records["num_frames"]
            if len(self._episode) and not (
                self._episode.min() >= 0
                and self._episode.max() < shard.info.episodes
                and self._step.min() >= 0
                and self._offset.min() >= 1
                and self._offset.max() <= offset
                and (self._steps_row >= self._step).all()
                and self._steps_row.max() < steps
                and frames.min() >= 1
                and frames.max() <= MAX_FRAMES
                and (self._steps_row + self._offset).max() < steps
            ):
                raise FormatError(f"{shard.info.path('records')}: does not fit the shard's episodes and steps")
            shard.set_checked("places of records")
        self.action = vector_columns(shard, action)
        self.state = vector_columns(shard, state)
        self._budget = budget
        self._uses = 0
        self._language, self._text = shard.language
        self._decoded: dict[int, str] = {}
        for column in columns:
            if kind := column.kinds[member]:
                check_column(shard, kind, column)
        self.columns = [
            (kind, column_values(shard, kind, column.column), column_validity(shard, kind, column.column))
            if kind
            else (None, np.zeros(0), None)
            for column in columns
            for kind in (column.kinds[member],)
        ]
        shard.drop_tables()

    @cached_property
    def num_steps(self) -> np.ndarray:
        """Steps of each episode, int32 [episodes]."""
        shard = self._shard()
        assert shard is not None, "whoever looks something up holds the shard"
        return np.asarray(shard.episodes["num_steps"].to_numpy())

    def place(self, record: int) -> tuple[int, int, int, int]:
        """Row in ``steps``, episode in the shard, step and offset of a record."""
        self._uses += 1
        if self._uses == _MERGE_AFTER:
            self.action, self.state = self._merged(self.action), self._merged(self.state)
        return (
            self._steps_row.item(record),
            self._episode.item(record),
            self._step.item(record),
            self._offset.item(record),
        )

    def language(self, step_row: int) -> str:
        """The instruction at a step."""
        number = self._language.item(step_row)
        text = self._decoded.get(number)
        if text is None:
            text = self._decoded[number] = self._text(number)
        return text

    def _merged(self, columns: list[Filled]) -> list[Filled]:
        """One float32 array [steps, dimensions] in place of several columns: a third of the time a row, for shards that
        are read often."""
        if len(columns) < 2:
            return columns
        rows, dims = len(columns[0][0]), columns[-1][1].stop
        if not self._budget.take(self, rows * dims * 4):
            return columns
        whole = np.empty((rows, dims), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            gather(columns, 0, rows, whole)
        return [(whole, slice(0, dims), None)]
