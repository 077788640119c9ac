"""Makes the small root of a release in this folder: ``python -m tests.data.make_root tests/data/root-0.2.tar.xz``.

Run it once for each release that changes the format, with the code of that release. Never make an older root again.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from convert.plan import ConvertConfig
from convert.shard.images import FramePolicy
from stream import add_labels, digest, make_loader
from tests.fixtures.datasets.rlds_dataset import convert_dataset, demo_episode, write_dataset

CONFIGS = {
    "pairs": ConvertConfig(layout="pairs", policy=FramePolicy(size=None)),
    "frames": ConvertConfig(layout="frames", policy=FramePolicy(size=None, codec="raw")),
}
OPTIONS: dict[str, Any] = {"batch_size": 4, "seed": 7, "columns": ["good"], "rank": 0, "world_size": 1}


def make_root(target: Path) -> None:
    """Write two datasets, one in each layout, with a label, and what a loader gives of them."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, config in CONFIGS.items():
            episodes = [[demo_episode(steps, seed=steps, size=(12, 16)) for steps in (6, 5)]]
            dataset = write_dataset(Path(scratch) / name, name=name, splits={"train": episodes})
            convert_dataset(dataset.conversion(target, config))
            shutil.rmtree(target / name / ".journal", ignore_errors=True)
            add_labels(target, name, pa.table({"episode": [0, 1], "good": [True, False]}), name="marks")
    (target / "expected.json").write_text(json.dumps(describe(target), indent=1) + "\n")


def describe(root: Path) -> dict[str, object]:
    """Return the hashes of batches without frames, and the mean of each frame, which depends little on the decoder."""
    described: dict[str, object] = {}
    for name in CONFIGS:
        loader = make_loader(root, name, **OPTIONS)
        batches = [loader.batch_at(step) for step in range(3)]
        means = [np.round(batch["frames"].mean(axis=(2, 3, 4)), 2).tolist() for batch in batches]
        rows = [{key: value for key, value in batch.items() if not key.startswith("frames")} for batch in batches]
        described[name] = {
            "rows": [digest(batch) for batch in rows],
            "frames": means,
            "first_action": batches[0]["action"][0].tolist(),
        }
    return described


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, tarfile.open(sys.argv[1], "x:xz") as archive:
        make_root(Path(folder))
        archive.add(folder, ".")
