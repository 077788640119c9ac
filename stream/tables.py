"""The sidecars of an open shard as a batch takes them: checked once, then looked up row by row."""

from __future__ import annotations

import weakref
from functools import cached_property

import numpy as np

from stream.columns import Column, check_column, column_validity, column_values
from stream.format import MAX_FRAMES, FormatError
from stream.shards import OpenShard
from stream.vectors import Vector, gather, gather_row, vector_columns


class ShardTables:
    """The columns of a shard that a batch takes.

    Args:
        shard: an open shard.
        action, state: its vectors.
        columns: further columns.
        offset: the largest that a pair may have.

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
    ) -> None:
        member = shard.info.member
        self.first_episode = shard.info.first_episode
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
        self.uses = 0
        """How often a record was looked up."""
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
        """Steps of each episode, int32 [episodes]. Raises FormatError and OSError."""
        shard = self._shard()
        assert shard is not None, "whoever looks something up holds the shard"
        steps = shard.episode_steps()
        if not shard.was_checked("steps of episodes"):
            left = steps[self._episode] - self._step
            if len(left) and (left.min() < 1 or (self._steps_row + left).max() > self.rows):
                raise FormatError(
                    f"{shard.info.path('episodes')}: num_steps does not fit the shard's records and steps"
                )
            shard.set_checked("steps of episodes")
        return steps

    def describe(
        self, record: int, horizon: int | None, window: np.ndarray, state: np.ndarray
    ) -> tuple[int, int, tuple[int, int, int], str]:
        """Look up a record.

        Args:
            record: in the shard.
            horizon: steps of the window, None for those of the pair.
            window: the actions are written here, float32 [>= steps, >= dimensions].
            state: and the state here, float32 [>= dimensions].

        Returns:
            its row in ``steps``; how many steps of the window are real; its episode (in the dataset), step and offset;
            and the instruction.
        """
        self.uses += 1
        first, episode = self._steps_row.item(record), self._episode.item(record)
        step, length = self._step.item(record), self._offset.item(record)
        place = (self.first_episode + episode, step, length)
        if horizon is not None:
            length = min(horizon, self.num_steps.item(episode) - step)
        gather(self.action, first, first + length, window)
        gather_row(self.state, first, state)
        return first, length, place, self._instruction(self._language.item(first))

    def __len__(self) -> int:
        return len(self._episode)

    @property
    def rows(self) -> int:
        """Rows of ``steps``."""
        return len(self._language)

    def records(self, horizon: int | None) -> np.ndarray:
        """Of each record what ``describe`` returns: row in ``steps``, real steps of the window, episode, step and
        offset; int64 [records, 5]."""
        first, step, length = self._steps_row, self._step, self._offset
        if horizon is not None:
            length = np.minimum(horizon, self.num_steps[self._episode] - step)
        return np.stack([first, length, self.first_episode + self._episode, step, self._offset], 1, dtype=np.int64)

    def places(self) -> np.ndarray | None:
        """Where the records lie, int64 [records, 3] by PLACE_FIELDS, of which the last one is unsigned; None if that is
        not known."""
        shard = self._shard()
        assert shard is not None, "whoever looks something up holds the shard"
        places = shard.record_places()
        return None if places is None else np.stack([values.astype(np.int64) for values in places], 1)

    def vectors(self, actions: np.ndarray, states: np.ndarray) -> None:
        """Write all actions and states, into float32 [rows, >= dimensions] each."""
        gather(self.action, 0, self.rows, actions)
        gather(self.state, 0, self.rows, states)

    def instructions(self) -> tuple[list[str], np.ndarray]:
        """The instructions, and of each row of ``steps`` which of these it has, int [rows]."""
        numbers, of_rows = np.unique(self._language, return_inverse=True)
        return [self._instruction(number) for number in numbers.tolist()], of_rows

    def _instruction(self, number: int) -> str:
        text = self._decoded.get(number)
        if text is None:
            text = self._decoded[number] = self._text(number)
        return text
