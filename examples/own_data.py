"""Your own data as a source: a function that yields the episodes of a file.

    python -m convert.run --datasets python:examples/own_data.py:episodes --source 'recordings/*.npz' --output data/own

Each file becomes a shard, so files are read in parallel, and an interrupted conversion continues with the next file.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np


def episodes(path: str) -> Iterator[dict[str, Any]]:
    """Yield the episodes of a recording: here one, of arrays with a value for each step."""
    recording = np.load(path)
    yield {
        "steps": {
            "observation": {"front": recording["front"], "state": recording["state"]},  # uint8 [n, H, W, 3], [n, S]
            "action": recording["action"],  # [n, A]
        },
        "episode": {"language_instruction": str(recording["instruction"]), "success": True},
    }
