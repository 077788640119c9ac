"""``python -m bench.measure.augment_cost ROOT DATASET``: what a worker loses by each augmentation.

One worker serves a loader of each preset, in alternation, as the speed of a shared machine changes within seconds. A
round leaves out the batches that were ready.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

from stream import Frames, make_loader

PRESETS = (None, "openpi", "octo", "openvla", "lerobot")
_BATCH_SIZE = 32
_READY = 6
"""Batches that may be ready: the ring's, and one of the worker."""
_SETTLE_SECONDS = 0.3
"""Time in which the workers of the other loaders fill their rings and stop."""


def measure_rate(batches: Iterator[Any], num_batches: int) -> float:
    """Return the samples per second of the next batches."""
    time.sleep(_SETTLE_SECONDS)
    for _ in range(_READY):
        next(batches)
    start_time = time.perf_counter()
    for _ in range(num_batches):
        next(batches)
    return num_batches * _BATCH_SIZE / (time.perf_counter() - start_time)


def main() -> None:
    """Print the rate of each preset, and the median of its loss in each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("dataset")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batches", type=int, default=12)
    options = parser.parse_args()
    iterators = {
        preset: iter(
            make_loader(
                options.root, options.dataset, batch_size=_BATCH_SIZE, frames=Frames(augment=preset), num_workers=1
            )
        )
        for preset in PRESETS
    }
    rates: dict[str | None, list[float]] = {preset: [] for preset in PRESETS}
    for _ in range(options.rounds):
        for preset, batches in iterators.items():
            rates[preset].append(measure_rate(batches, options.batches))
    for preset, preset_rates in rates.items():
        shares = [rate / plain_rate for rate, plain_rate in zip(preset_rates, rates[None], strict=True)]
        rate = statistics.median(preset_rates)
        print(f"{preset}: {rate:,.0f} samples/s, {1 - statistics.median(shares):.0%} lost")


if __name__ == "__main__":
    main()
