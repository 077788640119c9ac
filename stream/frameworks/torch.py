"""PyTorch: a dataset, batches on a device, and normalisation on it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np

from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError
from stream.base.extras import imports_of
from stream.batch.spec import Batch
from stream.frameworks.device_augment import choose_augmentation, iterate
from stream.frameworks.prefetch import Carrier, PrefetchIterator
from stream.frameworks.torch_augment import TorchAugmenter
from stream.frameworks.torch_carriers import Decoder, OnCuda, OnHost
from stream.frameworks.torch_ranks import ranks
from stream.loader.iterator import LoaderIterator
from stream.loader.loader import Loader
from stream.loader.opening import make_loader
from stream.statistics.affine import Affine, apply_tables

with imports_of("torch", by="stream.torch"):
    import torch
    import torch.utils.data

_SHARDING = frozenset({"DataLoaderDispatcher", "DataLoaderShard", "IterableDatasetShard"})
"""Classes of accelerate, and of transformers, that give each process some of the batches of a dataset."""
_PARTS = tuple(field.name for field in fields(Affine))


class StreamDataset(torch.utils.data.IterableDataset[Batch]):
    """Batches of ``make_loader`` as dicts of tensors.

    Each element is a batch already: iterate it with ``for``, ``DataLoader(dataset, batch_size=None)`` or torchdata's
    ``StatefulDataLoader(dataset, batch_size=None)``. The dataset has its own decoding processes (``num_workers``):
    leave the DataLoader's ``num_workers`` at 0.

    An iteration continues with the batch after the last returned batch. With ``num_steps`` it ends with its pass: pass
    n has the steps from ``n * num_steps`` on. To repeat a pass, as in validation, call ``set_epoch``. With
    ``num_epochs`` the samples start again after the last sample.

    Args:
        root: As for ``make_loader``.
        mixture: As for ``make_loader``.
        batch_size: Rows of the global batch, of all ranks together.
        arguments: All other arguments of ``make_loader``. Without ``rank`` and ``world_size`` each iteration finds them
            when it starts, with ``ranks``.

    Attributes:
        loader: The ``Loader``; replaced when an iteration finds other ranks.
        step: Step of the next batch.

    Raises:
        ArgumentError: As for ``make_loader``; from ``iter``, in a DataLoader with a ``batch_size``, or one that shards
            or dispatches batches, as Accelerate prepares it.
        RuntimeError: From ``iter``, in a worker process of a DataLoader.
    """

    def __init__(
        self, root: str | Path, mixture: str | Path | Mapping[str, Any], *, batch_size: int, **arguments: Any
    ) -> None:
        super().__init__()
        self.loader: Loader = make_loader(root, mixture, batch_size=batch_size, **arguments)
        self.step = 0
        self._start: int | None = None
        self._first = 0
        self._finds_ranks = not self.loader.knows_ranks

    def __iter__(self) -> PrefetchIterator:
        _check_callers(sys._getframe(1))
        return self.carry(OnHost(), prefetch=0)

    def carry(self, carrier: Carrier, *, prefetch: int, loader: Loader | None = None) -> PrefetchIterator:
        """Return an iterator like ``iter``, with batches moved by a carrier of ``to_device``.

        Args:
            carrier: Carrier.
            prefetch: Batches to move before they are requested.
            loader: Loader of the batches, if the carrier changes them; by default this dataset's.
        """
        if torch.utils.data.get_worker_info() is not None:
            raise RuntimeError(
                "StreamDataset was iterated in a worker process of a DataLoader, where each worker would give the same "
                "batches; give the DataLoader num_workers=0 and StreamDataset num_workers=N, which starts faster ones"
            )
        source = _Pass(self.find_ranks() if loader is None else loader)
        source.seek(self.step if self._start is None else self._start)
        self.step, self._first, self._start = source.step, source.step, None
        return PrefetchIterator(source, carrier, prefetch=prefetch, note=self._note)

    def find_ranks(self) -> Loader:
        """Return the loader, with the ranks that ``ranks`` finds now if none were given."""
        if self._finds_ranks:
            found_ranks = ranks()
            if any(value != getattr(self.loader.run_config, name) for name, value in found_ranks.items()):
                self.loader = self.loader.with_ranks(**found_ranks)
        return self.loader

    def seek(self, step: int) -> None:
        """Begin the next iteration at a step; it ends with the pass of the step."""
        self.step = self._first = self._start = check_whole_number("step", step, least=0)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with a pass, from 0; raises ArgumentError if passes have no end."""
        # Accelerate's loaders call this before their first batch, and would lose a restored step.
        _check_callers(sys._getframe(1))
        pass_length = self.loader.num_steps
        if check_whole_number("epoch", epoch, least=0) and pass_length is None:
            raise ArgumentError(f"epoch {epoch}: the first pass has no end; give StreamDataset num_steps")
        self.seek(epoch * (pass_length or 0))

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> dict[str, Any]:
        """Return the state after the batches that were returned so far, as a small JSON object.

        Args:
            num_samples: Samples of all ranks that were trained on, if the trainer counts them, as Composer does: the
                state after these samples.
            from_beginning: True if they count from the first step of the pass, False from that of the iteration.
        """
        # Found once: a state may be saved when the group has ended.
        loader = self.loader if self.loader.knows_ranks else self.find_ranks()
        if num_samples is None:
            return loader.state_at(self.step)
        pass_length = loader.num_steps or self._first + 1
        first = self._first // pass_length * pass_length if from_beginning else self._first
        return loader.state_at(first + check_whole_number("num_samples", num_samples, least=0) // loader.batch_size)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration at a state; raises StateError if it belongs to another order of samples."""
        self.seek(self.find_ranks().step_of(state))

    def _note(self, step: int) -> None:
        self.step = step


def _check_callers(frame: FrameType | None) -> None:
    """Raise ArgumentError if the direct caller collates the batches, or any caller shards them.

    A DataLoader passes no settings to its dataset, so this inspects the objects whose methods are running. A dataset
    between the two may make rows of batches, which its DataLoader may collate.
    """
    if frame is not None and getattr(frame.f_locals.get("self"), "auto_collation", False):
        raise ArgumentError(
            "a DataLoader with a batch_size makes batches of StreamDataset's batches; give it batch_size=None, and "
            "StreamDataset the rows of the global batch as batch_size"
        )
    while frame is not None:
        caller_classes = type(frame.f_locals.get("self")).__mro__
        if sharding := _SHARDING.intersection(caller_class.__name__ for caller_class in caller_classes):
            raise ArgumentError(
                f"{min(sharding)} shards or dispatches the batches of StreamDataset, which has the rows of its rank "
                "already, so rows would be lost; do not give its DataLoader to accelerator.prepare: iterate "
                "DataLoader(dataset, batch_size=None) as it is, or stream.torch.to_device(dataset, accelerator.device)"
            )
        frame = frame.f_back


class _Pass(LoaderIterator):
    """Batches up to the end of the pass of its first step."""

    def seek(self, step: int) -> None:
        """Move to a step."""
        pass_length = self.loader.num_steps
        if pass_length and self.loader.data.sample_spec.num_epochs:
            step %= pass_length  # no samples follow
        super().seek(step)
        if pass_length is not None:
            self.stop = (step // max(pass_length, 1) + 1) * pass_length


def to_device(
    source: Loader | LoaderIterator | StreamDataset,
    device: str | torch.device,
    *,
    prefetch: int = 1,
    pin_memory: bool | None = None,
    augment: Literal["host", "device"] = "host",
) -> PrefetchIterator:
    """Return an iterator of batches with their tensors on a device.

    On CUDA, copies run on a separate stream while you use the previous batch. They read directly from the ring, whose
    memory is page-locked at its first use. On the CPU, tensors share the memory of the ring.

    With ``decode="device"`` this iterator decodes the frames: on CUDA with torchvision's nvJPEG in a separate thread,
    else on the host. nvJPEG's pixels differ from the host's by a few levels. They differ more at edges of colour where
    the JPEG stores colour at half the size (``--subsampling 420``), which nvJPEG does not smooth. If nvJPEG refuses a
    frame, the host decodes its batch; a damaged frame is then an error that names its record, or is replaced.

    Args:
        source: A loader, an iterator of a loader at any step, or a StreamDataset. The ``state_dict`` of a StreamDataset
            counts the batches that this iterator returns.
        device: ``"cuda"``, ``"cuda:1"``, ``"cpu"``, ...
        prefetch: Batches to move before they are requested.
        pin_memory: None and True page-lock the memory that is copied to CUDA; False does not, and waits for each copy.
            Batches whose frames are decoded on CUDA are small, and never page-locked.
        augment: ``host`` augments frames where they are decoded; ``device`` here, with the same amounts. The pictures
            differ by at most 2 levels. An iterator as ``source`` is then closed, as its workers augment. With
            ``decode="device"`` frames are augmented here in any case.

    Returns:
        A Grain iterator with ``get_state``, ``set_state`` and ``close``. Shapes and dtypes are the loader's;
        ``frames`` are uint8 [b, F, H, W, 3] for any ``decode``.

    Raises:
        ArgumentError: The device does not exist, ``source`` is something else, or torchvision is missing.
        RecordError: From ``next``, a frame cannot be decoded.
        RuntimeError: From ``next``, torch cannot pin memory.
    """
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(f"device={device!r:.100}: {str(error).splitlines()[0]}") from None
    on_cuda = device.type == "cuda"
    if on_cuda:
        if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
            raise ArgumentError(f"device {device}: torch sees {torch.cuda.device_count()} CUDA devices here")
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    if isinstance(source, StreamDataset):
        source.find_ranks()
    plain_loader, augmentation = choose_augmentation(source, augment)
    loader: Any = plain_loader or (source if isinstance(source, Loader) else getattr(source, "loader", None))
    augmenter = None if augmentation is None else TorchAugmenter(loader.data.spec, augmentation)
    decoder = None
    if isinstance(loader, Loader) and loader.run_config.decode == "device":
        decoder = Decoder(loader, device if on_cuda else None)
        # Workers that do not decode do not augment either.
        plain_loader = None
    carrier: Carrier = OnHost(device, decoder, augmenter)
    if on_cuda:
        carrier = OnCuda(device, decoder, pin=pin_memory is not False, augmenter=augmenter)
    if isinstance(source, StreamDataset):
        return source.carry(carrier, prefetch=prefetch, loader=plain_loader)
    return PrefetchIterator(iterate(source, plain_loader), carrier, prefetch=prefetch)


class Normalize(torch.nn.Module):
    """Normalisation of tensors inside a model, with the tables of ``stream.Normalize`` as buffers.

    Use it instead of ``make_loader(normalize=...)`` if the model's checkpoint should hold the normalisation. The tables
    move with the model, and its state dict has them.

    Args:
        tables: ``stream.Normalize(loader).tables``.
    """

    def __init__(self, tables: Mapping[str, Affine]) -> None:
        super().__init__()
        self.keys = tuple(tables)
        for vector_name, table in tables.items():
            for part_name in _PARTS:
                self.register_buffer(
                    f"{vector_name}_{part_name}", torch.from_numpy(getattr(table, part_name).astype(np.float32))
                )

    def forward(self, batch: Batch) -> Batch:
        """Return the batch with normalised vectors, shaped as before, float32; masked values are 0."""
        tables = {
            vector_name: Affine(*(getattr(self, f"{vector_name}_{part_name}") for part_name in _PARTS))
            for vector_name in self.keys
        }
        return apply_tables(tables, batch, xp=torch)
