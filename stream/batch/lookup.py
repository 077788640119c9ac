"""Metadata of a batch, read from the index for the rows of all datasets at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from stream.base.errors import FormatError
from stream.batch.columns import Column, draw_texts
from stream.batch.frames import FrameFinder, Frames
from stream.batch.mapped import MappedIndex
from stream.batch.spec import BatchSpec
from stream.batch.vectors import kind_codes, reduce_window, sum_scale
from stream.format.index import SplitIndex
from stream.format.names import VECTORS, TableKind, VectorName
from stream.order.rows import Rows
from stream.order.window import StepSpan

_MOST_TEXTS = 1 << 16
"""Instructions that stay decoded."""
Fail = Callable[[int, Exception], None]
"""Called with a row of the batch that the index does not describe, and the reason."""


class _Origin(NamedTuple):
    """Origin of each row of a batch, int64 [b]; 0 where the index does not describe a row.

    Attributes:
        episode, step: Episode in the split, and t.
        steps_row: Row of step t in ``steps``.
        num_steps: Steps of the episode, at least 1.
        first_record: First record of the episode, 0 in the layout ``pairs``.
        sound: Mask of the rows that the index describes, bool [b].
    """

    episode: np.ndarray
    step: np.ndarray
    steps_row: np.ndarray
    num_steps: np.ndarray
    first_record: np.ndarray
    sound: np.ndarray


class _Span:
    """The steps of a vector, W of the longest, as tables of M members."""

    def __init__(self, span: StepSpan) -> None:
        places = np.arange(span.longest)
        self.firsts = np.array(span.firsts, np.int64)
        self._steps = self.firsts[:, None] + places  # [M, W]
        self._is_used = places < np.array(span.lengths)[:, None]

    def inside(self, origin: _Origin, member: np.ndarray) -> np.ndarray:
        """Return which steps of each row are its member's, and in its episode, bool [b, W]."""
        wanted = origin.step[:, None] + self._steps[member]
        return np.asarray((wanted >= 0) & (wanted < origin.num_steps[:, None]) & self._is_used[member])


class Lookup:
    """Metadata of batches of a spec; one for each process, safe to use from several threads.

    Raises:
        FormatError: A column is not aligned.
        OSError: A table cannot be mapped.
    """

    def __init__(self, spec: BatchSpec) -> None:
        self._spec = spec
        splits = spec.splits
        index = self._index = MappedIndex(splits, spec.used_columns)
        self._finder = FrameFinder(spec, index)
        is_pairs = self._is_pairs = np.array([layout == "pairs" for layout in spec.layouts])
        pairs = [split.records if is_pairs[split.member] else None for split in splits]
        frames = [None if is_pairs[split.member] else split.episodes for split in splits]
        samples = [split.records if is_pairs[split.member] else split.steps for split in splits]
        self._sample = np.stack([index.starts(samples, name, 4) for name in ("episode", "step")], axis=1)
        self._steps_row = index.starts(pairs, "steps_row", 8)
        self._first_record = index.starts(frames, "first_record", 8)
        self._num_steps = index.starts([split.episodes for split in splits], "num_steps", 4)
        self._languages = index.starts([split.steps for split in splits], "language", 4)
        self._language = lru_cache(_MOST_TEXTS)(lambda split, number: splits[split].steps.text("language", number))
        # Records of an episode in the layout ``frames``, for each of its steps.
        self._records_a_step = np.array(spec.stored_cameras)
        self._starts: dict[str, np.ndarray] = {}
        self._widths: dict[str, np.ndarray] = {}
        for name in VECTORS:
            # Columns that a caller chose are read split by split.
            sizes = [vector.size if vector.chosen is None else 0 for vector in spec.vectors(name)]
            steps = [split.steps if sizes[split.member] else None for split in splits]
            self._starts[name] = index.starts(steps, spec.derived[name], 4)
            self._widths[name] = np.array([sizes[split.member] for split in splits])
        own_vectors = any(vector.chosen is not None for name in VECTORS for vector in spec.vectors(name))
        self._by_split = bool(spec.columns or spec.languages) or own_vectors
        # [M, A] and [M, S] for M members.
        self._action_mask = np.arange(spec.action_size) < np.array([v.size for v in spec.actions])[:, None]
        self._state_mask = np.arange(spec.state_size) < np.array([v.size for v in spec.states])[:, None]
        self._last_frame = np.array(spec.num_frames) - 1
        self._spans = {"action": _Span(spec.action_span), "state": _Span(spec.state_span)}
        self._kinds = np.stack([kind_codes(vector, spec.action_size) for vector in spec.actions])
        self._scale: np.ndarray | None = None
        if spec.action == "sum":
            self._scale = np.ones((len(spec.actions), spec.action_size), np.float32)
            for row, vector, rate in zip(self._scale, spec.actions, spec.rates, strict=True):
                row[: vector.size] = sum_scale(vector, rate)

    def look_up(self, rows: Rows, out: Mapping[str, np.ndarray], fail: Fail) -> tuple[Frames, dict[str, list[str]]]:
        """Fill the metadata arrays of a batch.

        Args:
            rows: Rows of the batch, b of them.
            out: Array [b, ...] of each field.
            fail: Called with each row that the index does not describe. The content of its arrays is undefined.

        Returns:
            Records of the frames, and texts of the rows by key.
        """
        spec, member = self._spec, rows.member
        zero = np.zeros(len(rows), np.int64)
        origin = _Origin(zero, zero, zero, zero + 1, zero, zero == 0)
        taken = zero[:, None]
        if spec.finds_steps:
            origin = self._find_origin(rows)
            taken, is_real = spec.window_table.steps(member, origin.step, origin.num_steps, rows.sample)
            # The frames of a pair lie inside of its episode.
            inside = (is_real | ~spec.window_table.used[member]).all(axis=1) | ~self._is_pairs[member]
            origin = origin._replace(sound=origin.sound & inside)
            for row in np.flatnonzero(~origin.sound).tolist():
                split = spec.splits[rows.split[row]]
                table = split.records if self._is_pairs[member[row]] else split.steps
                fail(row, FormatError(f"{table.path}: row {rows.record[row]} leads outside of its episodes or steps"))
        frames, holes = self._finder.find(
            rows,
            step=origin.step,
            num_steps=origin.num_steps,
            first_record=origin.first_record,
            taken=taken,
            sound=origin.sound,
        )
        if spec.chooses_frames:
            out["frame_step"][:] = taken
            for number, camera in enumerate(spec.cameras):
                has_camera = np.array(list(map(bool, camera.stored)))[member]
                out[camera.mask][:] = is_real & has_camera[:, None]
                if holes is not None:
                    out[camera.mask][holes[:, number]] = False
        texts: dict[str, list[str]] = {}
        if spec.metadata == "full":
            out["offset"][:] = taken[np.arange(len(rows)), self._last_frame[member]] - origin.step
            texts = self._describe(rows, origin, out)
        return frames, texts

    def _find_origin(self, rows: Rows) -> _Origin:
        index, split = self._index, rows.split
        pairs = self._is_pairs[rows.member]
        numbers = index.int32[self._sample[split] + rows.record[:, None]].astype(np.int64)
        episode, step = numbers[:, 0], numbers[:, 1]
        steps_row = np.where(pairs, index.int64[np.where(pairs, self._steps_row[split] + rows.record, 0)], rows.record)
        sound = (episode >= 0) & (episode < index.rows["episodes"][split])
        known = np.where(sound, episode, 0)
        num_steps = index.int32[self._num_steps[split] + known].astype(np.int64)
        first_record = index.int64[np.where(pairs, 0, self._first_record[split] + known)]
        # Compared without sums, which overflow where the index is damaged.
        sound &= (step >= 0) & (step < num_steps)
        sound &= (steps_row >= step) & (steps_row < index.rows["steps"][split])
        sound &= num_steps - step <= index.rows["steps"][split] - np.where(sound, steps_row, 0)
        records = num_steps * self._records_a_step[rows.member]
        sound &= pairs | ((first_record >= 0) & (first_record <= index.rows["records"][split] - records))
        return _Origin(
            episode=known,
            step=np.where(sound, step, 0),
            steps_row=np.where(sound, steps_row, 0),
            num_steps=np.where(sound, num_steps, 1),
            first_record=np.where(pairs | ~sound, 0, first_record),
            sound=sound,
        )

    def _describe(self, rows: Rows, origin: _Origin, out: Mapping[str, np.ndarray]) -> dict[str, list[str]]:
        spec, split, member = self._spec, rows.split, rows.member
        out["episode"][:], out["step"][:] = origin.episode, origin.step
        texts = {"language": [""] * len(rows)}
        if not spec.languages:
            numbers = self._index.int32[self._languages[split] + origin.steps_row].tolist()
            texts["language"] = [self._language(*key) for key in zip(split.tolist(), numbers, strict=True)]

        is_window = spec.action == "window"
        shape = (len(rows), spec.action_span.longest, spec.action_size)
        mask = out["action_mask"] if is_window else np.empty(shape, bool)
        inside = self._spans["action"].inside(origin, member)
        np.logical_and(inside[:, :, None], self._action_mask[member][:, None], out=mask)
        state_shape = (len(rows), spec.state_span.longest, spec.state_size)
        state, state_mask = out["state"].reshape(state_shape), out["state_mask"].reshape(state_shape)
        state_inside = self._spans["state"].inside(origin, member)
        np.logical_and(state_inside[:, :, None], self._state_mask[member][:, None], out=state_mask)
        window = out["action"] if is_window else np.empty(shape, np.float32)
        self._gather("action", split, origin.steps_row + self._spans["action"].firsts[member], mask, window)
        self._gather("state", split, origin.steps_row + self._spans["state"].firsts[member], state_mask, state)
        if self._by_split:
            self._fill_by_split(rows, origin, out, texts, (window, mask, inside), (state, state_mask, state_inside))
        if not is_window:
            length = inside.sum(axis=1)
            reduced = reduce_window(window, length, spec.action, self._kinds[member])
            reduced = reduced if self._scale is None else reduced * self._scale[member]
            # A sum or mean needs all steps.
            valid = mask[:, 0] if spec.action == "first" else mask.sum(axis=1) == length[:, None]
            out["action"][:], out["action_mask"][:] = np.where(valid, reduced, 0), valid
        return texts

    def _gather(
        self, name: VectorName, split: np.ndarray, first: np.ndarray, mask: np.ndarray, out: np.ndarray
    ) -> None:
        """Copy a derived column to ``out``, n steps from ``first`` on; 0 where ``mask`` is False.

        In a canonical space a NaN is a number that the step does not have, and its mask becomes False.

        Args:
            name: ``action`` or ``state``.
            split: Split of each row, int [b].
            first: Row of ``steps`` to begin at, int [b].
            mask: bool [b, n, size].
            out: float32 [b, n, size].
        """
        width = self._widths[name][split]
        start = self._starts[name][split] + first * width
        _, steps, size = out.shape
        index = (start[:, None] + np.arange(steps) * width[:, None])[:, :, None] + np.arange(size)
        # Masked values are number 0 of the region, which is 0.
        index *= mask
        out[:] = self._index.float32[index]
        if self._spec.derived[name] != name:
            mask &= ~np.isnan(out) | (width == 0)[:, None, None]
            out[~mask] = 0

    def _fill_by_split(
        self,
        rows: Rows,
        origin: _Origin,
        out: Mapping[str, np.ndarray],
        texts: dict[str, list[str]],
        action: tuple[np.ndarray, np.ndarray, np.ndarray],
        state: tuple[np.ndarray, np.ndarray, np.ndarray],
    ) -> None:
        """Fill in chosen vectors and additional columns, split by split.

        Args:
            rows: Rows of the batch, b of them.
            origin: Origin of the rows.
            out: Array [b, ...] of each field.
            texts: Texts of the rows by key.
            action, state: Values float32 [b, n, size], mask bool [b, n, size], and the mask of the steps inside of the
                episode, bool [b, n].
        """
        spec = self._spec
        for column in spec.columns:
            if column.dtype is None:
                texts[column.name] = [""] * len(rows)
            else:
                out[column.name][:] = 0
                out[f"{column.name}_mask"][:] = False
        for number in np.unique(rows.split).tolist():
            split = spec.splits[number]
            here = np.flatnonzero(rows.split == number)
            chosen = (
                (spec.actions[split.member], spec.action_span.firsts[split.member], action),
                (spec.states[split.member], spec.state_span.firsts[split.member], state),
            )
            for vector, start, (values, mask, inside) in chosen:
                for step in range(values.shape[1]) if vector.chosen else ():
                    real = here[inside[here, step]]
                    found, valid = vector.take(split.steps, origin.steps_row[real] + start + step)
                    values[real, step, : vector.size] = found
                    mask[real, step, : vector.size] &= valid
            at: dict[TableKind, np.ndarray] = {
                "records": rows.record[here],
                "steps": origin.steps_row[here],
                "episodes": origin.episode[here],
            }
            if spec.layouts[split.member] == "frames":
                at["records"] = origin.first_record[here] + origin.step[here]
            if spec.languages:
                own = draw_texts(spec.languages, split, at, rows.sample[here], seed=spec.seed)
                for row, text in zip(here.tolist(), own, strict=True):
                    texts["language"][row] = text
            for column in spec.columns:
                if kind := column.kinds[split.member]:
                    _fill_column(split, kind, column, at[kind], here, out, texts)


def _fill_column(
    split: SplitIndex,
    kind: TableKind,
    column: Column,
    rows: np.ndarray,
    here: np.ndarray,
    out: Mapping[str, np.ndarray],
    texts: dict[str, list[str]],
) -> None:
    table = split.table(kind)
    if column.dtype is None:
        for row, text in zip(here.tolist(), table.take_texts(column.column, rows), strict=True):
            texts[column.name][row] = text
        return
    values, valid = table.take(column.column, rows), table.valid(column.column, rows)
    if valid is None:
        valid = np.ones(len(here), bool)
    elif table.columns[column.column].file is None:
        here, values, valid = here[valid], values[valid], valid[valid]
    # A missing number of a label is stored as NaN, or as 0 if it is whole.
    cells: Any = here
    if column.size is not None:
        # A single number here may be a vector in another dataset.
        values = values[:, None] if values.ndim == 1 else values
        cells = here, slice(values.shape[1])
    out[column.name][cells] = values
    out[f"{column.name}_mask"][cells] = valid if column.size is None else valid[:, None]
