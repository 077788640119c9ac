"""PyTorch's carriers of batches: on the host, and to CUDA, with nvJPEG for frames that are still encoded."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import simplejpeg

from stream.base.errors import ArgumentError, FormatError
from stream.base.extras import imports_of
from stream.batch.encoded import SPAN_KEY, decode_frames, encoded_frames, with_frames
from stream.batch.layout import aligned
from stream.batch.spec import Batch, map_values
from stream.frameworks.device_augment import DeviceAugmenter
from stream.frameworks.prefetch import Carrier, is_numeric
from stream.loader.loader import Loader
from stream.workers.ring import Slot, slot_of

with imports_of("torch", by="stream.torch"):
    import torch

_log = logging.getLogger("stream")
_BLACK = np.zeros((64, 64, 3), np.uint8)
_PORTABLE = 1
"""cudaHostRegisterPortable: the memory is page-locked for all devices."""
_SMALL = 1 << 20
"""Bytes up to which an array is copied to CUDA together with others, as each copy costs the caller's thread time."""


def as_tensors(batch: Batch) -> Batch:
    """Return a batch with tensors instead of its arrays, without a copy.

    Args:
        batch: Batch of a loader.

    Returns:
        Tensors over the same memory, with the shapes and dtypes of the arrays (``frames`` uint8 [b, F, H, W, 3],
        ``action`` float32 [b, W, A], ...). Other values stay as they are.
    """
    return map_values(lambda _, value: _tensor(value) if is_numeric(value) else value, batch)


def _tensor(array: np.ndarray) -> torch.Tensor:
    # torch warns of read-only memory; only a transform makes such an array.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


class OnHost(Carrier):
    """Carrier of tensors over the ring's memory, or of copies to a device without streams."""

    def __init__(
        self,
        device: torch.device | None = None,
        decoder: Decoder | None = None,
        augmenter: DeviceAugmenter | None = None,
    ) -> None:
        self._device = device
        self._decoder = decoder
        self._augmenter = augmenter

    def start(self, batch: Batch) -> Batch:
        """Return the batch as tensors."""
        batch = batch if self._decoder is None else self._decoder.decode(batch)
        moved_batch = map_values(self._move, as_tensors(batch))
        if self._augmenter is None:
            return moved_batch
        return self._augmenter.apply(moved_batch, self._augmenter.draw(batch))

    def _move(self, _: str, value: Any) -> Any:
        return value.to(self._device) if isinstance(value, torch.Tensor) else value


class OnCuda(Carrier):
    """Carrier that copies on a separate stream; a separate thread decodes frames."""

    def __init__(
        self, device: torch.device, decoder: Decoder | None, *, pin: bool, augmenter: DeviceAugmenter | None = None
    ) -> None:
        self._device = device
        self._augmenter = augmenter
        self._decoder = decoder
        # nvJPEG may read from the ring, so all copies must wait.
        self._pins = pin and decoder is None
        self._stream = torch.cuda.Stream(device)
        self._thread = None if decoder is None else ThreadPoolExecutor(1, thread_name_prefix="stream-nvjpeg")
        self._copying: tuple[Batch, torch.cuda.Event] | None = None

    def start(self, batch: Batch) -> Any:
        """Start the copy; return the batch and the event of the copy's end, or their future."""
        return self._copy(batch) if self._thread is None else self._thread.submit(self._copy, batch)

    def _copy(self, batch: Batch) -> tuple[Batch, torch.cuda.Event]:
        with torch.cuda.stream(self._stream):
            self._end_copy()
            if self._decoder is not None:
                # nvJPEG does not wait for this stream before it writes into memory that was freed on it.
                self._stream.synchronize()
                batch = self._decoder.decode(batch)
            if self._pins:
                map_values(lambda _, value: self._lock(slot_of(value)), batch)
            moved_batch = _copied(batch, self._device, pin=self._pins)
            if self._augmenter is not None:
                moved_batch = self._augmenter.apply(moved_batch, self._augmenter.draw(batch))
            copy_end = torch.cuda.Event()
            copy_end.record()
        # The slot of the batch returns to the ring with its arrays.
        self._copying = batch, copy_end
        return moved_batch, copy_end

    def _end_copy(self) -> None:
        if self._copying is not None:
            self._copying[1].synchronize()
            self._copying = None

    def _lock(self, slot: Slot | None) -> None:
        """Page-lock a slot, once; if it cannot be, its arrays are copied into memory that is."""
        if slot is None or slot.unlock is not None:
            return
        runtime: Any = torch.cuda.cudart()
        address = ctypes.addressof(ctypes.c_char.from_buffer(slot.map))
        if int(runtime.cudaHostRegister(address, slot.size, _PORTABLE)) == 0:
            stream = self._stream

            def unlock() -> None:
                stream.synchronize()
                runtime.cudaHostUnregister(address)

            slot.unlock = unlock
            return
        slot.unlock = lambda: None
        # CUDA reports the error of the last call again, with the next kernel.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self._device)

    def finish(self, carried: Any) -> Batch:
        """Make the current stream wait for the copy."""
        batch, copy_end = carried.result() if isinstance(carried, Future) else carried
        stream = torch.cuda.current_stream(self._device)
        # The event, not the stream: later batches may still be copied.
        stream.wait_event(copy_end)
        by_memory: dict[int, torch.Tensor] = {}

        def note(_: str, value: Any) -> None:
            if isinstance(value, torch.Tensor):
                by_memory[value.untyped_storage().data_ptr()] = value

        map_values(note, batch)
        for tensor in by_memory.values():
            # The copying stream allocated the memory, and must not reuse it before the current stream is done.
            tensor.record_stream(stream)
        return batch

    def close(self) -> None:
        """Wait for copies in progress."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        self._end_copy()


class Decoder:
    """Decoder of the frames of batches: nvJPEG on a CUDA device, else the host."""

    def __init__(self, loader: Loader, device: torch.device | None) -> None:
        self._loader = loader
        self._shapes = loader.data.spec.frame_shapes
        self._device = device
        if device is not None:
            try:
                # A torchvision without nvJPEG would refuse each batch.
                probe = torch.from_numpy(np.frombuffer(bytearray(simplejpeg.encode_jpeg(_BLACK)), np.uint8))
                importlib.import_module("torchvision.io").decode_jpeg([probe], mode="RGB", device=device)
            except (ImportError, RuntimeError) as error:
                raise ArgumentError(
                    f'decode="device" on {device} needs torchvision with CUDA ({error}); install the version for '
                    'this torch, or take decode="host"'
                ) from None

    def decode(self, batch: Batch) -> Batch:
        """Return the batch with ``frames`` instead of encoded frames, on the CUDA device if one is used.

        Raises:
            RecordError: A record is damaged, and ``on_error`` is ``raise``.
        """
        try:
            device = self._device
            frames: Batch = decode_frames(batch, self._shapes) if device is None else self._nvjpeg(batch, device)
        except (FormatError, RuntimeError) as error:
            step = int(batch["sample"][0]) // self._loader.batch_size
            reason = str(error).partition("\n")[0]  # torch adds the stack of its C++ functions
            _log.warning("step %d: the batch is read again and decoded on the host: %s", step, reason)
            return self._loader.batch_on_host(step)
        return with_frames(batch, frames)

    def _nvjpeg(self, batch: Batch, device: torch.device) -> Batch:
        decode = importlib.import_module("torchvision.io").decode_jpeg
        encoded = list(encoded_frames(batch))
        # One call for all cameras: a second call could get memory that the work queued after the first still reads.
        pictures = [torch.from_numpy(jpeg) for *_, jpeg in encoded]
        pictures = decode(pictures, mode="RGB", device=device) if pictures else []
        decoded = {}
        for camera_key, shape in self._shapes.items():
            spans = batch[f"{SPAN_KEY}{camera_key.removeprefix('frames')}"]
            frames = torch.zeros((*spans.shape[:2], *shape, 3), dtype=torch.uint8, device=device)
            numbers = [number for number, (key, *_) in enumerate(encoded) if key == camera_key]
            if numbers:
                pixels = torch.stack([pictures[number] for number in numbers]).permute(0, 2, 3, 1)
                if tuple(pixels.shape[1:3]) != shape:
                    raise FormatError(f"{camera_key} of {tuple(pixels.shape[1:3])}, the manifest says {shape}")
                # Frames without a JPEG, which are missing, stay black.
                row_numbers = torch.tensor([encoded[number][1] for number in numbers], device=device)
                frame_numbers = torch.tensor([encoded[number][2] for number in numbers], device=device)
                frames[row_numbers, frame_numbers] = pixels
            decoded[camera_key] = frames
        return decoded


def _copied(batch: Batch, device: torch.device, *, pin: bool) -> Batch:
    """Return the batch with tensors on a device instead of its arrays; with ``pin`` the copies may still run."""
    small: list[np.ndarray] = []
    map_values(lambda _, value: small.append(value) if _is_small(value) else None, batch)
    small_tensors = iter(copy_together(small, device, pin=pin))

    def move(_: str, value: Any) -> Any:
        if _is_small(value):
            return next(small_tensors)
        tensor = _tensor(value) if is_numeric(value) else value
        if not isinstance(tensor, torch.Tensor):
            return value
        # pin_memory() returns page-locked memory unchanged; torch keeps its copies until they were read.
        return (tensor.pin_memory() if pin else tensor).to(device, non_blocking=pin)

    return map_values(move, batch)


def _is_small(value: Any) -> bool:
    return is_numeric(value) and value.nbytes <= _SMALL


def copy_together(arrays: Sequence[np.ndarray], device: torch.device, *, pin: bool) -> list[torch.Tensor]:
    """Copy arrays to a device in one transfer.

    Args:
        arrays: Arrays of numbers, of any shape and dtype that torch has.
        device: Device.
        pin: True to copy from page-locked memory without waiting.

    Returns:
        A tensor for each array, with its shape and dtype. All share one block of memory.
    """
    starts, size = [], 0
    for array in arrays:
        starts.append(size)
        size = aligned(size + array.nbytes)
    packed = torch.empty(size, dtype=torch.uint8, pin_memory=pin)
    memory = packed.numpy()
    for array, start in zip(arrays, starts, strict=True):
        np.ndarray(array.shape, array.dtype, memory, start)[...] = array
    moved = packed.to(device, non_blocking=pin)
    return [
        moved[start : start + array.nbytes].view(_torch_dtype(array.dtype)).view(array.shape)
        for array, start in zip(arrays, starts, strict=True)
    ]


@cache
def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
