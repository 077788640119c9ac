"""The Trainer of transformers: batches as they are, and the loader's state in its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stream.base.errors import ArgumentError
from stream.batch.spec import Batch
from stream.frameworks.torch import StreamDataset, to_device

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "StreamTrainerMixin needs transformers, which is not installed: pip install -c constraints.txt transformers",
        name=error.name,
    ) from None


class StreamTrainerMixin:
    """Mix-in of a ``transformers.Trainer`` whose ``train_dataset`` and ``eval_dataset`` may be ``StreamDataset``.

        class PolicyTrainer(StreamTrainerMixin, Trainer): ...

        PolicyTrainer(model, args, train_dataset=StreamDataset(root, mixture, batch_size=256)).train()

    Training takes the batches of the dataset as they are: ``batch_size`` is the global batch of one forward pass, and
    the Trainer's ``per_device_train_batch_size``, ``data_collator`` and ``dataloader_num_workers`` have no effect on
    them. ``max_steps`` is needed; ``num_steps`` of the dataset is the length of an epoch in batches.

    Checkpoints have the state of the dataset in ``trainer_state.json``. ``train(resume_from_checkpoint=...)`` continues
    with the next batch at once: it seeks, whatever ``ignore_data_skip`` says, and reads nothing again. It may have
    another number of processes. A checkpoint without such a state continues at ``global_step`` times
    ``gradient_accumulation_steps``.

    Other datasets are loaded as without the mix-in.
    """

    def get_train_dataloader(self: Any) -> Any:
        """Return the batches of ``train_dataset`` from its current step on."""
        if not isinstance(self.train_dataset, StreamDataset):
            return super().get_train_dataloader()  # type: ignore[misc]
        num_steps, accumulated = self.train_dataset.loader.num_steps, self.args.gradient_accumulation_steps
        if num_steps is not None and num_steps % accumulated:
            # The Trainer does not step at the end of an epoch that it resumes in the middle.
            raise ArgumentError(
                f"num_steps={num_steps} of the StreamDataset, and gradient_accumulation_steps={accumulated}; give a "
                "multiple, as a step of the optimizer takes batches of one epoch"
            )
        # Skipping would read the batches of all earlier steps.
        self.args.ignore_data_skip = True
        # A new one: the Trainer takes what a callback of an earlier training has as a loaded state.
        self.remove_callback(StreamStateCallback)
        self.add_callback(StreamStateCallback())
        return _Batches(self.train_dataset, self.args.device)

    def get_eval_dataloader(self: Any, eval_dataset: Any = None) -> Any:
        """Return the batches of a dataset of evaluation, the same every time; raises ArgumentError without an end."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        dataset = self.eval_dataset[dataset] if isinstance(dataset, str) else dataset
        if not isinstance(dataset, StreamDataset):
            return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]
        if dataset.loader.num_steps is None:
            raise ArgumentError("the StreamDataset of evaluation has no end; give it num_steps, or num_epochs=1")
        return _Batches(dataset, self.args.device, repeats=True)


class StreamStateCallback(TrainerCallback, ExportableState):
    """Callback that puts the state of the training's dataset into ``trainer_state.json``, and takes it from there."""

    def __init__(self) -> None:
        self.dataset: StreamDataset | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        """Move the dataset to the step of the checkpoint, which the Trainer has loaded by now."""
        # A checkpoint without the callback has no entry, and the Trainer only replaces entries.
        entry = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        saved = entry["attributes"]["loader_state"]
        self.dataset = train_dataloader.dataset
        if saved is None:
            self.dataset.seek(state.global_step * args.gradient_accumulation_steps)
        else:
            self.dataset.load_state_dict(saved)

    def state(self) -> dict[str, Any]:
        """Return the state for ``trainer_state.json``."""
        loader_state = None if self.dataset is None else self.dataset.state_dict()
        return {"args": {}, "attributes": {"loader_state": loader_state}}


class _Batches:
    """Batches on the device of a Trainer, which knows no ``set_epoch``: that would lose the restored step."""

    def __init__(self, dataset: StreamDataset, device: Any, *, repeats: bool = False) -> None:
        self.dataset = dataset
        self._device = device
        self._repeats = repeats

    def __iter__(self) -> Iterator[Batch]:
        if self._repeats:
            self.dataset.seek(0)
        return to_device(self.dataset, self._device)

    def __len__(self) -> int:
        num_steps = self.dataset.loader.num_steps
        if num_steps is None:
            raise TypeError("training has no end")
        return num_steps
