"""The recordings of `collect.py` and `play.py` as a source of `convert.run`, and what their numbers mean, as YAML.

    python examples/metaworld/recordings.py button_press,door_open > datasets.yaml
    python -m convert.run --datasets button_press --config datasets.yaml --source build/proof/recordings/button_press \
        --output build/proof/jpeg --layout frames --image-size native
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HAND = {"path": "action", "dims": 3, "select": [0, 1, 2], "names": ["x", "y", "z"], "quantity": "ee_position"}
GRIPPER = {"path": "action", "dims": 1, "select": [3], "names": ["gripper"], "quantity": "gripper"}
STATE = {"path": "observation/state", "kind": "absolute"}
METRES = {"unit": "m", "frame": "base"}
ENTRY = {
    "source": f"python:{Path(__file__).resolve()}:episodes",
    "description": "A scripted expert of Meta-World with noise.",
    "robot": "sawyer",
    "control_frequency": 80,
    "cameras": {"front": {"path": "observation/front", "role": "primary"}},
    "success_path": "/success",
    "action": [
        {**HAND, **METRES, "kind": "target"},
        {**GRIPPER, "kind": "target", "gripper": {"open": -1, "closed": 1}},
    ],
    "state": [{**HAND, **METRES, **STATE}, {**GRIPPER, **STATE, "gripper": {"open": 1, "closed": 0}}],
}
"""Entry of each task. With quantities, `relative_to="state"` knows which position belongs to which."""


def write(path: Path, recorded: Sequence[Sequence[tuple[np.ndarray, ...]]], *, instruction: str) -> None:
    """Write a file of episodes.

    Args:
        path: File to write.
        recorded: Picture, state and action of each step of each episode.
        instruction: Text of all of them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = zip(*(row for rows in recorded for row in rows), strict=True)
    arrays: dict[str, Any] = dict(zip(("front", "state", "action"), map(np.array, columns), strict=True))
    np.savez(path, lengths=[len(rows) for rows in recorded], instruction=instruction, **arrays)


def episodes(path: str) -> Iterator[dict[str, Any]]:
    """Yield the episodes of a file."""
    with np.load(path) as stored:
        recording = dict(stored)
    ends = recording["lengths"].cumsum()
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        yield {
            "steps": {
                "observation": {key: recording[key][start:end] for key in ("front", "state")},
                "action": recording["action"][start:end],
            },
            "episode": {"language_instruction": str(recording["instruction"]), "success": True},
        }


def describe(tasks: Sequence[str]) -> str:
    """Return the entries of some tasks as YAML, of which JSON is a part."""
    return json.dumps({"datasets": dict.fromkeys(tasks, ENTRY)}, indent=1)


if __name__ == "__main__":
    print(describe(sys.argv[1].split(",")))
