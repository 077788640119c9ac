"""A small converted root with nothing wrong in it, and what is wrong when one thing is planted in its source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from convert.doctor import Diagnosis, examine
from convert.images import FramePolicy
from convert.plan import Options
from tests.rlds_dataset import convert_dataset, demo_episode, write_dataset

STEPS = 8
ACTION = [
    {"path": "action", "select": [0], "dims": 1, "quantity": "ee_position", "mode": "delta", "names": ["x"]},
    {
        "path": "action",
        "select": [1],
        "dims": 1,
        "quantity": "gripper",
        "mode": "absolute",
        "gripper": {"open": 1, "closed": 0},
    },
]
Splits = dict[str, list[list[Any]]]
"""Episodes, or records as they are to stand in the file, by shard and split."""


def sound_episode(seed: int, *, steps: int = STEPS) -> dict[str, Any]:
    """Other pictures and another x at each step, and a gripper that opens and closes."""
    episode = demo_episode(steps, seed=seed)
    for number, step in enumerate(episode["steps"]):
        step["action"][1] = number % 2
    return episode


def sound_splits() -> Splits:
    return {
        "train": [[sound_episode(seed) for seed in (0, 1, 2, 3)], [sound_episode(seed) for seed in (4, 5)]],
        "val": [[sound_episode(seed) for seed in (6, 7)]],
    }


def make_root(folder: Path, edit: Callable[[Splits], object] = lambda splits: None, **fields: Any) -> Path:
    """Convert the sound source after ``edit`` changed it; ``fields`` change the registry's entry. Returns the root."""
    splits = sound_splits()
    edit(splits)
    dataset = write_dataset(folder / "source", splits=splits)
    options = Options(policy=FramePolicy(size=None))
    convert_dataset(dataset.conversion(folder / "out", options, **{"action": ACTION, **fields}))
    return folder / "out"


def diagnose(root: Path, *, frames: int = 1000, pictures: bool = False) -> Diagnosis:
    """Look at it in this process; by default at every frame."""
    return examine(root, frames=frames, pictures=pictures)


def found(diagnosis: Diagnosis) -> dict[tuple[str, str | None], int]:
    """How often each rule was broken in each split."""
    return {(finding.rule.name, finding.split): finding.count for finding in diagnosis.findings}


def set_pictures(episode: dict[str, Any], picture: bytes) -> None:
    for step in episode["steps"]:
        step["observation"]["image"] = picture


def set_actions(episode: dict[str, Any], dim: int, value: float) -> None:
    for step in episode["steps"]:
        step["action"][dim] = np.float32(value)
