"""Train the policy on a mixture of converted tasks.

    python examples/metaworld/train.py --root build/proof/jpeg --tasks button_press,door_open --out runs/two

`--relative` trains on chunks relative to the state, `--augment` with Augment's operations, and `--mistake` with a fault
in the data of the kind that makes no error: see `MISTAKES`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from policy import CHUNK, Sample, fit  # type: ignore[import-not-found]

from stream import Augment, Frames, Loader, Vector, make_loader

MISTAKES = {
    "one_late": "actions one step late",
    "four_late": "actions four steps late",
    "colours": "red and blue swapped",
    "instructions": "instructions of other rows",
}
"""Faults of a data pipeline that raise nowhere, and lower the loss as well as the right data."""
LATE = {"one_late": 1, "four_late": 4}
"""Steps by which actions are late."""
AUGMENT = Augment(crop=(0.85, 1), brightness=0.2, contrast=0.2, saturation=0.2, hue=0.02)


def open_mixture(root: Path, tasks: list[str], *, seed: int, relative: bool, augment: bool, late: int = 0) -> Loader:
    """Return the loader of a run.

    Args:
        root: Root of `convert.run --layout frames`.
        tasks: Its datasets.
        seed: Seed of the order.
        relative: Whether actions are relative to the state at t.
        augment: Whether frames are augmented.
        late: Steps by which actions are late.
    """
    action = Vector(CHUNK, start=-late, relative_to="state" if relative else None)
    frames = Frames([0], augment=AUGMENT if augment else None)
    options: dict[str, Any] = {"seed": seed, "num_workers": 1, "normalize": "mean_std"}
    return make_loader(root, tasks, batch_size=64, frames=frames, action=action, **options)


def read(loader: Loader, *, mistake: str = "") -> Iterator[Sample]:
    """Yield the batches of a loader as tensors, with a mistake of ``MISTAKES`` in them."""
    for batch in loader:
        frames, instructions = np.asarray(batch["frames"][:, 0]), list(batch["language"])
        if mistake == "colours":
            frames = frames[..., ::-1].copy()
        if mistake == "instructions":
            instructions = instructions[1:] + instructions[:1]
        vectors = (torch.from_numpy(np.asarray(batch[key])) for key in ("state", "action", "action_mask"))
        state, action, mask = vectors
        yield torch.from_numpy(frames), state, instructions, action, mask


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="root of convert.run --layout frames")
    parser.add_argument("--tasks", required=True, help="datasets with commas between")
    parser.add_argument("--steps", type=int, default=2400, help="steps of 64 samples (default: 2400)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--relative", action="store_true", help="chunks relative to the state")
    parser.add_argument("--augment", action="store_true", help="random crops and colours")
    parser.add_argument("--mistake", default="", choices=("", *MISTAKES), help="a fault in the data")
    parser.add_argument("--out", type=Path, required=True, help="folder for policy.pt, loader.json and normalize.json")
    args = parser.parse_args()
    late = LATE.get(args.mistake, 0)
    choices = {"seed": args.seed, "relative": args.relative, "augment": args.augment, "late": late}
    loader = open_mixture(args.root, args.tasks.split(","), **choices)
    args.out.mkdir(parents=True, exist_ok=True)
    loader.save(args.out / "loader.json")
    assert loader.normalize is not None
    loader.normalize.save(args.out / "normalize.json")
    policy = fit(read(loader, mistake=args.mistake), steps=args.steps, seed=args.seed)
    torch.save(policy.state_dict(), args.out / "policy.pt")
