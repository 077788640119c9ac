"""The metadata of a batch: what the sidecars say of its rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np

from stream.format import FormatError
from stream.packed import PackedTables
from stream.point_lookup import PointLookup, RecordPlace
from stream.record_reader import Place
from stream.rows import Rows
from stream.shard_cache import ShardCache
from stream.shards import OpenShard
from stream.spec import BatchSpec
from stream.tables import ShardTables
from stream.vectors import mode_codes, reduce_window

_PACK_AFTER, _ROWS_A_LOOKUP = 8, 64
"""A shard is packed when what its records took to look up one by one is what packing it takes: so many lookups (13
microseconds more than of a packed one), and one for so many of its rows. Whatever comes after, that is at most twice
what would have been best."""
Fail = Callable[[int, Exception], None]
"""Called with a row of the batch that cannot be described, and why."""


class Described(NamedTuple):
    """What there is of the rows of a batch beside arrays, b of each: the texts by key, and where records of open shards
    lie, None where that is not known yet."""

    texts: dict[str, list[str]]
    records: list[Place | None]


class Describer:
    """Fills in the metadata of batches of a spec; one a process, safe to use from several threads."""

    def __init__(self, spec: BatchSpec, cache: ShardCache, lookup: PointLookup) -> None:
        self._spec = spec
        self._cache = cache
        self._lookup = lookup
        self._packed = None if spec.columns else PackedTables(spec)
        # By member, which values are real: [M, 1, A] and [M, S].
        members = [vector.size for vector in spec.actions]
        self._action_mask = np.arange(spec.action_size) < np.array(members)[:, None, None]
        members = [vector.size for vector in spec.states]
        self._state_mask = np.arange(spec.state_size) < np.array(members)[:, None]
        self._modes = np.stack([mode_codes(vector, spec.action_size) for vector in spec.actions])
        self._steps = np.arange(spec.window)[:, None]

    def describe(
        self,
        rows: Rows,
        out: Mapping[str, np.ndarray],
        fail: Fail,
        closed: Collection[int],
        found: dict[int, RecordPlace],
    ) -> Described:
        """Fill the arrays of a batch that hold metadata.

        Args:
            rows: of the batch, b.
            out: an array [b, ...] of each field.
            fail: told of the rows that cannot be described, whose arrays hold anything.
            closed: shards that are not to be opened if it can be helped; none if the batch has further columns.
            found: of rows in these, where their records lie is added here.
        """
        spec, cache = self._spec, self._cache
        count = len(rows)
        window, state = self._window(count, out), out["state"]
        if self._packed is not None:
            left, steps, places, language, records = self._packed.find(rows.shard, rows.record, window, state)
        else:
            window[:] = 0
            state[:] = 0
            steps, places, language = np.zeros(count, np.int64), np.zeros((count, 3), np.int64), [""] * count
            left, records = list(range(count)), [None] * count
        texts: dict[str, list[str]] = {column.name: [""] * count for column in spec.columns if column.dtype is None}
        for column in spec.columns:
            if column.dtype is not None:
                out[column.name][:] = 0
                out[f"{column.name}_mask"][:] = False
        if left:
            with np.errstate(over="ignore", invalid="ignore"):
                for row in left:
                    index, record = int(rows.shard[row]), int(rows.record[row])
                    if index in closed and (said := self._lookup.describe(index, record, window[row], state[row])):
                        steps[row], places[row], language[row], found[row] = said
                        continue
                    shard = cache[index]
                    try:
                        tables, found_row = self._look_up(index, shard, record, window[row], state[row])
                        step_row, steps[row], places[row], language[row] = found_row
                        if tables.columns:
                            self._fill_columns(tables, row, record, step_row, found_row[2][0], out, texts)
                    except (FormatError, OSError) as error:
                        fail(row, error)
        self._fill(rows.member, window, steps, places, out)
        return Described({"language": language, **texts}, records)

    def are_ready(self, shard: np.ndarray) -> np.ndarray:
        """Return of each of some shards whether ``describe_ready`` takes its records, bool alike."""
        assert self._packed is not None, "with further columns nothing is looked up before its batch"
        ready = self._packed.has(shard)
        for place in np.argwhere(~ready).tolist():
            ready[*place] = self._cache.find_open(shard.item(*place)) is not None
        return ready

    def describe_ready(self, rows: Rows, out: Mapping[str, np.ndarray]) -> tuple[Described, list[int]]:
        """Fill the same arrays of rows whose shards are packed, or open; returns those that cannot be described after
        all too."""
        assert self._packed is not None, "with further columns nothing is looked up before its batch"
        window, state = self._window(len(rows), out), out["state"]
        left, steps, places, language, records = self._packed.find(rows.shard, rows.record, window, state)
        failed = []
        with np.errstate(over="ignore", invalid="ignore"):
            for row in left:
                index = rows.shard.item(row)
                shard = self._cache.find_open(index)
                try:
                    if shard is None:
                        raise FormatError("closed meanwhile")
                    _, found = self._look_up(index, shard, rows.record.item(row), window[row], state[row])
                    _, steps[row], places[row], language[row] = found
                except (FormatError, OSError):
                    # Whoever asks for the batch is told.
                    failed.append(row)
        self._fill(rows.member, window, steps, places, out)
        return Described({"language": language}, records), failed

    def _look_up(
        self, index: int, shard: OpenShard, record: int, window: np.ndarray, state: np.ndarray
    ) -> tuple[ShardTables, tuple[int, int, tuple[int, int, int], str]]:
        """Look up one record of an open shard, which is packed if that is worth it by now; see
        ``ShardTables.describe``."""
        tables = self._tables(shard)
        found = tables.describe(record, self._spec.horizon, window, state)
        if self._packed is not None and tables.uses == _PACK_AFTER + (len(tables) + tables.rows) // _ROWS_A_LOOKUP:
            self._packed.add(index, tables)
        return tables, found

    def _window(self, count: int, out: Mapping[str, np.ndarray]) -> np.ndarray:
        """Where the actions of all steps of the windows go."""
        if self._spec.action == "window":
            return out["action"]
        return np.empty((count, self._spec.window, self._spec.action_size), np.float32)

    def _fill(
        self,
        member: np.ndarray,
        window: np.ndarray,
        steps: np.ndarray,
        places: np.ndarray,
        out: Mapping[str, np.ndarray],
    ) -> None:
        """Fill what follows from the dataset of each row, its window and how many steps of that are real, and from its
        episode, step and offset."""
        spec = self._spec
        if spec.action != "window":
            out["action"][:] = reduce_window(window, steps, spec.action, self._modes[member])
            out["action_mask"][:] = self._action_mask[member, 0]
        else:
            real_steps = self._steps < steps[:, None, None]
            np.logical_and(real_steps, self._action_mask.take(member, axis=0), out=out["action_mask"])
        self._state_mask.take(member, axis=0, out=out["state_mask"], mode="clip")
        out["episode"][:], out["step"][:], out["offset"][:] = places.T

    def _fill_columns(
        self,
        tables: ShardTables,
        row: int,
        record: int,
        step_row: int,
        episode: int,
        out: Mapping[str, np.ndarray],
        texts: dict[str, list[str]],
    ) -> None:
        found = {"episodes": episode - tables.first_episode, "steps": step_row, "records": record}
        for column, (kind, values, valid) in zip(self._spec.columns, tables.columns, strict=True):
            place = found.get(kind or "")
            if place is None or (valid is not None and not valid[place]):
                continue
            if column.dtype is None:
                texts[column.name][row] = values[place].as_py() or ""
            elif column.size is None:
                out[column.name][row] = values[place, 0]
                out[f"{column.name}_mask"][row] = True
            else:
                out[column.name][row, : values.shape[1]] = values[place]
                out[f"{column.name}_mask"][row, : values.shape[1]] = True

    def _tables(self, shard: OpenShard) -> ShardTables:
        """What is looked up in a shard; made with its first record."""
        if isinstance(shard.prepared, ShardTables):
            return shard.prepared
        spec, member = self._spec, shard.info.member
        shard.prepared = tables = ShardTables(
            shard,
            action=spec.actions[member],
            state=spec.states[member],
            columns=spec.columns,
            offset=spec.offset,
        )
        return tables
