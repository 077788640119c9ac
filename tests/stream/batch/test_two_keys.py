"""One camera under two keys, of which one is resized: each key has the frames that a loader of that key alone has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from convert.plan import ConvertConfig
from convert.shard.images import FramePolicy
from stream import make_loader
from stream.format.frame import Codec
from tests.fixtures.datasets.rlds_dataset import (
    convert_dataset,
    demo_episode,
    demo_features,
    jpeg,
    picture,
    write_dataset,
)

CAMERAS = {
    "image": {"path": "observation/image", "role": "primary", "storage": "jpeg", "shape": [24, 32, 3]},
    "hand": {"path": "hand", "role": "wrist", "storage": "jpeg", "shape": [18, 20, 3]},
}
ROOTS: dict[str, tuple[str, dict[str, Codec]]] = {
    "pairs-jpeg": ("pairs", {"primary": "jpeg"}),
    "pairs-raw": ("pairs", {"primary": "raw"}),
    "frames-jpeg": ("frames", {"primary": "jpeg", "wrist": "jpeg"}),
    "frames-raw": ("frames", {"primary": "raw", "wrist": "raw"}),
    "frames-h264": ("frames", {"primary": "h264", "wrist": "h264"}),
    # A chunk of video makes the finder read each record once for all keys.
    "frames-raw-h264": ("frames", {"primary": "raw", "wrist": "h264"}),
}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two_keys")
    features = demo_features(hand=tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"))
    episodes = [demo_episode(5, seed=seed) for seed in range(2)]
    for seed, episode in enumerate(episodes):
        rng = np.random.default_rng(seed)
        for step in episode["steps"]:
            step["hand"] = jpeg(picture(rng, (18, 20)))
    dataset = write_dataset(folder / "source", features=features, splits={"train": [episodes]})
    for name, (layout, codecs) in ROOTS.items():
        options: dict[str, Any] = {"layout": "frames", "cameras": ("all",)} if layout == "frames" else {}
        policy = FramePolicy(size=None, codec=codecs["primary"])
        chosen = ConvertConfig(**options, codecs=codecs if layout == "frames" else {}, gop=2, crf=18, policy=policy)
        convert_dataset(dataset.conversion(folder / name, chosen, cameras=CAMERAS))
    return folder


@pytest.mark.parametrize("keys", [("large", "small"), ("small", "large")], ids="-".join)
@pytest.mark.parametrize("name", ROOTS)
def test_a_camera_under_two_keys_is_resized_for_one_of_them(name: str, keys: tuple[str, str], roots: Path) -> None:
    cameras = dict.fromkeys(keys, "primary") | ({} if name.startswith("pairs") else {"hand": "wrist"})
    options: dict[str, Any] = {"batch_size": 6, "num_workers": 0}
    both_keys = make_loader(roots / name, "demo", cameras=cameras, image_size={"small": (6, 8)}, **options)
    stored = make_loader(roots / name, "demo", cameras="primary", **options)
    resized = make_loader(roots / name, "demo", cameras="primary", image_size=(6, 8), **options)
    for step in range(2):
        batch = both_keys.batch_at(step)
        np.testing.assert_array_equal(batch["frames/large"], stored.batch_at(step)["frames"])
        np.testing.assert_array_equal(batch["frames/small"], resized.batch_at(step)["frames"])


def test_a_drawn_camera_beside_a_resized_one_keeps_its_frames(roots: Path) -> None:
    cameras = {"large": "primary", "small": "primary", "drawn": ["primary", "wrist"]}
    sizes = {"small": (6, 8), "drawn": (9, 10)}
    options: dict[str, Any] = {"batch_size": 6, "num_workers": 0, "shuffle": "none"}
    batch = make_loader(roots / "frames-raw", "demo", cameras=cameras, image_size=sizes, **options).batch_at(0)
    alone = {
        role: make_loader(roots / "frames-raw", "demo", cameras=role, image_size=(9, 10), **options).batch_at(0)
        for role in ("primary", "wrist")
    }
    shown = set()
    for row, frames in enumerate(batch["frames/drawn"]):
        matches = [role for role, second in alone.items() if np.array_equal(frames, second["frames"][row])]
        assert len(matches) == 1
        shown |= set(matches)
    assert shown == {"primary", "wrist"}
