"""The sidecars of a shard as a batch takes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stream.catalog import Catalog
from stream.mixed import MixedData, Options
from stream.mixture import Member
from stream.shards import OpenShard
from stream.tables import ShardTables


@pytest.fixture
def opened(oxe_root: Path) -> tuple[OpenShard, ShardTables, tuple[int, int]]:
    """A shard of a dataset, its tables, and the sizes of action and state."""
    data = MixedData(oxe_root, [Member("droid", "train", 1.0)], Options(), catalog=Catalog(oxe_root))
    spec = data.spec
    shard = data.views.cache[data.views.first_shards[0]]
    [action], [state] = spec.actions, spec.states
    tables = ShardTables(shard, action=action, state=state, columns=(), offset=spec.offset)
    return shard, tables, (action.size, state.size)


@pytest.mark.parametrize("horizon", [None, 1, 3, 100])
def test_all_records_at_once_are_those_one_by_one(
    opened: tuple[OpenShard, ShardTables, tuple[int, int]], horizon: int | None
) -> None:
    shard, tables, (action, state) = opened
    actions, states = (np.full((tables.rows, size + 2), 7, np.float32) for size in (action, state))
    tables.vectors(actions, states)
    texts, of_rows = tables.instructions()
    records = tables.records(horizon).tolist()
    assert len(records) == len(tables) == shard.info.records
    for record, (first, length, *place) in enumerate(records):
        window, here = np.full((200, action + 2), 7, np.float32), np.full(state + 2, 7, np.float32)
        found = tables.describe(record, horizon, window, here)
        assert found == (first, length, tuple(place), texts[of_rows[first]])
        np.testing.assert_array_equal(window[:length], actions[first : first + length])
        np.testing.assert_array_equal(here, states[first])
        assert (window[length:] == 7).all()
    assert tables.uses == len(records)
    assert any(texts)


def test_windows_end_with_the_episode(opened: tuple[OpenShard, ShardTables, tuple[int, int]]) -> None:
    shard, tables, _ = opened
    assert len(tables.num_steps) == shard.info.episodes
    first, length, episode, step, _ = tables.records(10_000).T
    assert (length == tables.num_steps[episode - tables.first_episode] - step).all()
    assert (first + length <= tables.rows).all()
