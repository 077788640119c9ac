"""The hashes of some batches, of a loader made anew in a fresh process; ``bench.soak`` compares its own with them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from bench.measure.child import answer, ask

MAX_TOLD = 10
"""How many batches that differ are named; one alone is a failure."""


def fresh_digests(loader: Mapping[str, Any], steps: list[int]) -> dict[int, str]:
    """Return the hash of each step's batch, made in a fresh process.

    Args:
        loader: arguments of ``make_loader``.

    Raises:
        bench.measure.child.ChildFailed: the process could not make them.
    """
    found = ask("bench.soak.check", {"loader": dict(loader), "steps": steps}, timeout=600)
    return {int(step): digest for step, digest in found["digests"].items()}


def differences(loader: Mapping[str, Any], seen: Mapping[int, str]) -> list[str]:
    """Compare hashes with a fresh loader's; returns a line for each batch that differs.

    Raises:
        bench.measure.child.ChildFailed: the fresh process could not make the batches.
    """
    fresh = fresh_digests(loader, sorted(seen))
    different = [step for step in sorted(seen) if fresh.get(step) != seen[step]]
    told = [f"step {step}: batch {seen[step][:16]}, a fresh loader's is {fresh[step][:16]}" for step in different]
    return [*told[:MAX_TOLD], *([f"and {len(told) - MAX_TOLD} further batches"] if len(told) > MAX_TOLD else [])]


def make(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a request of ``fresh_digests``."""
    from stream import digest, make_loader

    loader = make_loader(**{**request["loader"], "num_workers": 0})
    return {"digests": {str(step): digest(loader.batch_at(step)) for step in request["steps"]}}


if __name__ == "__main__":
    sys.exit(answer(make))
