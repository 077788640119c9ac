"""Metadata of a batch, read from the index for the rows of all datasets at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from stream.base.errors import FormatError
from stream.batch.columns import Column, draw_texts
from stream.batch.frames import FrameFinder, Frames
from stream.batch.mapped import MappedIndex
from stream.batch.spec import BatchSpec
from stream.batch.vector_windows import Origin, Reducer, VectorReader, VectorWindow, cut_intervals, interval_positions
from stream.format.index import SplitIndex
from stream.format.names import TableKind
from stream.order.rows import Rows
from stream.sample.relative import RelativeVector
from stream.sample.slots import SlotWriter

_MOST_TEXTS = 1 << 16
"""Instructions that stay decoded."""
Fail = Callable[[int, Exception], None]
"""Called with a row of the batch that the index does not describe, and the reason."""


class _OriginFinder:
    """Finder of the origins of rows: through ``records`` in the layout ``pairs``, else through ``steps``."""

    def __init__(self, spec: BatchSpec, mapped_index: MappedIndex) -> None:
        self._index = mapped_index
        self.is_pairs = np.array([layout == "pairs" for layout in spec.layouts])
        # Only the layout ``frames`` has records at a fixed distance from the first one of their episode.
        pairs = [split_index.records if self.is_pairs[split_index.member] else None for split_index in spec.splits]
        frames = [None if self.is_pairs[split_index.member] else split_index.episodes for split_index in spec.splits]
        samples = [
            split_index.records if self.is_pairs[split_index.member] else split_index.steps
            for split_index in spec.splits
        ]
        self._samples = np.stack(
            [mapped_index.starts(samples, column_name, 4) for column_name in ("episode", "step")], axis=1
        )
        self._steps_row = mapped_index.starts(pairs, "steps_row", 8)
        self._first_record = mapped_index.starts(frames, "first_record", 8)
        self._num_steps = mapped_index.starts([split_index.episodes for split_index in spec.splits], "num_steps", 4)
        self._records_per_step = np.array(spec.stored_cameras)

    def find(self, rows: Rows) -> Origin:
        """Return the origin of each row. No number of the index is used before it is checked, as it may be damaged."""
        mapped_index, split_numbers = self._index, rows.split
        is_pair = self.is_pairs[rows.member]
        sample_numbers = mapped_index.int32[self._samples[split_numbers] + rows.record[:, None]].astype(np.int64)
        episode, step = sample_numbers[:, 0], sample_numbers[:, 1]
        # Number 0 of the region is read, and ignored, where a layout does not have a column.
        pair_row = mapped_index.int64[np.where(is_pair, self._steps_row[split_numbers] + rows.record, 0)]
        steps_row = np.where(is_pair, pair_row, rows.record)

        valid = (episode >= 0) & (episode < mapped_index.row_counts["episodes"][split_numbers])
        episode = np.where(valid, episode, 0)
        num_steps = mapped_index.int32[self._num_steps[split_numbers] + episode].astype(np.int64)
        first_record = mapped_index.int64[np.where(is_pair, 0, self._first_record[split_numbers] + episode)]

        # All steps and records of the episode exist. Sums of damaged numbers could overflow, differences cannot.
        valid &= (step >= 0) & (step < num_steps)
        valid &= (steps_row >= step) & (steps_row < mapped_index.row_counts["steps"][split_numbers])
        valid &= num_steps - step <= mapped_index.row_counts["steps"][split_numbers] - np.where(valid, steps_row, 0)
        num_records = num_steps * self._records_per_step[rows.member]
        last_start = mapped_index.row_counts["records"][split_numbers] - num_records
        valid &= is_pair | ((first_record >= 0) & (first_record <= last_start))
        return Origin(
            episode=episode,
            step=np.where(valid, step, 0),
            steps_row=np.where(valid, steps_row, 0),
            num_steps=np.where(valid, num_steps, 1),
            first_record=np.where(is_pair | ~valid, 0, first_record),
            valid=valid,
        )


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
        self._frame_finder = FrameFinder(spec, index) if spec.cameras else None
        self._origin_finder = _OriginFinder(spec, index)
        self._vectors = spec.read_vectors
        self._readers = {vector_name: VectorReader(spec, index, vector_name) for vector_name in self._vectors}
        self._languages = index.starts([split_index.steps for split_index in splits], "language", 4)
        self._instruction = lru_cache(_MOST_TEXTS)(
            lambda split_index, number: splits[split_index].steps.text("language", number)
        )
        has_chosen = any(vector.chosen is not None for vectors in self._vectors.values() for vector in vectors)
        self._is_filled_by_split = bool(spec.columns or spec.languages) or has_chosen
        self._has_camera = np.array([list(map(bool, camera.stored)) for camera in spec.cameras])  # [C, M]
        self._rates = np.array([rate or np.nan for rate in spec.rates])
        self._last_frame = np.array(spec.num_frames) - 1
        has_plain_actions = spec.reduction is None and not spec.has_intervals
        self._is_final: dict[str, bool] = {
            vector_name: vector_name not in spec.relative and (vector_name == "state" or has_plain_actions)
            for vector_name in spec.loaded_vectors
        }
        self._reducer = Reducer(spec) if spec.reduction and spec.actions else None
        self._interval_positions = interval_positions(spec.windows) if spec.has_intervals else None
        self._slot_writer = SlotWriter(spec.slots) if spec.slots else None

    def look_up(self, rows: Rows, arrays: Mapping[str, np.ndarray], fail: Fail) -> tuple[Frames, dict[str, list[str]]]:
        """Fill the metadata arrays of a batch.

        Args:
            rows: Rows of the batch, b of them.
            arrays: Array [b, ...] of each field.
            fail: Called with each row that the index does not describe. The content of its arrays is undefined.

        Returns:
            Records of the frames, and texts of the rows by key.
        """
        spec, member = self._spec, rows.member
        origin = self._origin_finder.find(rows)
        frame_steps, is_real = spec.window_table.steps(member, origin.step, origin.num_steps, rows.sample)
        # The frames of a pair are all in its episode.
        is_pairs = self._origin_finder.is_pairs
        inside = (is_real | ~spec.window_table.used[member]).all(axis=1) | ~is_pairs[member]
        origin = origin._replace(valid=origin.valid & inside)
        for row in np.flatnonzero(~origin.valid).tolist():
            split_index = spec.splits[rows.split[row]]
            table = split_index.records if is_pairs[member[row]] else split_index.steps
            fail(row, FormatError(f"{table.path}: row {rows.record[row]} leads outside of its episodes or steps"))
        dropped = None
        if spec.history_dropout is not None:
            dropped = spec.window_table.history[member] & spec.history_dropout.draw(rows.sample)[:, None]
        frames, missing = Frames([0] * (len(rows) + 1), [], [], [], [], []), None
        if self._frame_finder is not None:
            frames, missing = self._frame_finder.find(
                rows,
                sample_steps=origin.step,
                episode_steps=origin.num_steps,
                first_record=origin.first_record,
                frame_steps=frame_steps,
                valid=origin.valid,
                dropped=dropped,
            )
        if spec.has_times:
            arrays["frame_time"][:] = (frame_steps - origin.step[:, None]) / self._rates[member][:, None]
        if spec.chooses_frames:
            arrays["frame_step"][:] = frame_steps
            for camera_number, camera in enumerate(spec.cameras):
                arrays[camera.mask][:] = is_real & self._has_camera[camera_number, member][:, None]
                if missing is not None:
                    arrays[camera.mask][missing[:, camera_number]] = False
                if dropped is not None:
                    arrays[camera.mask][dropped] = False
        arrays["offset"][:] = frame_steps[np.arange(len(rows)), self._last_frame[member]] - origin.step
        if self._slot_writer is None:
            return frames, self._describe(rows, origin, arrays, frame_steps)
        in_dims = self._slot_writer.open(arrays)
        texts_by_key = self._describe(rows, origin, in_dims, frame_steps)
        self._slot_writer.write(in_dims, arrays, member)
        return frames, texts_by_key

    def _describe(
        self, rows: Rows, origin: Origin, arrays: Mapping[str, np.ndarray], frame_steps: np.ndarray
    ) -> dict[str, list[str]]:
        spec, split_numbers = self._spec, rows.split
        arrays["episode"][:], arrays["step"][:] = origin.episode, origin.step
        texts_by_key: dict[str, list[str]] = {}
        if spec.has_language:
            texts_by_key["language"] = [""] * len(rows)
        if spec.has_language and not spec.languages:
            numbers = self._index.int32[self._languages[split_numbers] + origin.steps_row].tolist()
            texts_by_key["language"] = [
                self._instruction(*text_key) for text_key in zip(split_numbers.tolist(), numbers, strict=True)
            ]

        windows: dict[str, VectorWindow] = {}
        for vector_name, reader in self._readers.items():
            shape = (len(rows), reader.longest, reader.size)
            if self._is_final.get(vector_name):
                values, mask = (arrays[key].reshape(shape) for key in (vector_name, f"{vector_name}_mask"))
            else:
                values, mask = np.empty(shape, np.float32), np.empty(shape, bool)
            windows[vector_name] = reader.read(rows, origin, values, mask)
        if self._is_filled_by_split:
            self._fill_by_split(rows, origin, arrays, texts_by_key, windows)
        if spec.delay is not None:
            delays = spec.delay.draw(rows.member, rows.sample)
            arrays["action_delay"][:] = delays
            arrays["action_prefix_mask"][:] = np.arange(spec.action_span.longest) < delays[:, None]
        for vector_name, conversions in spec.relative.items():
            self._convert(conversions, rows.member, windows, vector_name, arrays)
        if "action" in windows and not self._is_final["action"] and "action" not in spec.relative:
            self._finish_actions(rows, windows["action"], arrays, origin.step, frame_steps)
        return texts_by_key

    @staticmethod
    def _convert(
        conversions: Sequence[RelativeVector],
        members: np.ndarray,
        windows: Mapping[str, VectorWindow],
        vector_name: str,
        arrays: Mapping[str, np.ndarray],
    ) -> None:
        """Fill in a vector relative to its reference, or with rotations of another form, member by member."""
        window, reference = windows[vector_name], windows.get("reference")
        shape = (*window.values.shape[:2], arrays[vector_name].shape[-1])
        results, masks = (arrays[key].reshape(shape) for key in (vector_name, f"{vector_name}_mask"))
        results[:], masks[:] = 0, False
        for member in np.unique(members).tolist():
            rows, conversion = members == member, conversions[member]
            source, size = slice(conversion.size), len(conversion.names)
            now = None if reference is None else (reference.values[rows, 0], reference.mask[rows, 0])
            values, mask = window.values[rows, :, source], window.mask[rows, :, source]
            results[rows, :, :size], masks[rows, :, :size] = conversion.forward(values, mask, *(now or (None, None)))

    def _finish_actions(
        self,
        rows: Rows,
        action: VectorWindow,
        arrays: Mapping[str, np.ndarray],
        sample_steps: np.ndarray,
        frame_steps: np.ndarray,
    ) -> None:
        """Fill in the actions of each interval of frames, or one action for each window or interval."""
        members = rows.member
        if self._interval_positions is not None:
            first_steps = sample_steps + self._readers["action"].firsts[members]
            action = cut_intervals(action, self._interval_positions[members], first_steps, frame_steps)
        if self._reducer is None:
            arrays["action"][:], arrays["action_mask"][:] = action.values, action.mask
        else:
            arrays["action"][:], arrays["action_mask"][:] = self._reducer.reduce(action, members)

    def _fill_by_split(
        self,
        rows: Rows,
        origin: Origin,
        arrays: Mapping[str, np.ndarray],
        texts_by_key: dict[str, list[str]],
        windows: Mapping[str, VectorWindow],
    ) -> None:
        """Fill in chosen vectors and additional columns, split by split."""
        spec = self._spec
        for column in spec.columns:
            if column.dtype is None:
                texts_by_key[column.name] = [""] * len(rows)
            else:
                arrays[column.name][:] = 0
                arrays[f"{column.name}_mask"][:] = False
        for split_number in np.unique(rows.split).tolist():
            split_index = spec.splits[split_number]
            split_rows = np.flatnonzero(rows.split == split_number)
            for vector_name, window in windows.items():
                self._fill_chosen(vector_name, window, split_index, split_rows)
            table_rows: dict[TableKind, np.ndarray] = {
                "records": rows.record[split_rows],
                "steps": origin.steps_row[split_rows],
                "episodes": origin.episode[split_rows],
            }
            if spec.layouts[split_index.member] == "frames":
                table_rows["records"] = origin.first_record[split_rows] + origin.step[split_rows]
            if spec.languages:
                drawn_texts = draw_texts(
                    spec.languages, split_index, table_rows, rows.sample[split_rows], seed=spec.seed
                )
                for row, text in zip(split_rows.tolist(), drawn_texts, strict=True):
                    texts_by_key["language"][row] = text
            for column in spec.columns:
                if table_kind := column.kinds[split_index.member]:
                    _fill_column(
                        split_index, table_kind, column, table_rows[table_kind], split_rows, arrays, texts_by_key
                    )

    def _fill_chosen(
        self, vector_name: str, window: VectorWindow, split_index: SplitIndex, split_rows: np.ndarray
    ) -> None:
        """Fill the rows of a split with a vector whose columns a caller chose."""
        vector = self._vectors[vector_name][split_index.member]
        for step in range(window.values.shape[1]) if vector.chosen else ():
            inside_rows = split_rows[window.inside[split_rows, step]]
            values, valid = vector.take(split_index.steps, window.steps_rows[inside_rows, step])
            window.values[inside_rows, step, : vector.size] = values
            window.mask[inside_rows, step, : vector.size] &= valid


def _fill_column(
    split_index: SplitIndex,
    table_kind: TableKind,
    column: Column,
    table_rows: np.ndarray,
    batch_rows: np.ndarray,
    arrays: Mapping[str, np.ndarray],
    texts_by_key: dict[str, list[str]],
) -> None:
    table = split_index.table(table_kind)
    if column.dtype is None:
        for row, text in zip(batch_rows.tolist(), table.take_texts(column.column, table_rows), strict=True):
            texts_by_key[column.name][row] = text
        return
    values, valid = table.take(column.column, table_rows), table.valid(column.column, table_rows)
    if valid is None:
        valid = np.ones(len(batch_rows), bool)
    elif table.columns[column.column].file is None:
        batch_rows, values, valid = batch_rows[valid], values[valid], valid[valid]
    # A missing number of a label is stored as NaN, or as 0 in a column of integers.
    cells: Any = batch_rows
    if column.size is not None:
        # A single number of this dataset may be a vector in another one.
        values = values[:, None] if values.ndim == 1 else values
        cells = batch_rows, slice(values.shape[1])
    arrays[column.name][cells] = values
    arrays[f"{column.name}_mask"][cells] = valid if column.size is None else valid[:, None]
