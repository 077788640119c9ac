"""What the benchmark and its peers say to each other; also read in environments with numpy and simplejpeg alone.

The benchmark exports all pairs once, each peer makes its own copy of them (``copy``) and then gives batches
(``measure``), each in a fresh process: ``serve`` is the main function of such a process. A batch is a mapping with at
least ``frames`` uint8 [b, 2, H, W, 3] and ``dataset`` int [b]; with full metadata also ``action`` float32 [b, W, A],
``state`` float32 [b, S], ``language``, ``episode`` and ``step``.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure.child import answer
from bench.peers.process import cpu_seconds, proportional_set

_CHECKED = 32
_LOOKS = 4
_HEADER = struct.Struct("<iqqiii")

Batches = Callable[["Request"], AbstractContextManager[Iterator[Any]]]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a peer is asked for.

    do: ``copy`` or ``measure``. export, copy: folders. limit_s: seconds after which measuring stops with the steps
    that there are. variant: of the peer, "" if it has one only. source: folder of RLDS datasets.
    asked: the monotonic clock when the process was started.
    """

    do: str
    export: Path
    copy: Path
    batch_size: int
    num_workers: int
    warmup: int
    steps: int
    limit_s: float
    metadata: str
    variant: str
    seed: int
    source: str | None
    asked: float

    @property
    def full(self) -> bool:
        """Whether batches hold all metadata, or only frames and the dataset's number."""
        return self.metadata == "full"

    @property
    def samples(self) -> int:
        """At least as many as will be taken."""
        return self.batch_size * (self.warmup + self.steps + _LOOKS + 16)

    @cached_property
    def pairs(self) -> Export:
        """The exported pairs."""
        return Export(self.export)


class Export:
    """The exported pairs: ``pair(i)`` is a mapping of ``first`` and ``second`` (JPEG bytes), ``dataset``, ``episode``,
    ``step`` (int), ``action`` float32 [W, A], ``state`` float32 [S] and ``language``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: dict[str, Any] = json.loads((folder / "about.json").read_text())
        self.spans = np.load(folder / "spans.npy")
        self.numbers = np.load(folder / "numbers.npy")
        self._action = np.load(folder / "action.npy", mmap_mode="r")
        self._state = np.load(folder / "state.npy", mmap_mode="r")
        self._frames = np.memmap(folder / "frames.bin", np.uint8, "r")

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def datasets(self) -> list[dict[str, Any]]:
        """Of each dataset: name, weight, offset in steps, and what reading its source takes."""
        return list(self.about["datasets"])

    @property
    def weights(self) -> list[float]:
        """The share of each dataset; they add up to 1."""
        return [float(dataset["weight"]) for dataset in self.about["datasets"]]

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of all frames."""
        height, width = self.about["shape"]
        return height, width

    def places(self, dataset: int) -> list[int]:
        """The pairs of a dataset, in the order in which they are stored."""
        return [int(place) for place in np.flatnonzero(self.numbers[:, 0] == dataset)]

    def pair(self, place: int) -> dict[str, Any]:
        """Return one pair."""
        start, middle, stop = self.spans[place].tolist()
        dataset, episode, step = self.numbers[place].tolist()
        return {
            "first": self._frames[start:middle].tobytes(),
            "second": self._frames[middle:stop].tobytes(),
            "dataset": dataset,
            "episode": episode,
            "step": step,
            "action": np.array(self._action[place]),
            "state": np.array(self._state[place]),
            "language": self.about["languages"][self.about["language"][place]],
        }


def pack(pair: Mapping[str, Any]) -> bytes:
    """Make one record of a pair, for those that store bytes by a key."""
    language = pair["language"].encode()
    action, state = pair["action"].tobytes(), pair["state"].tobytes()
    head = _HEADER.pack(
        pair["dataset"], pair["episode"], pair["step"], len(pair["first"]), len(pair["second"]), len(language)
    )
    return b"".join((head, pair["first"], pair["second"], language, action, state))


def unpack(record: bytes, shape: tuple[int, int, int]) -> dict[str, Any]:
    """The pair of a record; ``shape`` is that of the action's window, and the state's size: W, A, S."""
    dataset, episode, step, first, second, language = _HEADER.unpack_from(record)
    ends = list(itertools.accumulate((_HEADER.size, first, second, language)))
    window, width, _ = shape
    values = np.frombuffer(record[ends[3] :], np.float32)
    return {
        "first": record[ends[0] : ends[1]],
        "second": record[ends[1] : ends[2]],
        "dataset": dataset,
        "episode": episode,
        "step": step,
        "action": values[: window * width].reshape(window, width),
        "state": values[window * width :],
        "language": record[ends[2] : ends[3]].decode(),
    }


def decode(pair: Mapping[str, Any], shape: tuple[int, int], *, full: bool) -> dict[str, Any]:
    """Return the sample of a pair: ``frames`` uint8 [2, H, W, 3] and its dataset's number, or all metadata."""
    import simplejpeg

    frames = np.empty((2, *shape, 3), np.uint8)
    simplejpeg.decode_jpeg(pair["first"], buffer=frames[0])
    simplejpeg.decode_jpeg(pair["second"], buffer=frames[1])
    sample = {"frames": frames, "dataset": int(pair["dataset"])}
    if full:
        sample |= {key: pair[key] for key in ("action", "state", "language", "episode", "step")}
    return sample


def pixel_hash(frames: np.ndarray) -> str:
    """Return a hash of the pixels of one pair, uint8 [2, H, W, 3]."""
    return hashlib.blake2b(np.ascontiguousarray(frames).data, digest_size=8).hexdigest()


def forever(make: Callable[[], Iterable[Any]], passes: list[int]) -> Iterator[Any]:
    """Go through what ``make`` gives again and again; ``passes[0]`` counts how often it was begun.

    Raises:
        ValueError: it gives nothing.
    """
    while True:
        passes[0] += 1
        batch = None
        for batch in make():
            yield batch
        if batch is None:
            raise ValueError("no batch in a whole pass; is the batch larger than the data?")


def measure(request: Request, open_batches: Batches) -> dict[str, Any]:
    """Take batches as a training loop does; returns the figures of one run.

    first_batch_s: from the start of the process, imports included. samples_per_s, step_ms, cpu_s_per_1000_pairs: of
    ``steps`` batches after ``warmup``. peak_pss_bytes: the highest of some looks, when no clock runs. counts: pairs
    of each dataset in the measured batches. hashes: of pixels of pairs of a batch after them.
    """
    with open_batches(request) as batches:
        batch = next(batches)
        first = time.monotonic() - request.asked
        _check(batch, request)
        looks = [proportional_set()]
        for _ in range(request.warmup):
            batch = next(batches)
        numbers: list[np.ndarray] = []
        cpu, until = cpu_seconds(), time.monotonic() + request.limit_s
        arrivals = [time.perf_counter()]
        while len(numbers) < request.steps and (not numbers or time.monotonic() < until):
            batch = next(batches)
            arrivals.append(time.perf_counter())
            # A copy: who keeps a view of a batch keeps the memory of all of it.
            numbers.append(np.array(batch["dataset"]))
        cpu = cpu_seconds() - cpu
        _check(batch, request)
        for _ in range(_LOOKS):
            looks.append(proportional_set())
            batch = next(batches)
        hashes = [pixel_hash(np.asarray(frames)) for frames in batch["frames"][:_CHECKED]]
    seen = np.concatenate(numbers)
    times = 1000 * np.diff(arrivals)
    p50, p99 = np.percentile(times, (50, 99)).tolist()
    known = [look for look in looks if look is not None]
    return {
        "first_batch_s": first,
        "steps": len(numbers),
        "seconds": arrivals[-1] - arrivals[0],
        "samples_per_s": len(seen) / (arrivals[-1] - arrivals[0]),
        "step_ms": {"mean": float(times.mean()), "p50": p50, "p99": p99, "max": float(times.max())},
        "cpu_s_per_1000_pairs": 1000 * cpu / len(seen),
        "peak_pss_bytes": max(known) if known else None,
        "counts": np.bincount(seen.astype(np.int64), minlength=len(request.pairs.datasets)).tolist(),
        "keys": sorted(batch),
        "hashes": hashes,
    }


def serve(open_batches: Batches, make_copy: Callable[[Request], None] | None = None) -> int:
    """Answer one request: ``copy`` or ``measure``; returns the exit code."""

    def work(asked: dict[str, Any]) -> dict[str, Any]:
        request = Request(**{**asked, "export": Path(asked["export"]), "copy": Path(asked["copy"])})
        if request.do == "measure":
            return measure(request, open_batches)
        assert make_copy is not None
        began = time.perf_counter()
        request.copy.mkdir(parents=True)
        make_copy(request)
        return {"seconds": time.perf_counter() - began, "bytes": disk_bytes(request.copy)}

    return answer(work)


def disk_bytes(folder: Path) -> int:
    """Return what a folder's files take on disk, holes left out."""
    return sum(
        os.stat(os.path.join(parent, name)).st_blocks * 512 for parent, _, names in os.walk(folder) for name in names
    )


def _check(batch: Mapping[str, Any], request: Request) -> None:
    frames = batch["frames"]
    wanted = (request.batch_size, 2, *request.pairs.shape, 3)
    if tuple(frames.shape) != wanted or np.asarray(frames[:1]).dtype != np.uint8:
        raise ValueError(f"frames are {frames.dtype} {tuple(frames.shape)}, expected uint8 {wanted}")
    if request.full and not {"action", "state", "language", "episode", "step"} <= set(batch):
        raise ValueError(f"batch has only {', '.join(sorted(batch))}")
