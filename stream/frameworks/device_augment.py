"""Augmentation of batches on a device, for every framework: the amounts, the order of operations, and the loader."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from stream.base.arguments import check_choice
from stream.base.errors import ArgumentError
from stream.batch.pictures.augmentation import Amounts, Augmentation
from stream.batch.spec import Batch, BatchSpec
from stream.frameworks.prefetch import begin
from stream.loader.iterator import LoaderIterator
from stream.loader.loader import Loader

MOST_PIXELS = 1 << 23
"""Pixels that are augmented together, which limits the memory to about 1 GB."""


class DeviceAugmenter(abc.ABC):
    """Base class of augmenting batches on a device.

    Args:
        spec: Cameras of the batches.
        augmentation: Amounts and operations.
    """

    def __init__(self, spec: BatchSpec, augmentation: Augmentation) -> None:
        self._augmentation = augmentation
        self._cameras = spec.cameras

    def draw(self, batch: Mapping[str, Any]) -> list[Amounts]:
        """Return the amounts of each camera for a batch of arrays, before it is moved.

        Raises:
            ArgumentError: A transform has changed the samples.
        """
        samples = batch.get("sample")
        if not isinstance(samples, np.ndarray):
            raise ArgumentError(f"augment='device' needs sample, and the batch has {', '.join(batch)}")
        return [self._augmentation.draw(camera, samples) for camera in range(len(self._cameras))]

    def apply(self, batch: Batch, amounts: Sequence[Amounts]) -> Batch:
        """Return the batch with augmented frames.

        Args:
            batch: Batch on the device: frames uint8 [b, F, H, W, 3], and depth uint16 [b, F, H, W].
            amounts: Result of ``draw``.

        Raises:
            ArgumentError: A transform has changed the frames.
        """
        augmented = {}
        for camera, camera_amounts in zip(self._cameras, amounts, strict=True):
            frames: Any = batch.get(camera.frames)
            dtype, shape = (getattr(frames, name, None) for name in ("dtype", "shape"))
            expected = "uint16" if camera.is_depth else "uint8"
            if str(dtype).removeprefix("torch.") != expected or tuple(shape or ())[2:4] != camera.shape:
                raise ArgumentError(
                    f"augment='device' needs {camera.frames} as the loader made it, and a transform returned "
                    f"{dtype} {list(shape or ())}; change frames after the transfer, or take augment='host'"
                )
            if not camera.is_depth:
                augmented[camera.frames] = self.augment(frames, camera_amounts) if 0 not in frames.shape else frames
            elif camera_amounts.matrices is not None:
                augmented[camera.frames] = self.move_depth(frames, camera_amounts.matrices)
        return {**batch, **augmented}

    @abc.abstractmethod
    def augment(self, frames: Any, amounts: Amounts) -> Any:
        """Return augmented frames, uint8 [b, F, H, W, 3]; black frames stay black."""

    @abc.abstractmethod
    def move_depth(self, depth: Any, matrices: np.ndarray) -> Any:
        """Return moved depth, uint16 [b, F, H, W], by matrices float64 [b, 2, 3]."""


def choose_augmentation(source: Any, augment: Literal["host", "device"]) -> tuple[Loader | None, Augmentation | None]:
    """Return the loader whose workers leave frames to the device, and the augmentation of the device; else None.

    Args:
        source: Loader, or an iterator or dataset that has one.
        augment: Place of the augmentation. Frames that the device decodes are augmented there in any case.
    """
    check_choice("augment", augment, ("host", "device"))
    loader = source if isinstance(source, Loader) else getattr(source, "loader", None)
    if not isinstance(loader, Loader):
        return None, None
    augmentation = loader.data.spec.augmentation
    if augmentation is None or (augment == "host" and loader.run_config.decode == "host"):
        return None, None
    return loader.augmenting_on_device(), augmentation


def iterate(source: Any, loader: Loader | None) -> LoaderIterator:
    """Return the iterator of a source; with a loader its own, at the step of the source, which is then closed."""
    if loader is None or isinstance(source, Loader):
        return begin(source if loader is None else loader)
    batches = iter(loader)
    batches.stop = source.stop
    batches.seek(source.step)
    source.close()
    return batches
