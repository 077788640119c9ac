"""Checks of PyTorch's way: page-locked copies, their stream, nvJPEG, normalisation and states."""

from __future__ import annotations

import importlib.util
import statistics
import time
from dataclasses import replace
from functools import partial
from typing import Any

import grain
import numpy as np
import torch

import stream.torch
from bench.gpu.checks import (
    BATCHES,
    Difference,
    LeftOut,
    check_equal,
    check_sums,
    decode_plainly,
    loader_of,
    loader_warnings,
    run_checks,
    weigh,
)
from bench.gpu.command import DATASETS, LEVELS, ROOTS
from bench.loader.train_run import busy
from stream import Frames, Normalize
from stream.batch.encoded import encoded_frames
from stream.batch.spec import Batch
from stream.frameworks.torch_augment import TorchAugmenter
from stream.torch import StreamDataset, to_device

_FRAMES = {
    "pairs": Frames(),
    "cameras and windows": Frames([-2, 0, 0, "1..3"], cameras=["primary", "wrist"], edges="repeat"),
    "a drawn camera": Frames([0], cameras={"view": ("primary", "wrist")}),
}

_PRESETS = ("openpi", "octo", "openvla", "lerobot")
_TIMED_ROWS, _TIMED_BATCHES = 256, 20


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Make all checks, for ``ask``."""
    checks = TorchChecks(request["folder"], request["device"])
    return {"checks": run_checks(checks.all())}


class Spoil(grain.transforms.Map):
    """A transform that spoils the first JPEG of a batch, if its frames are encoded."""

    def map(self, batch: Batch) -> Batch:
        """Return the batch."""
        for _, _, _, jpeg in encoded_frames(batch) if "frames_jpeg" in batch else ():
            jpeg[:64] = 0
            break
        return batch


class TorchChecks:
    """The checks on one device; each returns a note, or raises."""

    def __init__(self, folder: str, device: str) -> None:
        self._folder, self._device, self._on_cuda = folder, device, device.startswith("cuda")

    def all(self) -> dict[str, Any]:
        """Return the checks by name."""
        checks: dict[str, Any] = {
            "copies, pin_memory=None": partial(self.copies, pin_memory=None),
            "copies, pin_memory=False": partial(self.copies, pin_memory=False),
            "copies of a StreamDataset, and states": self.states,
            "page-locked memory": self.page_locked,
            "copies beside a step": self.beside,
        }
        for root in ROOTS:
            for check_name, frames in _FRAMES.items():
                if (root == "pairs") == (check_name == "pairs"):
                    shown = f"decode='device', {check_name}{'' if root == 'pairs' else f', colour {root}'}"
                    checks[shown] = partial(self.decoding, root, frames)
        checks |= {"a JPEG that the device refuses": self.refused, "normalisation": self.normalisation}
        checks |= {f"augment='device', {preset}": partial(self.augmentation, preset) for preset in _PRESETS}
        return {f"torch: {check_name}": check for check_name, check in checks.items()}

    def copies(self, *, pin_memory: bool | None) -> str:
        """Compare batches whose memory is asked for again while the device still has work in front of them."""
        loader = loader_of(self._folder, num_workers=2)
        factors = (torch.arange(loader.batch_at(0)["frames"].size) % 251 + 1).to(self._device)
        batches = to_device(loader, self._device, prefetch=2, pin_memory=pin_memory)
        compute = busy(self._device, 0.02)
        kept, sums = [], []
        for step in range(BATCHES):
            compute()
            batch = next(batches)
            sums.append(weigh(batch["frames"], factors))
            if step % 4 == 0:
                kept.append((step, batch))
            del batch
        batches.close()
        host_factors = factors.cpu()
        expected = [weigh(torch.from_numpy(loader.batch_at(step)["frames"]), host_factors) for step in range(BATCHES)]
        check_sums(map(int, sums), map(int, expected))
        for step, batch in kept:
            check_equal(_on_host(batch), loader.batch_at(step), step=step)
        return f"{BATCHES} batches bitwise those of the host, {loader.stats()['ring_slots']} slots"

    def states(self) -> str:
        """Compare the batches and the state of a StreamDataset whose batches are moved ahead."""
        dataset = StreamDataset(f"{self._folder}/pairs", DATASETS, batch_size=16, seed=5, num_workers=1)
        batches = to_device(dataset, self._device, prefetch=3)
        for step in range(5):
            check_equal(_on_host(next(batches)), dataset.loader.batch_at(step), step=step)
        assert batches.get_state() == dataset.state_dict() == dataset.loader.state_at(5), "the state is not of step 5"
        batches.close()
        return "5 batches bitwise those of the host; the state counts those returned"

    def page_locked(self) -> str:
        """Check that the ring is page-locked while it is in use, and that a slot that cannot be is copied from."""
        self._need_cuda()
        loader = loader_of(self._folder, num_workers=1)
        batches = to_device(loader, self._device)
        check_equal(_on_host(next(batches)), loader.batch_at(0), step=0)
        ring = loader.counters.ring
        assert ring is not None, "there is no ring"
        locked = [torch.frombuffer(slot.map, dtype=torch.uint8).is_pinned() for slot in ring.slots]
        assert any(locked), "no slot of the ring is page-locked"
        for slot in ring.slots:
            if slot.unlock is not None:
                slot.unlock()
            # As where CUDA refuses to page-lock it.
            slot.unlock = lambda: None
        for step in range(1, 8):
            check_equal(_on_host(next(batches)), loader.batch_at(step), step=step)
        batches.close()
        return f"{sum(locked)} of {len(locked)} slots at once; one that is refused is copied from"

    def beside(self) -> str:
        """Check that a copy ends while the current stream still computes."""
        self._need_cuda()
        batches = to_device(loader_of(self._folder, num_workers=1), self._device, prefetch=1)
        next(batches)
        compute = busy(self._device, 1.0)
        torch.cuda.synchronize()
        compute()
        computed = torch.cuda.Event()
        computed.record()
        batches.start_prefetch()
        batches._queue[-1][1].synchronize()
        assert not computed.query(), "the copy of the next batch waited for the work of the current stream"
        torch.cuda.synchronize()
        batches.close()
        return "the copy ended while the step computed"

    def decoding(self, root: str, frames: Frames) -> str:
        """Compare the pixels that the device decodes."""
        self._need_torchvision()
        device_loader = loader_of(self._folder, root, frames=replace(frames, decode="device"), num_workers=1)
        host_loader = loader_of(self._folder, root, frames=frames)
        smooth, plain = Difference(), Difference()
        batches = to_device(device_loader, self._device)
        for step in range(6):
            with loader_warnings() as warnings:
                batch, expected = _on_host(next(batches)), host_loader.batch_at(step)
            assert not warnings, warnings[0]
            host_frames = {key: expected[key] for key in device_loader.data.spec.frame_shapes}
            for key, pixels in decode_plainly(device_loader.batch_at(step), host_frames).items():
                smooth.add(batch[key], expected[key])
                plain.add(batch[key], pixels)
            other_columns = {key: value for key, value in batch.items() if key not in host_frames}
            check_equal(other_columns, {key: expected[key] for key in other_columns}, step=step)
        batches.close()
        note = f"from the host: {smooth}; without smoothing of colour: {plain}"
        assert smooth.is_small or plain.is_small, note
        return note

    def refused(self) -> str:
        """Check that the host decodes a batch with a JPEG that the device refuses."""
        self._need_torchvision()
        batches = to_device(loader_of(self._folder, frames=Frames(decode="device"), transforms=[Spoil()]), self._device)
        host_loader = loader_of(self._folder)
        with loader_warnings() as warnings:
            for step in range(2):
                check_equal(_on_host(next(batches)), host_loader.batch_at(step), step=step)
        batches.close()
        assert len(warnings) >= 2, "a JPEG without a header was decoded"
        return "the host decoded both batches"

    def normalisation(self) -> str:
        """Compare normalised vectors."""
        loader = loader_of(self._folder)
        normalize = Normalize(loader, method="q01_q99")
        module = stream.torch.Normalize(normalize.tables).to(self._device)
        batch = next(to_device(loader, self._device))
        normalised, expected = _on_host(module(batch)), normalize.map(loader.batch_at(0))
        for key in module.keys:
            np.testing.assert_allclose(normalised[key], expected[key], rtol=1e-5, atol=1e-5, err_msg=key)
        return "within 1e-5 of the host"

    def augmentation(self, preset: str) -> str:
        """Compare augmented pictures with those of PyTorch on the CPU, which tests compare with the workers."""
        frames = Frames([-1, 0], cameras=["primary", "wrist"], size=(96, 96), edges="repeat", augment=preset)
        loader = loader_of(self._folder, "444", frames=frames)
        sources = [to_device(loader, device, augment="device") for device in (self._device, "cpu")]
        largest = 0
        for step in range(3):
            batch, expected = (_on_host(next(batches)) for batches in sources)
            for key in loader.data.spec.frame_shapes:
                difference = np.abs(batch.pop(key).astype(int) - expected.pop(key).astype(int))
                largest = max(largest, int(difference.max()))
            check_equal(batch, expected, step=step)
        for batches in sources:
            batches.close()
        assert largest <= LEVELS, f"pictures differ by {largest} levels"
        note = f"within {largest} levels of PyTorch on the CPU"
        return f"{note}; {self._cost(preset)}" if self._on_cuda else note

    def _cost(self, preset: str) -> str:
        """Return the time of a batch of pairs, without the copies."""
        frames = Frames([-1, 0], size=(224, 224), edges="repeat", augment=preset)
        loader = loader_of(self._folder, "444", frames=frames, batch_size=_TIMED_ROWS)
        spec = loader.data.spec
        assert spec.augmentation is not None
        augmenter = TorchAugmenter(spec, spec.augmentation)
        stored = loader.augmenting_on_device().batch_at(0)
        amounts = augmenter.draw(stored)
        moved = {key: torch.from_numpy(stored[key]).to(self._device) for key in spec.frame_shapes}
        times = []
        for _ in range(_TIMED_BATCHES):
            start_time = time.perf_counter()
            augmenter.apply(moved, amounts)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start_time)
        return f"{1e3 * statistics.median(times):.1f} ms a batch of {_TIMED_ROWS} pairs of 224x224"

    def _need_torchvision(self) -> None:
        if self._on_cuda and importlib.util.find_spec("torchvision") is None:
            raise LeftOut("torchvision is not installed")

    def _need_cuda(self) -> None:
        if not self._on_cuda:
            raise LeftOut("there is no CUDA device")


def _on_host(batch: Batch) -> Batch:
    return {key: value.cpu().numpy() if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
