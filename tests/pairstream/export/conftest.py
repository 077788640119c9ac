"""A converted dataset with all that an export has to cope with: holes, a missing camera, a malformed episode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from convert.errors import EXIT_DAMAGED
from convert.run.command import main as convert
from tests.fixtures.datasets.rlds_dataset import demo_episode, demo_features, jpeg, picture, write_dataset

CAMERAS = {
    "base": {"path": "observation/image", "role": "primary", "storage": "jpeg", "shape": [24, 32, 3]},
    "left": {"path": "hand", "role": "wrist", "storage": "jpeg", "shape": [16, 16, 3]},
}
LENGTHS = (7, 5, 6)


@pytest.fixture(scope="session")
def holed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with ``demo``, in the layout ``frames``.

    Episode 0 is complete, and its task changes half-way. Episode 1 lacks the first camera's frame of step 3. Episode 2
    lacks all frames of the second. Episode 3 is malformed. Their lengths are those of LENGTHS.
    """
    folder = tmp_path_factory.mktemp("holed")
    features = demo_features(hand=tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"))
    episodes = []
    for seed, steps in enumerate(LENGTHS):
        episode = demo_episode(steps, seed=seed)
        rng = np.random.default_rng(1000 + seed)
        for step in episode["steps"]:
            step["hand"] = b"\xff\xd8\xffdamaged" if seed == 2 else jpeg(picture(rng, (16, 16)))
        episodes.append(episode)
    for step in episodes[0]["steps"][4:]:
        step["language_instruction"] = "then the drawer"
    episodes[1]["steps"][3]["observation"]["image"] = b"\xff\xd8\xffdamaged"
    dataset = write_dataset(folder, features=features, splits={"train": [[*episodes, b"not an example"]]})
    registry = str(dataset.registry(cameras=CAMERAS, robot="panda"))
    arguments = ["--datasets", "demo", "--source", str(folder), "--output", str(folder / "out"), "--config", registry]
    chosen = ["--layout", "frames", "--cameras", "all", "--image-size", "native", "--num-workers", "1"]
    assert convert([*arguments, *chosen]) == EXIT_DAMAGED
    return folder / "out"
