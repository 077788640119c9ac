"""A slice of decoding alone (`bench.measure.decode_limit`), in a process between those of the peers."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from bench.loader.parameters import Parameters, open_loader
from bench.measure.child import answer
from bench.measure.decode_limit import DecodeLimit


def measure_limit(request: dict[str, Any]) -> dict[str, Any]:
    """Decode for ``seconds`` with a process for each worker and return the figures of the slice."""
    loader = open_loader(Parameters(**request["parameters"]))
    with DecodeLimit(loader, processes=max(1, loader.running.num_workers), threads=1) as limit:
        # A short slice first, because its caches are cold.
        limit.measure(min(0.2, request["seconds"]))
        return dataclasses.asdict(limit.measure(request["seconds"]))


if __name__ == "__main__":
    sys.exit(answer(measure_limit))
