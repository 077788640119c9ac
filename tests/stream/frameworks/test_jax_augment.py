"""Augmentation with JAX: the pictures of the workers, within two levels, in any sharding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Augment, Workers
from tests.fixtures.command import REPOSITORY
from tests.stream.frameworks.device_frames import ToFloat, largest_difference, open_loader

jax = pytest.importorskip("jax", reason="jax is not installed")

from stream.jax import to_devices  # noqa: E402

STRONG = Augment(
    crop=(0.3, 1),
    rotate=30,
    translate=0.1,
    brightness=0.5,
    contrast=0.5,
    saturation=0.9,
    hue=0.5,
    sharpness=0.9,
    geometry="last",
)
TENSORFLOW = Augment("openvla", hue=0.5, saturation=0.9, brightness=0.5)
AUGMENTS = ["openpi", "octo", "openvla", "lerobot", STRONG, TENSORFLOW]


@pytest.mark.parametrize("augment", AUGMENTS, ids=repr)
def test_the_device_gives_the_pictures_of_the_workers(frames_root: Path, augment: Any) -> None:
    loader = open_loader(frames_root, augment)
    batches = to_devices(loader, augment="device")
    for step in range(3):
        assert largest_difference(loader.batch_at(step), next(batches)) <= 2
    batches.close()


def test_an_iterator_continues_at_its_step(frames_root: Path) -> None:
    loader = open_loader(frames_root, "openpi", num_workers=Workers(1))
    iterator = iter(loader)
    next(iterator)
    batches = to_devices(iterator, augment="device")
    assert largest_difference(loader.batch_at(1), next(batches)) <= 2
    assert batches.get_state() == loader.state_at(2)
    with pytest.raises(ValueError, match="this iterator is closed"):
        next(iterator)


def test_a_large_batch_is_augmented_in_parts(frames_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.frameworks.jax_augment.MOST_PIXELS", 3 * 2 * 64 * 64)
    loader = open_loader(frames_root, "openpi")
    assert largest_difference(loader.batch_at(0), next(to_devices(loader, augment="device"))) <= 2


def test_the_host_augments_by_default_and_without_operations(frames_root: Path) -> None:
    choices: list[tuple[Any, Any]] = [("octo", {}), (None, {"augment": "device"}), (Augment(), {"augment": "device"})]
    for augment, options in choices:
        loader = open_loader(frames_root, augment)
        assert largest_difference(loader.batch_at(0), next(to_devices(loader, **options))) == 0


def test_depth_moves_as_on_the_host_and_black_stays_black() -> None:
    from stream.batch.pictures.augmentation import Augmentation
    from stream.batch.pictures.host import HostAugmenter
    from stream.frameworks.jax_augment import JaxAugmenter

    # Large, so that positions in float32 would round to another pixel somewhere.
    class Depth:
        frames, is_depth, shape = "depth", True, (240, 320)

    class Colour:
        frames, is_depth, shape = "frames", False, (240, 320)

    class Spec:
        cameras = (Depth(), Colour())

    # An added brightness would make black grey.
    augment = Augment(library="tensorflow", crop=(0.3, 1), rotate=30, brightness=(0.3, 0.5))
    augmentation = Augmentation(augment, (True, True), (3, 4), ((240, 320),) * 2)
    random = np.random.default_rng(0)
    depth = random.integers(0, 2**16, (5, 1, 240, 320)).astype(np.uint16)
    frames = random.integers(0, 256, (5, 2, 240, 320, 3)).astype(np.uint8)
    frames[1, 0] = 0
    device, host = JaxAugmenter(Spec(), augmentation), HostAugmenter(augmentation)  # type: ignore[arg-type]
    batch = {"depth": jax.numpy.asarray(depth), "frames": jax.numpy.asarray(frames)}
    moved = device.apply(batch, device.draw({"sample": np.arange(5)}))
    amounts = host.draw(np.arange(5))
    for row in range(5):
        host.apply(depth[row, 0], amounts[0], row)
        for frame in frames[row]:
            host.apply(frame, amounts[1], row)
    np.testing.assert_array_equal(np.asarray(moved["depth"]), depth)
    assert np.abs(np.asarray(moved["frames"]).astype(int) - frames).max() <= 2
    assert not np.asarray(moved["frames"])[1, 0].any() and frames[1, 1].any()


_SHARDED = """
import json, sys
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from stream.jax import to_devices
from tests.stream.frameworks.test_jax_augment import largest_difference, open_loader

loader = open_loader(sys.argv[1], "openpi")
mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
result = []
for spec in (("data",), (("data", "model"),), ()):
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    batch = next(to_devices(loader, sharding, augment="device"))
    assert batch["frames/wrist"].sharding == batch["step"].sharding == sharding
    held = {int(np.abs(np.asarray(shard.data).astype(int) - loader.batch_at(0)["frames/wrist"][shard.index[0]]).max())
            for shard in batch["frames/wrist"].addressable_shards}
    result.append([largest_difference(loader.batch_at(0), batch), max(held)])
print(json.dumps(result))
"""


@pytest.mark.long
def test_each_device_augments_its_rows(frames_root: Path) -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = str(REPOSITORY)
    command = [sys.executable, "-c", _SHARDED, str(frames_root)]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True).stdout
    for differences in json.loads(output.splitlines()[-1]):
        assert max(differences) <= 2


def test_frames_that_a_transform_changed_are_an_error(frames_root: Path) -> None:
    loader = open_loader(frames_root, "octo", transforms=[ToFloat()])
    message = r"augment='device' needs frames/primary as the loader made it, .* float32 \[8, 2, 64, 64, 3\]"
    with pytest.raises(ArgumentError, match=message):
        next(to_devices(loader, augment="device"))
    with pytest.raises(ArgumentError, match="augment='gpu'; expected one of 'host', 'device'"):
        to_devices(loader, augment="gpu")  # type: ignore[arg-type]
