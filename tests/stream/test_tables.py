"""The sidecars of a shard as a batch takes them."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np

from stream.catalog import Catalog
from stream.mixed import MixedData, Options
from stream.mixture import Member
from stream.tables import Budget, ShardTables
from stream.vectors import gather


def tables_of(root: Path, name: str, budget: Budget) -> tuple[ShardTables, int, int]:
    """The tables of a dataset's first shard, and the sizes of action and state."""
    data = MixedData(root, [Member(name, "train", 1.0)], Options(), catalog=Catalog(root))
    spec = data.spec
    shard = data.views.cache[next(i for i, info in enumerate(data.views.shards) if info.split == "train")]
    [action], [state] = spec.actions, spec.states
    tables = ShardTables(shard, action=action, state=state, columns=(), offset=spec.offset, budget=budget)
    assert len(tables.num_steps) == shard.info.episodes  # kept by the tables, which do not keep the shard
    return tables, action.size, state.size


def vectors(tables: ShardTables, action: int, state: int) -> tuple[np.ndarray, np.ndarray]:
    rows = sum(int(steps) for steps in tables.num_steps)
    found = np.zeros((rows, action), np.float32), np.zeros((rows, state), np.float32)
    gather(tables.action, 0, rows, found[0])
    gather(tables.state, 0, rows, found[1])
    return found


def test_vectors_are_put_together_after_some_use_and_stay_the_same(oxe_root: Path) -> None:
    tables, action, state = tables_of(oxe_root, "droid", Budget())
    before = vectors(tables, action, state)
    assert len(tables.action) > 1
    for _ in range(20):
        tables.place(0)
    assert (len(tables.action), len(tables.state)) == (1, 1)
    for found, expected in zip(vectors(tables, action, state), before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_vectors_stay_apart_when_there_is_no_memory_for_them(oxe_root: Path) -> None:
    tables, *_ = tables_of(oxe_root, "droid", Budget(10))
    for _ in range(20):
        tables.place(0)
    assert len(tables.action) > 1


def test_memory_comes_back_with_its_owner() -> None:
    class Owner:
        pass

    budget, owner = Budget(100), Owner()
    assert budget.take(owner, 80)
    assert not budget.take(owner, 30)
    del owner
    gc.collect()
    assert budget.take(Owner, 100)
