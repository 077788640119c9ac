"""Checks: each passes with a note, fails with what differs, or is left out with the reason."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from bench.gpu.command import DATASETS, LEVELS
from stream import Loader, make_loader
from stream.batch.encoded import encoded_frames
from stream.batch.spec import Batch

ROWS = 16
"""Rows of the batches that are compared."""
BATCHES = 24
"""Batches in turn, several times the slots of the ring."""
_SHARE = 0.001
"""Most values of decoded pixels that may differ by more than ``LEVELS``, as a share."""
_MOST = 8
"""Most levels that any value may differ by."""


class LeftOut(Exception):
    """A check that cannot be made here; the message says why."""


def run_checks(checks: Mapping[str, Callable[[], str]]) -> list[dict[str, str]]:
    """Return name, status (``ok``, ``failed`` or ``skipped``) and note of each check."""
    outcomes = []
    for check_name, check in checks.items():
        try:
            status, note = "ok", check()
        except LeftOut as reason:
            status, note = "skipped", str(reason)
        except Exception as error:
            status, note = "failed", " ".join(f"{type(error).__name__}: {error}".split())
        outcomes.append({"name": check_name, "status": status, "note": note})
    return outcomes


def loader_of(folder: str, root: str = "pairs", **choices: Any) -> Loader:
    """Return a loader of one of ``ROOTS``."""
    return make_loader(Path(folder) / root, DATASETS, **{"batch_size": ROWS, "seed": 5, **choices})


def check_equal(actual: Batch, expected: Batch, *, step: int) -> None:
    """Raise AssertionError if two batches differ in a key or a bit."""
    assert actual.keys() == expected.keys(), f"step {step}: keys {sorted(actual)}, expected {sorted(expected)}"
    for key, value in expected.items():
        same = np.array_equal(np.asarray(actual[key]), value) if isinstance(value, np.ndarray) else actual[key] == value
        assert same, f"step {step}: {key} differs from the host's"


def check_sums(actual: Iterable[int], expected: Iterable[int]) -> None:
    """Raise AssertionError if the frames of a step do not weigh what those of the host do."""
    wrong = [step for step, (weight, host) in enumerate(zip(actual, expected, strict=True)) if weight != host]
    assert not wrong, f"frames of the steps {wrong} were overwritten before they were read"


def weigh(frames: Any, factors: Any) -> Any:
    """Return one number of frames that depends on the place of each value; arrays of numpy, torch or jax."""
    return (frames.reshape(-1) * factors).sum()


@contextmanager
def loader_warnings() -> Iterator[list[str]]:
    """Give the list of the warnings that the loader logs in the block."""
    texts: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("stream").addHandler(handler)
    try:
        yield texts
    finally:
        logging.getLogger("stream").removeHandler(handler)


class Difference:
    """Differences of decoded values, 0 to 255, counted over batches."""

    def __init__(self) -> None:
        self.counts = np.zeros(256, np.int64)

    def add(self, actual: np.ndarray, expected: np.ndarray) -> None:
        """Count the values of two arrays uint8 of one shape."""
        assert actual.shape == expected.shape, f"frames {actual.shape}, expected {expected.shape}"
        distance = np.abs(actual.astype(np.int16) - expected)
        self.counts += np.bincount(distance.reshape(-1), minlength=256)

    @property
    def is_small(self) -> bool:
        """Return whether nearly all values differ by at most ``LEVELS``, and none by much more."""
        return self.beyond <= _SHARE and self.most <= _MOST

    @property
    def most(self) -> int:
        """Greatest difference."""
        return int(np.flatnonzero(self.counts)[-1])

    @property
    def beyond(self) -> float:
        """Share of the values that differ by more than ``LEVELS``."""
        return float(self.counts[LEVELS + 1 :].sum() / self.counts.sum())

    def __str__(self) -> str:
        mean = float((self.counts * np.arange(256)).sum() / self.counts.sum())
        return f"mean {mean:.2f}, most {self.most}, {self.beyond:.3%} beyond {LEVELS}"


def decode_plainly(batch: Batch, host_frames: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Decode encoded frames without smoothing of halved colours, as nvJPEG does by default."""
    decoded = {key: np.zeros_like(frames) for key, frames in host_frames.items()}
    for key, row, frame, jpeg in encoded_frames(batch):
        simplejpeg.decode_jpeg(jpeg, fastupsample=True, buffer=decoded[key][row, frame])
    return decoded
