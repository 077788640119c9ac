"""JAX: batches on devices, their order and state, and checkpoints by Grain and Orbax."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest

import stream
from stream.base.errors import StateError
from stream.loader.loader import Loader
from tests.fixtures.command import REPOSITORY

jax = pytest.importorskip("jax", reason="jax is not installed")

import stream.jax  # noqa: E402

MIXTURE = {"bridge": 2, "rt1": 1}


@pytest.fixture
def loader(oxe_root: Path) -> Loader:
    return stream.make_loader(
        oxe_root, MIXTURE, batch_size=4, num_workers=stream.Workers(threads=1), **stream.jax.ranks()
    )


def _assert_same(batch: dict[str, Any], expected: dict[str, Any]) -> None:
    assert batch.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, np.ndarray):
            assert isinstance(batch[key], jax.Array)
            np.testing.assert_array_equal(np.asarray(batch[key]), value, err_msg=key)
        else:
            assert batch[key] == value


def _steps(batches: Any, count: int) -> list[int]:
    return [int(batch["sample"][0]) // 4 for _, batch in zip(range(count), batches, strict=False)]


def test_batches_that_a_user_keeps_hold_what_the_loader_gave(loader: Loader) -> None:
    kept = [batch for _, batch in zip(range(25), stream.jax.to_devices(loader, prefetch=2), strict=False)]
    for step, batch in enumerate(kept):
        _assert_same(batch, loader.batch_at(step))


def test_batches_that_nobody_keeps_leave_the_ring_as_it_is(loader: Loader) -> None:
    batches = stream.jax.to_devices(loader)
    slots = []
    for _ in range(60):
        next(batches)["frames"].block_until_ready()
        slots.append(loader.stats()["ring_slots"])
    assert slots[-1] == slots[20]


def test_samples_beyond_32_bits_keep_all_bits(loader: Loader) -> None:
    batches = stream.jax.to_devices(loader)
    batches.seek(2**31)
    assert np.asarray(next(batches)["sample"]).tolist() == [4 * 2**31 + row for row in range(4)]


def test_the_state_is_that_of_the_batches_handed_out(loader: Loader) -> None:
    batches = stream.jax.to_devices(loader, prefetch=3)
    assert _steps(batches, 2) == [0, 1]
    state = json.loads(json.dumps(batches.get_state()))
    assert state["step"] == 2
    assert _steps(batches, 3) == [2, 3, 4]
    batches.set_state(state)
    assert _steps(batches, 2) == [2, 3]


def test_jit_takes_the_numbers_of_a_batch(loader: Loader) -> None:
    batch = next(stream.jax.to_devices(loader))
    numbers = {key: value for key, value in batch.items() if isinstance(value, jax.Array)}
    total = jax.jit(lambda b: b["frames"].astype("float32").sum())(numbers)
    assert total == loader.batch_at(0)["frames"].astype(np.float64).sum()


_FOUR_DEVICES = """
import sys, jax, numpy as np, stream.jax
from jax.sharding import NamedSharding, PartitionSpec
sharding = NamedSharding(jax.make_mesh((4,), ("data",)), PartitionSpec("data"))
loader = stream.make_loader(sys.argv[1], "bridge", batch_size=8, **stream.jax.ranks(sharding))
kept = [batch for _, batch in zip(range(6), stream.jax.to_devices(loader, sharding))]
for step, batch in enumerate(kept):
    frames = loader.batch_at(step)["frames"]
    assert batch["frames"].sharding == sharding and len(batch["sample"].addressable_shards) == 4
    for shard in batch["frames"].addressable_shards:
        assert shard.data.shape[0] == 2
        np.testing.assert_array_equal(np.asarray(shard.data), frames[shard.index])
for wrong in ({"batch_size": 6}, {"batch_size": 4, "num_epochs": 1}):
    loader = stream.make_loader(sys.argv[1], "bridge", split="train[:1]", **wrong)
    try:
        stream.jax.to_devices(loader, sharding)
    except stream.ArgumentError as error:
        assert str(error).endswith("take a sharding of only the rows, and a batch_size that its devices divide")
        print(loader.sizes["bridge"], str(error).partition(" and ")[0])
"""


@pytest.mark.long
def test_a_sharding_divides_the_rows_among_devices_or_is_refused_beforehand(oxe_root: Path) -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", _FOUR_DEVICES, str(oxe_root)]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, env=environment, timeout=300)
    assert done.stdout.splitlines() == ["5 batches of 6 rows", "5 batches of 1 rows"]


@pytest.mark.parametrize("method", ["mean_std", "q01_q99"])
@pytest.mark.parametrize("reduce", [None, "first"])
def test_normalising_on_a_device_gives_what_normalising_arrays_gives(oxe_root: Path, method: Any, reduce: Any) -> None:
    loader = stream.make_loader(oxe_root, "oxe29", batch_size=58, action=stream.Vector(reduce=reduce))
    normalize = stream.Normalize(loader, method=method)
    batch = {key: value for key, value in loader.batch_at(0).items() if key != "language"}
    expected = normalize.map(batch)
    for apply in (stream.jax.normalize(normalize.tables), jax.jit(stream.jax.normalize(normalize.tables))):
        result = apply(batch)
        for key in ("action", "state"):
            assert result[key].dtype == np.float32
            np.testing.assert_allclose(np.asarray(result[key]), expected[key], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("on_device", [False, True])
def test_grain_s_handler_saves_and_restores_an_iterator(loader: Loader, tmp_path: Path, on_device: bool) -> None:
    epath = pytest.importorskip("etils.epath")

    def make() -> Any:
        return stream.jax.to_devices(loader) if on_device else iter(loader)

    first, second = make(), make()
    assert _steps(first, 3) == [0, 1, 2]
    handler = grain.checkpoint.CheckpointHandler()
    handler.save(epath.Path(tmp_path), item=first)
    handler.restore(epath.Path(tmp_path), item=second)
    assert _steps(second, 2) == _steps(first, 2) == [3, 4]


@pytest.mark.parametrize("on_device", [False, True])
def test_orbax_saves_an_iterator_with_the_model(oxe_root: Path, tmp_path: Path, on_device: bool) -> None:
    ocp = pytest.importorskip("orbax.checkpoint", reason="orbax is not installed")

    def make(seed: int = 0) -> Any:
        loader = stream.make_loader(oxe_root, MIXTURE, batch_size=4, seed=seed)
        return stream.jax.to_devices(loader) if on_device else iter(loader)

    first, second = make(), make()
    model = {"weight": jax.numpy.arange(3.0)}
    assert _steps(first, 3) == [0, 1, 2]
    with ocp.CheckpointManager(tmp_path) as manager:
        items = {"model": ocp.args.StandardSave(model), "loader": grain.checkpoint.CheckpointSave(first)}
        manager.save(3, args=ocp.args.Composite(**items))
        manager.wait_until_finished()
        items = {"model": ocp.args.StandardRestore(model), "loader": grain.checkpoint.CheckpointRestore(second)}
        restored = manager.restore(3, args=ocp.args.Composite(**items))
        assert _steps(restored.loader, 2) == [3, 4]
        with pytest.raises(StateError, match="seed: 1 was 0"):
            manager.restore(3, args=ocp.args.Composite(loader=grain.checkpoint.CheckpointRestore(make(seed=1))))
