"""Protocol between the benchmark and its peers; it needs only the standard library and numpy, and simplejpeg to decode.

The benchmark exports all pairs once. A peer is a class with ``open_batches``, a context manager that gives the batches
of a request, and ``make_copy``, which writes the peer's own copy of the pairs, unless it needs none. Each is called in
a fresh process. A batch is a mapping with at least ``frames`` uint8 [b, 2, H, W, 3] and ``dataset`` int [b]; with full
metadata also ``action`` float32 [b, W, A], ``state`` float32 [b, S], ``language``, ``episode`` and ``step``.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure.machine import cpu_seconds, family, proportional_set

METADATA = ("action", "state", "language", "episode", "step")
ORDERS = ("shuffled", "sequential")
_CHECKED = 32
_LOOKS = 4

Batches = Callable[["Request"], AbstractContextManager[Iterator[Any]]]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to a peer of class ``adapter``: to ``copy``, ``measure`` or ``check``, which hashes every sample.

    ``export`` is the folder of the exported pairs, ``copy`` that of the peer's copy. ``metadata`` is ``full`` or
    ``none``, which leaves frames and the number of the dataset. ``order`` is ``shuffled``, mixed by weight, or
    ``sequential``, in the order of the copy. ``limit_s`` ends the measurement early. ``asked`` is the monotonic clock
    of the start.
    """

    adapter: str
    do: str
    export: Path
    copy: Path
    batch_size: int
    num_workers: int
    warmup: int
    steps: int
    limit_s: float
    metadata: str
    order: str
    seed: int
    source: str | None
    asked: float

    @property
    def full(self) -> bool:
        """Return whether batches hold all metadata."""
        return self.metadata == "full"

    @property
    def samples(self) -> int:
        """Return an upper bound of the number of samples taken."""
        return self.batch_size * (self.warmup + self.steps + _LOOKS + 16)

    @cached_property
    def pairs(self) -> Export:
        """The exported pairs."""
        return Export(self.export)

    def divide(self, most: int) -> list[range]:
        """Return the pairs of shards of at most ``most`` pairs, at least one shard for each worker."""
        count = len(self.pairs)
        shards = min(count, max(1, self.num_workers, -(-count // most)))
        return [range(number * count // shards, (number + 1) * count // shards) for number in range(shards)]

    def stores(self, suffix: str = "") -> list[tuple[str, list[int]]]:
        """Return a path in the copy for each dataset, and its pairs in storage order."""
        numbers = range(len(self.pairs.datasets))
        return [(str(self.copy / f"{number:03d}{suffix}"), self.pairs.places(number)) for number in numbers]


class Export:
    """The exported pairs of a mixture, dataset by dataset; ``numbers`` are dataset, episode and step, int64 [n, 3].

    ``about`` has the ``shape`` of all frames, sizes ``vector`` of W, A and S, and for each of the ``datasets`` its
    name, weight (a share), offset and source. Of windows also ``window``, the distances of their frames; a record is
    then the JPEG of one step.
    """

    def __init__(self, folder: Path) -> None:
        self.about: dict[str, Any] = json.loads((folder / "about.json").read_text())
        self.numbers, self._ends = np.load(folder / "numbers.npy"), np.load(folder / "ends.npy")
        self._records = np.memmap(folder / "pairs.bin", np.uint8, "r")
        self.datasets, self.shape = self.about["datasets"], tuple(self.about["shape"])
        self.weights = [float(dataset["weight"]) for dataset in self.datasets]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def frames(self) -> int:
        """Frames of a sample, F."""
        return len(self.about.get("window", (0, 1)))

    def places(self, dataset: int) -> list[int]:
        """Return the pairs of a dataset in storage order."""
        return [int(pair_number) for pair_number in np.flatnonzero(self.numbers[:, 0] == dataset)]

    def record(self, pair_number: int) -> bytes:
        """Return a pair as one record, for formats without columns."""
        return self._records[self._ends[pair_number - 1] if pair_number else 0 : self._ends[pair_number]].tobytes()

    def pair(self, pair_number: int) -> dict[str, Any]:
        """Return ``first``, ``second`` (JPEG), ``dataset``, ``episode``, ``step``, ``language``, ``action``, ``state``.

        The vectors are bytes of float32 [W, A] and [S].
        """
        pair: dict[str, Any] = pickle.loads(self.record(pair_number))
        return pair


_RAW, _RAW_HEADER = b"RAW1", 8
"""How a frame of pixels begins (``stream.format.frame``), and after how many bytes the pixels do."""


class Decoder:
    """A function from a pair or its record to a sample; worker processes can be given it.

    A sample has ``frames`` uint8 [2, H, W, 3] and ``dataset``, and with full metadata all other columns.
    """

    def __init__(self, request: Request) -> None:
        self._shape, self._full = request.pairs.shape, request.full
        self._action = tuple(request.pairs.about["vector"][:2])

    def __call__(self, stored: bytes | Mapping[str, Any]) -> dict[str, Any]:
        """Return the sample of a stored pair."""
        pair = pickle.loads(stored) if isinstance(stored, bytes) else stored
        frames = np.empty((2, *self._shape, 3), np.uint8)
        for frame, frame_name in zip(frames, ("first", "second"), strict=True):
            if pair[frame_name][: len(_RAW)] == _RAW:
                frame[...] = np.frombuffer(pair[frame_name], np.uint8, offset=_RAW_HEADER).reshape(frame.shape)
                continue
            # The environment of tfdata has none.
            import simplejpeg

            simplejpeg.decode_jpeg(pair[frame_name], buffer=frame)
        sample: dict[str, Any] = {"frames": frames, "dataset": int(pair["dataset"])}
        if self._full:
            sample |= {key: pair[key] for key in ("language", "episode", "step")}
            # Copies, because PyTorch warns of arrays that cannot be written.
            sample["action"] = np.frombuffer(pair["action"], np.float32).reshape(self._action).copy()
            sample["state"] = np.frombuffer(pair["state"], np.float32).copy()
        return sample


PIXEL_DIGITS = 16
"""Digits of a hash of pixels."""


def pixel_hash(frames: np.ndarray) -> str:
    """Return a hash of the pixels of a pair, uint8 [2, H, W, 3]."""
    return hashlib.blake2b(np.ascontiguousarray(frames).data, digest_size=8).hexdigest()


def window_hash(frames: Any, frames_mask: Any, action: Any, action_mask: Any) -> str:
    """Return a hash of a window: that of its pixels uint8 [F, H, W, 3], then that of its masks and actions.

    Masks are bool [F] and [W], actions float32 [W, A], 0 where masked.
    """
    digest = hashlib.blake2b(digest_size=8)
    for values, kind in ((frames_mask, "?"), (action, "f4"), (action_mask, "?")):
        # Adding 0 makes no difference of -0 and 0.
        array = np.ascontiguousarray(values, kind)
        digest.update((array + np.float32(0) if kind == "f4" else array).tobytes())
    return pixel_hash(frames) + digest.hexdigest()


def hash_samples(request: Request, open_batches: Batches) -> dict[str, str]:
    """Return the hash of every window of a request, by ``episode/step``, read in order until each was seen."""
    hashes: dict[str, str] = {}
    with open_batches(request) as batches:
        for _ in range(2 * len(request.pairs) // request.batch_size + 2):
            batch = {key: np.asarray(value) for key, value in next(batches).items()}
            # Ours is per number, those of others per step.
            mask = batch["action_mask"]
            per_step = np.asarray(mask.reshape(*mask.shape[:2], -1).any(axis=2))
            for row, (episode, step) in enumerate(zip(batch["episode"], batch["step"], strict=True)):
                window = (batch["frames"][row], batch["frames_mask"][row], batch["action"][row], per_step[row])
                hashes[f"{episode}/{step}"] = window_hash(*window)
            if len(hashes) == len(request.pairs):
                break
    return hashes


def forever(batches: Iterable[Any]) -> Iterator[Any]:
    """Iterate over batches again and again."""
    while True:
        batch = None
        for batch in batches:
            yield batch
        if batch is None:
            raise ValueError("a pass has no batch; is the batch larger than the data?")


def measure(request: Request, open_batches: Batches) -> dict[str, Any]:
    """Take batches as a training loop does and return the figures of the run.

    ``first_batch_s`` counts from the start of the process, imports included. ``peak_pss_bytes`` is of all processes,
    taken while no clock runs. ``counts`` are the pairs of each dataset in the measured batches, ``hashes`` those of the
    pixels of pairs of a later batch.
    """
    with open_batches(request) as batches:
        batch = next(batches)
        first = time.monotonic() - request.asked
        _check(batch, request)
        looks = [_memory()]
        for _ in range(request.warmup):
            batch = next(batches)
        numbers: list[np.ndarray] = []
        cpu, until = cpu_seconds(), time.monotonic() + request.limit_s
        arrivals = [time.perf_counter()]
        while len(numbers) < request.steps and (not numbers or time.monotonic() < until):
            batch = next(batches)
            arrivals.append(time.perf_counter())
            # A copy: a view would keep the memory of the batch.
            numbers.append(np.array(batch["dataset"]))
        cpu = cpu_seconds() - cpu
        _check(batch, request)
        for _ in range(_LOOKS):
            looks.append(_memory())
            batch = next(batches)
        hashes = [pixel_hash(np.asarray(frames)) for frames in batch["frames"][:_CHECKED]]
    dataset_numbers, seconds = np.concatenate(numbers), arrivals[-1] - arrivals[0]
    times = 1000 * np.diff(arrivals)
    p50, p99 = np.percentile(times, (50, 99)).tolist()
    return {
        "first_batch_s": first,
        "steps": len(numbers),
        "seconds": seconds,
        "samples_per_s": len(dataset_numbers) / seconds,
        "step_ms": {"mean": float(times.mean()), "p50": p50, "p99": p99, "max": float(times.max())},
        "cpu_s_per_1000_pairs": 1000 * cpu / len(dataset_numbers),
        "peak_pss_bytes": max((look for look in looks if look is not None), default=None),
        "counts": np.bincount(dataset_numbers.astype(np.int64), minlength=len(request.pairs.datasets)).tolist(),
        "keys": sorted(batch),
        "hashes": hashes,
    }


def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Make the copy of a peer, check or measure it, for ``ask``; of a copy the result is seconds, bytes and files."""
    request = Request(**{**asked, "export": Path(asked["export"]), "copy": Path(asked["copy"])})
    module, _, name = request.adapter.partition(":")
    peer = getattr(import_module(f"bench.peers.loaders.{module}"), name)
    if request.do == "measure":
        return measure(request, peer.open_batches)
    if request.do == "check":
        return {"samples": hash_samples(request, peer.open_batches)}
    began = time.perf_counter()
    request.copy.mkdir(parents=True)
    peer.make_copy(request)
    seconds = time.perf_counter() - began
    file_stats = [os.stat(os.path.join(parent, name)) for parent, _, names in os.walk(request.copy) for name in names]
    # Allocated blocks, because databases have holes.
    return {"seconds": seconds, "bytes": sum(file.st_blocks * 512 for file in file_stats), "files": len(file_stats)}


def _memory() -> int | None:
    """Return the proportional set size of all processes, None if unknown."""
    sizes = [size for size in map(proportional_set, family()) if size is not None]
    return sum(sizes) if sizes else None


def _check(batch: Mapping[str, Any], request: Request) -> None:
    frames = batch["frames"]
    expected_shape = (request.batch_size, request.pairs.frames, *request.pairs.shape, 3)
    if tuple(frames.shape) != expected_shape or np.asarray(frames[:1]).dtype != np.uint8:
        raise ValueError(f"frames are {frames.dtype} {tuple(frames.shape)}, expected uint8 {expected_shape}")
    if request.full and not set(METADATA) <= set(batch):
        raise ValueError(f"batch has only {', '.join(sorted(batch))}")
