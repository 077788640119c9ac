"""PyTorch: a dataset, batches on a device, and normalisation there."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stream.batch.affine import Affine
from stream.batch.encoded import ENCODED_KEYS, decode_frames, encoded_frames
from stream.batch.spec import Batch
from stream.frameworks.ahead import Ahead, Carrier, begin, is_numeric
from stream.loader.iterator import LoaderIterator
from stream.loader.loader import Loader, make_loader
from stream.storage.errors import ArgumentError, FormatError
from stream.storage.extras import imports_of

with imports_of("torch", by="stream.torch"):
    import torch
    import torch.distributed
    import torch.utils.data

_log = logging.getLogger("stream")


def as_tensors(batch: Batch) -> Batch:
    """Return the batch with tensors over the memory of its arrays, nothing copied; what is not numbers stays.

    Shapes and types are those of the arrays (``frames`` uint8 [b, F, H, W, 3], ``action`` float32 [b, W, A], ...).
    """
    return {key: _tensor(value) if is_numeric(value) else value for key, value in batch.items()}


def _tensor(array: np.ndarray) -> torch.Tensor:
    # torch warns of memory that it must not write to; only a transform can have made such an array.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


class PairDataset(torch.utils.data.IterableDataset[Batch]):
    """Batches of ``make_loader`` as dicts of tensors, for ``for``, ``DataLoader(dataset, batch_size=None)`` and
    torchdata's ``StatefulDataLoader(dataset, batch_size=None)``.

    The processes that decode are the dataset's own (``num_workers``): leave the DataLoader's at 0. Iterating begins at
    the state that was loaded last, once; else at step 0.

    Args:
        root, mixture: as for ``make_loader``.
        rank, world_size: by default those of ``torch.distributed``, if it is initialised by now; else 0 of 1.
        arguments: all other arguments of ``make_loader``; ``batch_size`` is that of all ranks together.

    Raises:
        ArgumentError: as ``make_loader``.
        RuntimeError: from ``iter``, in a worker process of a DataLoader.
    """

    def __init__(
        self,
        root: str | Path,
        mixture: str | Path | Mapping[str, Any],
        *,
        batch_size: int,
        rank: int | None = None,
        world_size: int | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        group = (0, 1)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            group = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.loader: Loader = make_loader(
            root,
            mixture,
            batch_size=batch_size,
            rank=group[0] if rank is None else rank,
            world_size=group[1] if world_size is None else world_size,
            **arguments,
        )
        self._start = 0
        self._step = 0

    def __iter__(self) -> Ahead:
        return self.carry(_Here(), prefetch=0)

    def carry(self, carrier: Carrier, *, prefetch: int) -> Ahead:
        """As ``iter``, with batches taken on by a carrier (``to_device`` has them)."""
        if torch.utils.data.get_worker_info() is not None:
            raise RuntimeError(
                "PairDataset was iterated in a worker process of a DataLoader, where each worker would give the same "
                "batches; give the DataLoader num_workers=0 and PairDataset num_workers=N, which starts faster ones"
            )
        source = iter(self.loader)
        source.seek(self._start)
        self._start, self._step = 0, source.step
        return Ahead(source, carrier, prefetch=prefetch, note=self._note)

    def state_dict(self) -> dict[str, Any]:
        """Return a small JSON: where to go on after the batches that were handed out so far."""
        return self.loader.state_at(self._step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next ``iter`` begin at a state; raises StateError if it is of another order of samples."""
        self._start = self._step = self.loader.step_of(state)

    def _note(self, step: int) -> None:
        self._step = step


def to_device(
    source: Loader | LoaderIterator | PairDataset,
    device: str | torch.device,
    *,
    prefetch: int = 1,
    pin_memory: bool | None = None,
) -> Ahead:
    """Return an iterator of batches with their tensors on a device.

    On CUDA copies run on a stream of their own, from page-locked memory, while the batch before is used. On the CPU
    tensors lie in the ring, not copied.

    With ``decode="device"`` frames are decoded here: on CUDA by torchvision's nvJPEG, elsewhere by this process, on the
    host. nvJPEG's pixels differ by a few levels from those of the host. Frames that it refuses are decoded on the host,
    where a damaged one is an error that names its record, or is replaced.

    Args:
        source: a loader; an iterator, from where it is; or a PairDataset, whose ``state_dict`` then counts what this
            hands out.
        device: ``"cuda"``, ``"cuda:1"``, ``"cpu"``, ...
        prefetch: batches that are on the device before they are asked for.
        pin_memory: None and True copy to CUDA by way of pinned memory; False copies from the ring, and waits for it.
            Beside frames that are decoded on CUDA a batch is small, and not pinned.

    Raises:
        ArgumentError: there is no such device, or ``source`` is none of these, or torchvision is missing.
        RecordError: from ``next``, a frame cannot be decoded, if it is decoded here.
        RuntimeError: from ``next``, torch cannot pin memory.
    """
    device = torch.device(device)
    on_cuda = device.type == "cuda"
    if on_cuda:
        if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
            raise ArgumentError(f"device {device}: torch sees {torch.cuda.device_count()} CUDA devices here")
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    loader = source if isinstance(source, Loader) else getattr(source, "loader", None)
    decoder = None
    if isinstance(loader, Loader) and loader.running.decode == "device":
        decoder = _Decoder(loader, device if on_cuda else None)
    carrier = _OnCuda(device, decoder, pin=pin_memory is not False) if on_cuda else _Here(device, decoder)
    if isinstance(source, PairDataset):
        return source.carry(carrier, prefetch=prefetch)
    return Ahead(begin(source), carrier, prefetch=prefetch)


class _Here(Carrier):
    """Tensors over the ring's memory, or copied to a device without streams."""

    def __init__(self, device: torch.device | None = None, decoder: _Decoder | None = None) -> None:
        self._device = device
        self._decoder = decoder

    def start(self, batch: Batch) -> Batch:
        """Return the batch as tensors."""
        batch = as_tensors(batch if self._decoder is None else self._decoder.decode(batch))
        return _moved(batch, self._device)


class _OnCuda(Carrier):
    """Copies on a stream of its own. None of them reads from the ring once ``start`` has returned."""

    def __init__(self, device: torch.device, decoder: _Decoder | None, *, pin: bool) -> None:
        self._device = device
        self._decoder = decoder
        # A copy that is waited for waits for nvJPEG too, which may read from the ring until then.
        self._pins = pin and decoder is None
        self._stream = torch.cuda.Stream(device)

    def start(self, batch: Batch) -> tuple[Batch, torch.cuda.Event]:
        """Begin the copy; returns the batch, and the event of its end."""
        with torch.cuda.stream(self._stream):
            if self._decoder is not None:
                batch = self._decoder.decode(batch)
            carried = _moved(as_tensors(batch), self._device, pin=self._pins)
            copied = torch.cuda.Event()
            copied.record()
        return carried, copied

    def finish(self, carried: tuple[Batch, torch.cuda.Event]) -> Batch:
        """Let the stream in use wait for the copy."""
        batch, copied = carried
        stream = torch.cuda.current_stream(self._device)
        # The event, not the stream: the copies of later batches need not be waited for.
        stream.wait_event(copied)
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                # Allocated on the copying stream, which must not use the memory again before this one is done.
                value.record_stream(stream)
        return batch


class _Decoder:
    """Decodes the frames of batches: with nvJPEG on a CUDA device, else on the host."""

    def __init__(self, loader: Loader, device: torch.device | None) -> None:
        self._loader = loader
        self._shape = loader.data.spec.frame_shape
        self._device = device
        if device is not None:
            try:
                importlib.import_module("torchvision.io")
            except ImportError as error:
                raise ArgumentError(
                    f'decode="device" on {device} takes torchvision with CUDA ({error}); install the one of this '
                    'torch, or take decode="host"'
                ) from None

    def decode(self, batch: Batch) -> Batch:
        """Return the batch with ``frames`` in place of the encoded ones, on the device if that is CUDA; raises
        RecordError."""
        try:
            frames = decode_frames(batch, self._shape) if self._device is None else self._nvjpeg(batch, self._device)
        except (FormatError, RuntimeError) as error:
            step = int(batch["sample"][0]) // self._loader.batch_size
            _log.warning("step %d: the batch is read again and decoded on the host: %s", step, error)
            return self._loader.batch_on_host(step)
        return {"frames": frames, **{key: value for key, value in batch.items() if key not in ENCODED_KEYS}}

    def _nvjpeg(self, batch: Batch, device: torch.device) -> torch.Tensor:
        decode = importlib.import_module("torchvision.io").decode_jpeg
        rows, frames, _ = batch["frames_span"].shape
        places = list(encoded_frames(batch))
        pictures = decode([torch.from_numpy(jpeg) for _, _, jpeg in places], mode="RGB", device=device)
        pixels = torch.stack(pictures).permute(0, 2, 3, 1)
        if tuple(pixels.shape[1:3]) != self._shape:
            raise FormatError(f"frames of {tuple(pixels.shape[1:3])}, the manifest says {self._shape}")
        whole = torch.zeros((rows * frames, *self._shape, 3), dtype=torch.uint8, device=device)
        whole[torch.tensor([row * frames + frame for row, frame, _ in places], device=device)] = pixels
        return whole.reshape(rows, frames, *self._shape, 3)


def _moved(batch: Batch, device: torch.device | None, *, pin: bool = False) -> Batch:
    """Return the batch with its tensors on a device; with ``pin`` the copies to there may still be under way."""
    # Torch keeps the memory of a pinned tensor until the copies that read from it have ended.
    return {
        key: (value.pin_memory() if pin else value).to(device, non_blocking=pin)
        if isinstance(value, torch.Tensor)
        else value
        for key, value in batch.items()
    }


class Normalize(torch.nn.Module):
    """Normalise ``action`` and ``state`` of batches of tensors, as ``stream.Normalize`` does with arrays.

    The tables are buffers: they move with the model and stand in its state dict.

    Args:
        tables: ``stream.Normalize(loader).tables``.
    """

    def __init__(self, tables: Mapping[str, Affine]) -> None:
        super().__init__()
        self.keys = tuple(tables)
        for key, table in tables.items():
            for part in ("scale", "shift", "low", "high"):
                self.register_buffer(f"{key}_{part}", torch.from_numpy(getattr(table, part).copy()))

    def forward(self, batch: Batch) -> Batch:
        """Return the batch with normalised vectors, float32 [b, (W,) size] as before; masked values are 0."""
        result = dict(batch)
        dataset = batch["dataset"].long()
        for key in self.keys:
            values, mask = batch[key], batch[f"{key}_mask"]
            scale, shift, low, high = (
                getattr(self, f"{key}_{part}")[dataset].unflatten(0, (-1, *[1] * (values.ndim - 2)))
                for part in ("scale", "shift", "low", "high")
            )
            result[key] = torch.where(mask, (values * scale + shift).clamp(low, high), 0.0)
        return result
