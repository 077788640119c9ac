"""Augmentation with PyTorch: the pictures of the workers, within two levels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Augment, Frames, Workers, make_loader
from stream.loader.loader import Loader
from tests.stream.frameworks.device_frames import ToFloat, largest_difference, open_loader

torch = pytest.importorskip("torch", reason="torch is not installed")

from stream.torch import StreamDataset, to_device  # noqa: E402

STRONG = Augment(crop=(0.3, 1), rotate=30, translate=0.1, brightness=0.5, contrast=0.5, saturation=0.9, hue=0.5)
TENSORFLOW = Augment("openvla", hue=0.5, saturation=0.9, brightness=0.5)
AUGMENTS = ["openpi", "octo", "openvla", "lerobot", STRONG, TENSORFLOW]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("augment", AUGMENTS, ids=repr)
def test_the_device_gives_the_pictures_of_the_workers(frames_root: Path, augment: Any) -> None:
    loader = open_loader(frames_root, augment)
    batches = to_device(loader, "cpu", augment="device")
    for step in range(3):
        assert largest_difference(loader.batch_at(step), next(batches)) <= 2
    batches.close()


def test_workers_an_iterator_and_a_dataset_give_the_same_on_the_device(frames_root: Path) -> None:
    loader = open_loader(frames_root, "octo", num_workers=Workers(1))
    iterator = iter(loader)
    next(iterator)
    frames = loader.spec.frames
    dataset = StreamDataset(frames_root, "bridge,droid", batch_size=8, frames=frames)
    dataset.seek(1)
    for source in (iterator, dataset):
        batches = to_device(source, "cpu", augment="device")
        assert largest_difference(loader.batch_at(1), next(batches)) <= 2
        assert batches.get_state() == loader.state_at(2)
        batches.close()
    # The batch of the iterator, and two of the device, one of them ahead.
    assert dataset.state_dict()["step"] == 2 and loader.stats()["batches"] == 3


def test_frames_decoded_here_are_augmented_here(frames_root: Path) -> None:
    augment = Augment("openvla", without_geometry=["wrist"])
    choices: dict[str, Any] = {"cameras": ["primary", "wrist"], "edges": "repeat", "augment": augment}
    host, device = (
        make_loader(frames_root, "droid", batch_size=4, frames=Frames([-1, 0], **choices, decode=decode))
        for decode in ("host", "device")
    )
    assert largest_difference(host.batch_at(0), next(to_device(device, "cpu"))) <= 2
    assert largest_difference(host.batch_at(3), next(_from(device, 3))) <= 2
    np.testing.assert_array_equal(device.batch_on_host(0)["frames/wrist"], host.batch_at(0)["frames/wrist"])


def _from(loader: Loader, step: int) -> Any:
    iterator = iter(loader)
    iterator.seek(step)
    return to_device(iterator, "cpu")


def test_the_host_augments_by_default_and_without_operations(frames_root: Path) -> None:
    choices: list[tuple[Any, Any]] = [("octo", {}), (None, {"augment": "device"}), (Augment(), {"augment": "device"})]
    for augment, options in choices:
        loader = open_loader(frames_root, augment)
        assert largest_difference(loader.batch_at(0), next(to_device(loader, "cpu", **options))) == 0


def test_depth_moves_as_on_the_host() -> None:
    from stream.batch.pictures.augmentation import Augmentation
    from stream.batch.pictures.host import HostAugmenter
    from stream.frameworks.torch_augment import TorchAugmenter

    class Camera:
        frames, is_depth, shape = "depth", True, (24, 32)

    class Spec:
        cameras = (Camera(),)

    augmentation = Augmentation(STRONG, (True,), (3,), ((24, 32),))
    depth = np.random.default_rng(0).integers(0, 2**16, (5, 2, 24, 32)).astype(np.uint16)
    batch = {"depth": torch.from_numpy(depth), "sample": np.arange(5)}
    device, host = TorchAugmenter(Spec(), augmentation), HostAugmenter(augmentation)  # type: ignore[arg-type]
    moved = device.apply(batch, device.draw(batch))["depth"]
    amounts = host.draw(np.arange(5))[0]
    for row in range(5):
        for frame in range(2):
            host.apply(depth[row, frame], amounts, row)
    np.testing.assert_array_equal(moved.to(torch.int32).numpy(), depth)


def test_frames_that_a_transform_changed_are_an_error(frames_root: Path) -> None:
    loader = open_loader(frames_root, "octo", transforms=[ToFloat()])
    message = r"augment='device' needs frames/primary as the loader made it, .*torch.float32 \[8, 2, 64, 64, 3\]"
    with pytest.raises(ArgumentError, match=message):
        next(to_device(loader, "cpu", augment="device"))
    with pytest.raises(ArgumentError, match="augment='cuda'; expected one of 'host', 'device'"):
        to_device(loader, "cpu", augment="cuda")  # type: ignore[arg-type]
