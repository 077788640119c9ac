"""Hashes of batches from a new loader in a fresh process, to compare with the hashes of a long run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from bench.measure.child import answer, ask
from stream import digest, make_loader

_MOST_TOLD = 10


def fresh_digests(loader: Mapping[str, Any], steps: list[int]) -> dict[int, str]:
    """Return the hash of each step's batch, made in a fresh process; ``loader`` has the arguments of ``make_loader``.

    Raises:
        bench.measure.child.ChildFailed: The process could not make them.
    """
    found = ask("bench.soak.check", {"loader": dict(loader), "steps": steps}, timeout=600)
    return {int(step): hashed for step, hashed in found["digests"].items()}


def differences(loader: Mapping[str, Any], seen: Mapping[int, str]) -> list[str]:
    """Compare hashes with those of a fresh loader; return a line for each different batch, at most ten and a count.

    Raises:
        bench.measure.child.ChildFailed: The fresh process could not make the batches.
    """
    fresh = fresh_digests(loader, sorted(seen))
    told = [
        f"step {step}: batch {found[:16]}, a fresh loader's is {fresh[step][:16]}"
        for step, found in sorted(seen.items())
        if fresh[step] != found
    ]
    return told[:_MOST_TOLD] + ([f"and {len(told) - _MOST_TOLD} further batches"] if len(told) > _MOST_TOLD else [])


def _make(request: Mapping[str, Any]) -> dict[str, Any]:
    loader = make_loader(**{**request["loader"], "num_workers": 0})
    return {"digests": {str(step): digest(loader.batch_at(step)) for step in request["steps"]}}


if __name__ == "__main__":
    sys.exit(answer(_make))
