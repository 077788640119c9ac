"""Frames of sizes that video cannot tell apart, since it has even sides alone, are refused by the conversion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from convert.errors import EXIT_FAILED
from convert.run.command import main
from tests.fixtures.datasets.rlds_dataset import demo_episode, demo_features, serialise, write_dataset


@pytest.mark.parametrize("shards", [[[15, 16]], [[15], [16]]], ids=["in one shard", "in two shards"])
def test_sizes_that_are_one_size_as_video_are_refused_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shards: Sequence[Sequence[int]]
) -> None:
    features = demo_features(hand=tfds.features.Image(shape=(None, None, 3), encoding_format="png"))
    random = np.random.default_rng(0)

    def record(height: int) -> bytes:
        return serialise(features, demo_episode(4, hand=random.integers(0, 255, (height, 16, 3), np.uint8)))

    dataset = write_dataset(
        tmp_path / "source", features=features, splits={"train": [list(map(record, shard)) for shard in shards]}
    )
    cameras = {"wrist": {"path": "hand", "role": "primary", "storage": "png", "shape": [15, 16, 3]}}
    where = ["--source", str(dataset.root), "--config", str(dataset.registry(cameras=cameras))]
    given = ["--layout", "frames", "--codec", "h264", "--image-size", "native", "--num-workers", "1"]
    code = main(["--datasets", "demo", *where, "--output", str(tmp_path / "out"), *given])
    told = capsys.readouterr().err
    assert code == EXIT_FAILED, told
    assert "demo, wrist: frames of 15x16 and 16x16 cannot be told apart as video" in told
    assert "Traceback" not in told
    assert not (tmp_path / "out/demo/1.0.0/dataset.json").exists()
