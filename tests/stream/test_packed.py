"""Metadata of shards that are used often, of all together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stream.metadata
from stream.catalog import Catalog
from stream.metadata import Describer
from stream.mixed import MixedData, Options, open_mixture
from stream.mixture import Member
from stream.packed import PackedTables
from stream.point_lookup import PointLookup
from stream.ring import empty_array
from stream.rows import Rows
from stream.shard_cache import ShardCache
from stream.spec import BatchSpec
from stream.tables import ShardTables

ROWS = 600


def rows_of(data: MixedData) -> Rows:
    return data.plan.rows(data.plan.batch_samples(0, ROWS))


def describe(describer: Describer, spec: BatchSpec, rows: Rows) -> dict[str, Any]:
    """The metadata of a batch, in memory that held something else."""
    out = {name: empty_array(len(rows), *field) for name, field in spec.fields().items() if name != "frames"}
    for values in out.values():
        values[...] = 77

    def fail(row: int, error: Exception) -> None:
        raise AssertionError(f"row {row}: {error}")

    found = describer.describe(rows, out, fail, set(), {})
    return {**{name: values for name, values in out.items() if name not in ("sample", "dataset")}, **found.texts}


def describer_of(spec: BatchSpec) -> Describer:
    cache = ShardCache(spec.shards)
    return Describer(spec, cache, PointLookup(spec, cache))


def tables_of(data: MixedData, shard: int) -> ShardTables:
    spec, opened = data.spec, data.views.cache[shard]
    member = opened.info.member
    return ShardTables(opened, action=spec.actions[member], state=spec.states[member], columns=(), offset=spec.offset)


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(horizon=3),
        Options(horizon=40, action="mean"),
        Options(action="sum"),
        Options(action="first", samples_per_episode=2),
    ],
)
def test_metadata_are_those_of_the_rows_one_by_one(
    oxe_root: Path, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_mixture(oxe_root, "oxe29", split="train", options=options)
    spec, rows = data.spec, rows_of(data)
    alone = describer_of(spec)
    monkeypatch.setattr(stream.metadata, "_PACK_AFTER", 10**9)
    expected = describe(alone, spec, rows)
    monkeypatch.setattr(stream.metadata, "_PACK_AFTER", 3)
    packing = describer_of(spec)
    assert packing._packed is not None
    window, state = (
        np.empty((ROWS, *shape), np.float32) for shape in ((spec.window, spec.action_size), (spec.state_size,))
    )
    shares = []
    for _ in range(3):
        found = describe(packing, spec, rows)
        assert found.keys() == expected.keys()
        for name, values in found.items():
            np.testing.assert_array_equal(values, expected[name], err_msg=name)
        shares.append(1 - len(packing._packed.find(rows.shard, rows.record, window, state).left) / ROWS)
    # Those of shards with fewer than three rows are left.
    assert shares[0] > 0.9
    assert shares[2] == 1.0


@pytest.mark.parametrize("rows_a_lookup", [10**9, 10])
def test_a_shard_is_packed_after_lookups_that_grow_with_its_rows(
    oxe_root: Path, rows_a_lookup: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream.metadata, "_PACK_AFTER", 5)
    monkeypatch.setattr(stream.metadata, "_ROWS_A_LOOKUP", rows_a_lookup)
    data = MixedData(oxe_root, [Member("bridge", "train", 1.0)], Options(), catalog=Catalog(oxe_root))
    row = data.plan.rows(np.arange(1))
    tables = tables_of(data, row.shard.item())
    worth = 5 + (len(tables) + tables.rows) // rows_a_lookup
    assert (worth > 5) == (rows_a_lookup == 10)
    describer = describer_of(data.spec)
    assert describer._packed is not None
    window, state = (
        np.empty((1, *shape), np.float32)
        for shape in ((data.spec.window, data.spec.action_size), (data.spec.state_size,))
    )
    for lookup in range(1, worth + 2):
        describe(describer, data.spec, row)
        there = not describer._packed.find(row.shard, row.record, window, state).left
        assert there == (lookup >= worth), lookup


def test_shards_without_room_are_left_out(oxe_root: Path) -> None:
    data = MixedData(
        oxe_root, [Member(name, "train", 1.0) for name in ("bridge", "droid")], Options(), catalog=Catalog(oxe_root)
    )
    spec, rows = data.spec, rows_of(data)
    chosen = np.unique(rows.shard).tolist()
    first = tables_of(data, chosen[0])
    # One more stands for none.
    needed = (1 + max(len(first), first.rows)) * (8 * 9 + 4 * (spec.action_size + spec.state_size))
    packed = PackedTables(spec, needed)
    assert packed.add(chosen[0], first)
    assert packed.add(chosen[0], first)  # is there already, and takes no more
    assert not packed.add(chosen[1], tables_of(data, chosen[1]))
    assert not PackedTables(spec, needed - 1).add(chosen[0], first)

    window = np.full((ROWS, spec.window, spec.action_size), 77, np.float32)
    state = np.full((ROWS, spec.state_size), 77, np.float32)
    found = packed.find(rows.shard, rows.record, window, state)
    there = rows.shard == chosen[0]
    assert found.left == np.flatnonzero(~there).tolist()
    assert 0 < len(found.left) < ROWS
    for values in (found.length, found.place, window, state):
        assert not values[~there].any()
    assert all(not found.language[row] for row in found.left)
    assert (found.length[there] >= 1).all()
