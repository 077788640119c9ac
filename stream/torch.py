"""PyTorch: a dataset, batches on a device, normalisation there, and a Lightning DataModule."""

from __future__ import annotations

import contextlib
import importlib
import logging
import weakref
from collections import deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stream.affine import Affine
from stream.ahead import Ahead, Carrier, begin
from stream.encoded import ENCODED_KEYS, decode_frames, encoded_frames
from stream.errors import ArgumentError
from stream.extras import imports_of
from stream.format import FormatError
from stream.iterator import LoaderIterator
from stream.loader import Loader, make_loader
from stream.ring import Slot
from stream.spec import Batch

with imports_of("torch", by="stream.torch"):
    import torch
    import torch.distributed
    import torch.utils.data

if TYPE_CHECKING:
    from stream.lightning import PairDataModule

__all__ = ["Normalize", "PairDataModule", "PairDataset", "as_tensors", "to_device"]

_log = logging.getLogger("stream")


def __getattr__(name: str) -> Any:
    if name == "PairDataModule":  # needs Lightning, which not everyone has
        from stream.lightning import PairDataModule

        return PairDataModule
    raise AttributeError(f"module 'stream.torch' has no attribute {name!r}")


def as_tensors(batch: Batch) -> Batch:
    """Return the batch with tensors over the memory of its arrays, nothing copied; what is not numbers stays.

    Shapes and types are those of the arrays (``frames`` uint8 [b, F, H, W, 3], ``action`` float32 [b, W, A], ...).
    """
    return {key: _tensor(value) if _is_numeric(value) else value for key, value in batch.items()}


def _is_numeric(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc"


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
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.loader: Loader = make_loader(
            root,
            mixture,
            batch_size=batch_size,
            rank=rank if rank is not None else torch.distributed.get_rank() if distributed else 0,
            world_size=world_size
            if world_size is not None
            else torch.distributed.get_world_size()
            if distributed
            else 1,
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
        # Of several iterators the newest says what the state is.
        token = self._newest = object()

        def note(step: int) -> None:
            if self._newest is token:
                self._step = step

        return Ahead(source, carrier, prefetch=prefetch, note=note)

    def state_dict(self) -> dict[str, Any]:
        """Return a small JSON: where to go on after the batches that were handed out so far."""
        return self.loader.state_at(self._step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next ``iter`` begin at a state; raises StateError if it is of another order of samples."""
        self._start = self._step = self.loader.step_of(state)


def to_device(
    source: Loader | LoaderIterator | PairDataset,
    device: str | torch.device,
    *,
    prefetch: int = 1,
    pin_memory: bool | None = None,
) -> Ahead:
    """Return an iterator of batches with their tensors on a device.

    On CUDA the ring's slots are page-locked once each, copies run on a stream of their own while the batch before is
    used, and a slot goes back to the ring when its copy has ended. On the CPU tensors lie in the ring, not copied.

    With ``decode="device"`` frames are decoded here: on CUDA by torchvision's nvJPEG, elsewhere by this process, on the
    host. nvJPEG's pixels differ by a few levels from those of the host. Frames that it refuses are decoded on the host,
    where a damaged one is an error that names its record, or is replaced.

    Args:
        source: a loader; an iterator, from where it is; or a PairDataset, whose ``state_dict`` then counts what this
            hands out.
        device: ``"cuda"``, ``"cuda:1"``, ``"cpu"``, ...
        prefetch: batches that are on the device before they are asked for.
        pin_memory: whether to page-lock. None does so on CUDA if the system allows it; True raises if not. An iterator
            that has begun already keeps the memory that it has.

    Raises:
        ArgumentError: there is no such device, or ``source`` is none of these, or torchvision is missing.
        RecordError: from ``next``, a frame cannot be decoded, if it is decoded here.
        RuntimeError: from ``next``, memory cannot be page-locked and ``pin_memory`` is True.
    """
    device = torch.device(device)
    loader = source if isinstance(source, Loader) else getattr(source, "loader", None)
    decoder = _Decoder(loader) if isinstance(loader, Loader) and loader.running.decode == "device" else None
    carrier: Carrier
    if device.type == "cuda":
        if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
            raise ArgumentError(f"device {device}: torch sees {torch.cuda.device_count()} CUDA devices here")
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        if decoder is not None:
            decoder.use_nvjpeg(device)
        # nvJPEG reads encoded frames in the memory of any kind, and what else a batch has is small.
        locks = decoder is None if pin_memory is None else pin_memory
        if locks and isinstance(loader, Loader) and loader.on_new_slot is None:
            loader.on_new_slot = _PageLock(device, required=bool(pin_memory))
        carrier = _OnCuda(device, decoder)
    else:
        carrier = _Here(None if device.type == "cpu" else device, decoder)
    if isinstance(source, PairDataset):
        return source.carry(carrier, prefetch=prefetch)
    return Ahead(begin(source), carrier, prefetch=prefetch)


class _Here:
    """Tensors over the ring's memory, or copied to a device without streams."""

    def __init__(self, device: torch.device | None = None, decoder: _Decoder | None = None) -> None:
        self._device = device
        self._decoder = decoder

    def start(self, batch: Batch) -> Batch:
        if self._decoder is not None:
            batch = self._decoder.decode(batch)
        return _moved(as_tensors(batch), self._device) if self._device is not None else as_tensors(batch)

    def finish(self, carried: Batch) -> Batch:
        return carried

    def close(self) -> None:
        pass


class _OnCuda:
    """Copies on a stream of its own. The host batch, and so its slot, is kept until its copy has ended."""

    def __init__(self, device: torch.device, decoder: _Decoder | None = None) -> None:
        self._device = device
        self._decoder = decoder
        self._stream = torch.cuda.Stream(device)
        self._copies: deque[tuple[torch.cuda.Event, Batch]] = deque()
        # Dropped half-way, memory that is still read from must not go back to the ring.
        weakref.finalize(self, _wait_for, self._copies).atexit = False

    def start(self, batch: Batch) -> tuple[Batch, torch.cuda.Event]:
        while self._copies and self._copies[0][0].query():
            self._copies.popleft()
        copied = torch.cuda.Event()
        try:
            with torch.cuda.stream(self._stream):
                if self._decoder is not None:
                    batch = self._decoder.decode(batch)
                return _moved(as_tensors(batch), self._device), copied
        finally:
            copied.record(self._stream)
            self._copies.append((copied, batch))

    def finish(self, carried: tuple[Batch, torch.cuda.Event]) -> Batch:
        batch, copied = carried
        stream = torch.cuda.current_stream(self._device)
        # The event, not the stream: the copies of later batches need not be waited for.
        stream.wait_event(copied)
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                # Allocated on the copying stream, which must not use the memory again before this one is done.
                value.record_stream(stream)
        return batch

    def close(self) -> None:
        _wait_for(self._copies)


class _Decoder:
    """Decodes the frames of batches on the host, or with nvJPEG once it is told to."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._shape = loader.data.spec.frame_shape
        self._device: torch.device | None = None

    def use_nvjpeg(self, device: torch.device) -> None:
        """Decode on a CUDA device; raises ArgumentError without torchvision."""
        try:
            importlib.import_module("torchvision.io")
        except ImportError as error:
            raise ArgumentError(
                f'decode="device" on {device} takes torchvision with CUDA ({error}); install the one of this torch, or '
                'take decode="host"'
            ) from None
        self._device = device

    def decode(self, batch: Batch) -> Batch:
        """Return the batch with ``frames`` in place of the encoded ones, on the device if that is CUDA; raises
        RecordError."""
        try:
            frames = decode_frames(batch, self._shape) if self._device is None else self._nvjpeg(batch, self._device)
        except torch.cuda.OutOfMemoryError:
            raise
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
        if len(places) == rows * frames:
            return pixels.reshape(rows, frames, *self._shape, 3)
        whole = torch.zeros((rows * frames, *self._shape, 3), dtype=torch.uint8, device=device)
        whole[torch.tensor([row * frames + frame for row, frame, _ in places], device=device)] = pixels
        return whole.reshape(rows, frames, *self._shape, 3)


def _wait_for(copies: deque[tuple[torch.cuda.Event, Batch]]) -> None:
    while copies:
        copies[0][0].synchronize()
        copies.popleft()


def _moved(batch: Batch, device: torch.device) -> Batch:
    return {
        key: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
        for key, value in batch.items()
    }


class _PageLock:
    """Registers the memory of slots with CUDA, so that copies from it run beside everything else."""

    _PORTABLE = 1  # cudaHostRegisterPortable: page-locked for all devices

    def __init__(self, device: torch.device, *, required: bool) -> None:
        self._device = device
        self._required = required
        self._possible = True

    def __call__(self, slot: Slot) -> None:
        """Register a slot, until it is unmapped."""
        if not self._possible:
            return
        address = slot.address
        # In the thread that takes the slot, where device 0 is current: it must not be initialised for this.
        with torch.cuda.device(self._device):
            code = int(torch.cuda.cudart().cudaHostRegister(address, slot.size, self._PORTABLE))
            if code:
                self._failed(code, slot.size)
            else:
                slot.on_unmap = partial(_unlock, self._device, address)

    def _failed(self, code: int, size: int) -> None:
        self._possible = False
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self._device)  # takes the error away, which the next kernel would report else
        reason = f"cudaHostRegister of {size:,} bytes failed with error {code}; see `ulimit -l`"
        if self._required:
            raise RuntimeError(f"a slot of the ring cannot be page-locked: {reason}, or give pin_memory=False")
        _log.warning("batches are copied from memory that is not page-locked, which is slower: %s", reason)


def _unlock(device: torch.device, address: int) -> None:
    with torch.cuda.device(device):
        torch.cuda.cudart().cudaHostUnregister(address)


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
