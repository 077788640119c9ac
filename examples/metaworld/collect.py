"""Collect demonstrations of Meta-World's scripted experts: files of ten episodes, with pictures, states and commands.

    python examples/metaworld/collect.py --tasks button_press --episodes 40 --out build/proof/recordings

The arm gets the expert's command with noise, and the file the command without it: so the demonstrations show how to
return from mistakes. Episodes that do not succeed are not kept.
"""

from __future__ import annotations

import argparse
import warnings
from functools import partial
from pathlib import Path

import numpy as np
from recordings import write  # type: ignore[import-not-found]
from simulator import MAX_STEPS, TASKS, Simulator, in_processes  # type: ignore[import-not-found]

NOISE = 0.02
"""Standard deviation of the noise of a position, in metres."""
AFTER = 5
"""Steps that are recorded after success."""
FILE = 10
"""Episodes in a file."""


def collect(task: str, *, episodes: int, seed: int, out: Path) -> int:
    """Write ``out/task/*.npz``, and return the number of steps.

    Args:
        task: A key of ``TASKS``.
        episodes: Number of successful episodes.
        seed: Seed of scenes and noise.
        out: Folder of all tasks.
    """
    warnings.filterwarnings("ignore", message="Constant.s. may be too high")
    simulator, random = Simulator(task, seed=seed), np.random.default_rng(seed)
    steps = 0
    for number, start in enumerate(range(0, episodes, FILE)):
        recorded = [record(simulator, random) for _ in range(min(FILE, episodes - start))]
        write(out / task / f"{number:03d}.npz", recorded, instruction=TASKS[task])
        steps += sum(map(len, recorded))
    return steps


def record(simulator: Simulator, random: np.random.Generator) -> list[tuple[np.ndarray, ...]]:
    """Return picture, state and command of each step of a successful episode; raises RuntimeError after 20 failures."""
    for _ in range(20):
        simulator.reset()
        rows: list[tuple[np.ndarray, ...]] = []
        end = MAX_STEPS
        while len(rows) < end:
            command = simulator.expert()
            rows.append((simulator.picture().copy(), simulator.state, command))
            noise = np.append(random.normal(0, NOISE, 3), 0)
            if simulator.step(command + noise) and end == MAX_STEPS:
                end = min(MAX_STEPS - 1, len(rows) + AFTER)
        if end < MAX_STEPS:
            return rows
    raise RuntimeError(f"{simulator.task}: the expert failed in 20 episodes; is this another version of metaworld?")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help="tasks with commas between (default: all)")
    parser.add_argument("--episodes", type=int, default=40, help="demonstrations of each task (default: 40)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder; a folder of each task is made in it")
    args = parser.parse_args()
    names = args.tasks.split(",")
    one_task = partial(collect, episodes=args.episodes, seed=args.seed, out=args.out)
    for name, steps in zip(names, in_processes(one_task, names), strict=True):
        print(f"{name}: {args.episodes} episodes, {steps} steps", flush=True)
