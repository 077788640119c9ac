"""Metadata of a batch, read from the index for the rows of all datasets at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from stream.batch.columns import Column
from stream.batch.region import Region
from stream.batch.spec import BatchSpec
from stream.batch.vectors import mode_codes, reduce_window
from stream.format.index import SplitIndex
from stream.format.table import Table
from stream.order.rows import Rows
from stream.storage.errors import FormatError

_MOST_TEXTS = 1 << 16
"""Instructions that stay decoded."""
_INT32, _INT64 = ("shard", "num_bytes", "episode", "step", "offset"), ("position", "xxh3_64", "steps_row")
Fail = Callable[[int, Exception], None]
"""Called with a row of the batch that the index does not describe, and the reason."""


class Located(NamedTuple):
    """Locations of the records of a batch, and its texts.

    ``stream.format.schema.RECORD_FIELDS`` describes the columns.

    Attributes:
        shards: Shard of each record in its split.
        num_bytes: Size of each record.
        positions: Byte offset of each record in its shard.
        xxh3_64: Checksum of each record.
        texts: Texts of the rows, by key.
    """

    shards: list[int]
    num_bytes: list[int]
    positions: list[int]
    xxh3_64: list[int]
    texts: dict[str, list[str]]


class Lookup:
    """Metadata of batches of a spec; one for each process, safe to use from several threads.

    Raises:
        FormatError: A column is not aligned.
        OSError: A table cannot be mapped.
    """

    def __init__(self, spec: BatchSpec) -> None:
        self._spec = spec
        tables = [split.table(kind) for split in spec.splits for kind in ("records", "steps", "episodes")]
        region = Region([table.path for table in tables])
        starts = {table.path: start for table, start in zip(tables, region.starts, strict=True)}
        self._i4, self._i8, self._f4 = region.view("<i4"), region.view("<i8"), region.view("<f4")

        def find(table: Table, column: str, size: int) -> int:
            """Return the index of the first number of a column."""
            offset = starts[table.path] + table.columns[column].data
            if offset % size:
                raise FormatError(f"{table.path}: column {column!r} does not begin at a multiple of {size} bytes")
            return offset // size

        splits = spec.splits
        self._records4 = np.array([[find(split.records, name, 4) for name in _INT32] for split in splits])
        self._records8 = np.array([[find(split.records, name, 8) for name in _INT64] for split in splits])
        self._languages = np.array([find(split.steps, "language", 4) for split in splits])
        self._num_steps = np.array([find(split.episodes, "num_steps", 4) for split in splits])
        self._episodes = np.array([len(split.episodes) for split in splits])
        self._steps = np.array([len(split.steps) for split in splits])
        self._language = lru_cache(_MOST_TEXTS)(partial(_language, splits))
        vectors = {"action": spec.actions, "state": spec.states}
        self._bases: dict[str, np.ndarray] = {}
        self._widths: dict[str, np.ndarray] = {}
        for name, found in vectors.items():
            derived = [found[split.member].size and found[split.member].chosen is None for split in splits]
            bases = [find(split.steps, name, 4) if own else 0 for split, own in zip(splits, derived, strict=True)]
            widths = [found[split.member].size if own else 0 for split, own in zip(splits, derived, strict=True)]
            self._bases[name], self._widths[name] = np.array(bases), np.array(widths)
        self._by_split = bool(spec.columns) or any(v.chosen is not None for found in vectors.values() for v in found)
        # [M, 1, A] and [M, S] for M members.
        self._action_mask = np.arange(spec.action_size) < np.array([v.size for v in spec.actions])[:, None, None]
        self._state_mask = np.arange(spec.state_size) < np.array([v.size for v in spec.states])[:, None]
        self._window_steps = np.arange(spec.window)
        self._modes = np.stack([mode_codes(vector, spec.action_size) for vector in spec.actions])
        self._scale: np.ndarray | None = None
        if spec.action == "sum":
            self._scale = np.ones((len(spec.actions), spec.action_size), np.float32)
            for row, scale in zip(self._scale, spec.sum_scales(), strict=True):
                row[: len(scale)] = scale

    def look_up(self, rows: Rows, out: Mapping[str, np.ndarray], fail: Fail) -> Located:
        """Fill the metadata arrays of a batch, and return the locations of its records.

        Args:
            rows: Rows of the batch, b of them.
            out: Array [b, ...] of each field.
            fail: Called with each row that the index does not describe. The content of its arrays is undefined.
        """
        spec, split, record = self._spec, rows.split, rows.record
        small = self._i4[self._records4[split] + record[:, None]]
        large = self._i8[self._records8[split] + record[:, None]]
        texts: dict[str, list[str]] = {}
        if spec.metadata == "full":
            texts = self._describe(rows, small, large[:, 2], out, fail)
        shards, sizes = small[:, :2].T.tolist()
        return Located(shards, sizes, large[:, 0].tolist(), large[:, 1].view(np.uint64).tolist(), texts)

    def _describe(
        self, rows: Rows, small: np.ndarray, first: np.ndarray, out: Mapping[str, np.ndarray], fail: Fail
    ) -> dict[str, list[str]]:
        spec, split = self._spec, rows.split
        episode, step, offset = small[:, 2], small[:, 3], small[:, 4]
        length: np.ndarray = offset
        sound = (first >= 0) & (episode >= 0) & (episode < self._episodes[split])
        if spec.horizon is not None:
            num_steps = self._i4[self._num_steps[split] + np.where(sound, episode, 0)]
            length = np.minimum(spec.horizon, num_steps - step)
        sound &= (length >= 1) & (length <= spec.window) & (length <= self._steps[split] - first)
        if not sound.all():
            for row in np.flatnonzero(~sound).tolist():
                path = spec.splits[split[row]].records.path
                fail(row, FormatError(f"{path}: row {rows.record[row]} leads outside of its episodes or steps"))
            first, length, episode = (np.where(sound, numbers, 0) for numbers in (first, length, episode))
        out["episode"][:], out["step"][:], out["offset"][:] = episode, step, offset

        numbers = self._i4[self._languages[split] + first].tolist()
        texts = {"language": [self._language(*key) for key in zip(split.tolist(), numbers, strict=True)]}

        is_window = spec.action == "window"
        shape = (len(rows), spec.window, spec.action_size)
        mask = out["action_mask"] if is_window else np.empty(shape, bool)
        np.logical_and((self._window_steps < length[:, None])[:, :, None], self._action_mask[rows.member], out=mask)
        self._state_mask.take(rows.member, axis=0, out=out["state_mask"], mode="clip")
        window = out["action"] if is_window else np.empty(shape, np.float32)
        self._gather("action", split, first, mask, window)
        self._gather("state", split, first, out["state_mask"][:, None], out["state"][:, None])
        if self._by_split:
            self._fill_by_split(rows, episode, first, length, window, mask, out, texts)
        if not is_window:
            reduced = reduce_window(window, length, spec.action, self._modes[rows.member])
            reduced = reduced if self._scale is None else reduced * self._scale[rows.member]
            # A sum or mean needs all steps.
            valid = mask[:, 0] if spec.action == "first" else mask.sum(axis=1) == length[:, None]
            out["action"][:], out["action_mask"][:] = np.where(valid, reduced, 0), valid
        return texts

    def _gather(self, name: str, split: np.ndarray, first: np.ndarray, mask: np.ndarray, out: np.ndarray) -> None:
        """Copy a derived column to ``out``, n steps from ``first`` on; 0 where ``mask`` is False.

        Args:
            name: ``action`` or ``state``.
            split: Split of each row, int [b].
            first: Row of ``steps`` to begin at, int [b].
            mask: bool [b, n, size].
            out: float32 [b, n, size].
        """
        width = self._widths[name][split]
        start = self._bases[name][split] + first * width
        _, steps, size = out.shape
        index = (start[:, None] + np.arange(steps) * width[:, None])[:, :, None] + np.arange(size)
        # Masked values read number 0 of the region, which is finite: it is the magic of an Arrow file.
        index *= mask
        out[:] = self._f4[index]
        out *= mask

    def _fill_by_split(
        self,
        rows: Rows,
        episode: np.ndarray,
        first: np.ndarray,
        length: np.ndarray,
        window: np.ndarray,
        mask: np.ndarray,
        out: Mapping[str, np.ndarray],
        texts: dict[str, list[str]],
    ) -> None:
        """Fill in chosen vectors and additional columns, split by split."""
        spec, state = self._spec, out["state"]
        for column in spec.columns:
            if column.dtype is None:
                texts[column.name] = [""] * len(rows)
            else:
                out[column.name][:] = 0
                out[f"{column.name}_mask"][:] = False
        for number in np.unique(rows.split).tolist():
            split = spec.splits[number]
            here = np.flatnonzero(rows.split == number)
            action, vector = spec.actions[split.member], spec.states[split.member]
            if action.chosen:
                for step in range(spec.window):
                    inside = here[step < length[here]]
                    values, valid = action.take(split.steps, first[inside] + step)
                    window[inside, step, : action.size] = values
                    mask[inside, step, : action.size] &= valid
            if vector.chosen:
                values, valid = vector.take(split.steps, first[here])
                state[here, : vector.size] = values
                out["state_mask"][here, : vector.size] &= valid
            at = {"records": rows.record[here], "steps": first[here], "episodes": episode[here]}
            for column in spec.columns:
                if kind := column.kinds[split.member]:
                    _fill_column(split, kind, column, at[kind], here, out, texts)


def _language(splits: Sequence[SplitIndex], split: int, number: int) -> str:
    return splits[split].steps.text("language", number)


def _fill_column(
    split: SplitIndex,
    kind: str,
    column: Column,
    rows: np.ndarray,
    here: np.ndarray,
    out: Mapping[str, np.ndarray],
    texts: dict[str, list[str]],
) -> None:
    table = split.table(kind)  # type: ignore[arg-type]
    if column.dtype is None:
        for row, text in zip(here.tolist(), table.take_texts(column.column, rows), strict=True):
            texts[column.name][row] = text
        return
    values, valid = table.take(column.column, rows), table.valid(column.column, rows)
    if valid is not None:
        here, values = here[valid], values[valid]
    cells: Any = here
    if column.size is not None:
        # A single number here may be a vector in another dataset.
        values = values[:, None] if values.ndim == 1 else values
        cells = here, slice(values.shape[1])
    out[column.name][cells] = values
    out[f"{column.name}_mask"][cells] = True
