"""A DataModule for Lightning, whose checkpoints hold the loader's state."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from stream.base.arguments import check_choice
from stream.base.errors import ArgumentError
from stream.base.extras import missing
from stream.batch.spec import Batch
from stream.frameworks.prefetch import PrefetchIterator
from stream.frameworks.torch import StreamDataset
from stream.frameworks.torch_augment import TorchAugmenter
from stream.frameworks.torch_carriers import OnHost
from stream.loader.loader import Loader


def _import_lightning() -> Any:
    """Import the package in use, as a Trainer takes only DataModules of its own package."""
    module_names = ["lightning.pytorch", "pytorch_lightning"]
    for module_name in sorted(module_names, key=lambda module_name: module_name not in sys.modules):
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name not in (module_name, module_name.partition(".")[0]):
                raise
    raise ModuleNotFoundError(missing("lightning", "lightning", by="StreamDataModule"), name="lightning")


_pl = _import_lightning()


class StreamDataModule(_pl.LightningDataModule):  # type: ignore[name-defined]
    """Batches for training and validation.

    Training has no end without ``num_steps``, the batches of an epoch: set the Trainer's ``max_steps`` or
    ``limit_train_batches``. Each epoch continues where the last epoch ended. Each validation has the same batches.
    ``fit(..., ckpt_path=...)`` continues after the last batch that was trained on.

    Args:
        root: As for ``stream.make_loader``.
        mixture: As for ``stream.make_loader``.
        batch_size: As for ``stream.make_loader``.
        split: Split of training.
        val_split: Split of validation, such as the role ``"val"`` of a mixture; None for no validation.
        val_steps: Batches of a validation; by default one epoch of the split, rounded up.
        augment: ``host`` augments frames in the workers; ``device`` where the Trainer moves batches, with the same
            amounts, also for validation.
        arguments: All other arguments of ``StreamDataset``, which finds the ranks.

    Raises:
        ArgumentError: ``val_steps`` without ``val_split``; from ``setup``, as for ``make_loader``.
    """

    def __init__(
        self,
        root: str | Path,
        mixture: str | Path | Mapping[str, Any],
        *,
        batch_size: int,
        split: str = "train",
        val_split: str | None = None,
        val_steps: int | None = None,
        augment: Literal["host", "device"] = "host",
        **arguments: Any,
    ) -> None:
        super().__init__()
        check_choice("augment", augment, ("host", "device"))
        if val_steps is not None and val_split is None:
            raise ArgumentError(f"val_steps={val_steps!r} without val_split; give the split of validation")
        self._arguments = {"root": root, "mixture": mixture, "batch_size": batch_size, **arguments}
        self._split = split
        self._val_split = val_split
        self._val_steps = val_steps
        self._augment = augment
        self._train_batches: _Batches | None = None
        self._val_batches: _Batches | None = None
        self._train: StreamDataset | None = None
        # The step is the number of batches that the Trainer counts, unless a state was loaded without its counts.
        self._ahead = 0
        self._loaded: int | None = None

    @property
    def loader(self) -> Loader:
        """The loader of training."""
        return self._training().loader

    @property
    def step(self) -> int:
        """Number of batches trained on, which is the step of the next batch."""
        return self._loaded if self._loaded is not None else self._ahead + self._processed()

    def setup(self, stage: str) -> None:
        """Open the data and find the ranks; Lightning calls this when the process group exists."""
        if stage == "fit":
            self._training().find_ranks()

    def train_dataloader(self) -> Any:
        """Return the batches from the current step on."""
        dataset = self._training()
        self._train_batches = _Batches(dataset, self._begin, dataset.loader.num_steps, augment=self._augment)
        return self._train_batches

    def val_dataloader(self) -> Any:
        """Return the batches of validation, or none."""
        if self._val_split is None:
            return []
        dataset = StreamDataset(**{**self._arguments, "num_steps": self._val_steps}, split=self._val_split)
        num_steps = self._val_steps or dataset.loader.steps_per_epoch
        self._val_batches = _Batches(dataset, lambda: 0, num_steps, augment=self._augment)
        return self._val_batches

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """Return the batch on a device, with augmented frames if the device augments."""
        moved_batch = super().transfer_batch_to_device(batch, device, dataloader_idx)
        batches = self._train_batches if self.trainer is None or self.trainer.training else self._val_batches
        if batches is None or batches.augmenter is None:
            return moved_batch
        arrays = {key: value.numpy() for key, value in batch.items() if key == "sample"}
        return batches.augmenter.apply(moved_batch, batches.augmenter.draw(arrays))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of training, for the Trainer's checkpoint."""
        return {"train": self.loader.state_at(self.step)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint; raises StateError if it belongs to another order of samples."""
        dataset = self._training()
        dataset.load_state_dict(state_dict["train"])
        self._loaded = dataset.step

    def _begin(self) -> int:
        """Return the step at which training continues."""
        if self._loaded is not None:
            # Not in load_state_dict: the Trainer restores its counts after the states of data modules.
            self._ahead, self._loaded = self._loaded - self._processed(), None
        return self.step

    def _training(self) -> StreamDataset:
        if self._train is None:
            self._train = StreamDataset(**self._arguments, split=self._split)
        return self._train

    def _processed(self) -> int:
        # Processed, not fetched: the Trainer fetches one more batch, and the current one may fail.
        return int(self.trainer.fit_loop.epoch_loop.batch_progress.total.processed) if self.trainer is not None else 0


class _Batches:
    """Batches of a dataset, ``num_steps`` of them or without end.

    Workers start with the first batch, since the Trainer makes iterators that it does not use, and end with the
    iterator.

    Attributes:
        augmenter: Augmenter of the batches on a device; None if the workers augment, or nothing is augmented.

    Raises:
        ArgumentError: The device augments frames that stay encoded.
    """

    def __init__(
        self,
        dataset: StreamDataset,
        begin: Callable[[], int],
        num_steps: int | None,
        *,
        augment: Literal["host", "device"],
    ) -> None:
        self._dataset = dataset
        self._begin = begin
        self._num_steps = num_steps
        self._augment = augment
        spec, is_encoded = dataset.loader.data.spec, dataset.loader.run_config.decode == "device"
        if augment == "device" and is_encoded:
            raise ArgumentError(
                "augment='device' with decode='device': the Trainer moves batches without decoding them; take "
                "decode='host'"
            )
        self.augmenter: TorchAugmenter | None = None
        if augment == "device" and spec.augmentation is not None:
            self.augmenter = TorchAugmenter(spec, spec.augmentation)

    def __iter__(self) -> Iterator[Batch]:
        self._dataset.seek(self._begin())
        with contextlib.closing(self._iterate()) as batches:
            yield from itertools.islice(batches, self._num_steps)

    def _iterate(self) -> PrefetchIterator:
        if self.augmenter is None:
            return iter(self._dataset)
        loader = self._dataset.find_ranks().augmenting_on_device()
        return self._dataset.carry(OnHost(), prefetch=0, loader=loader)

    def __len__(self) -> int:
        if self._num_steps is None:
            raise TypeError("training has no end")
        return self._num_steps
