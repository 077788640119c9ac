"""Frames of several sizes as video: each keeps its own; sizes that video cannot tell apart are refused."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import tensorflow_datasets as tfds

from convert.errors import EXIT_FAILED
from convert.plan import ConvertConfig
from convert.run.command import main
from convert.shard.images import FramePolicy
from pairstream.view.tracks import open_tracks
from stream.format.catalog import Catalog
from stream.format.frame import decode_frame
from stream.format.index import open_index
from tests.fixtures.datasets.rlds_dataset import (
    convert_dataset,
    demo_episode,
    demo_features,
    jpeg,
    serialise,
    write_dataset,
)
from tests.fixtures.moving_pictures import moving_pictures, psnr


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
    source = ["--source", str(dataset.root), "--config", str(dataset.registry(cameras=cameras))]
    options = ["--layout", "frames", "--codec", "h264", "--image-size", "native", "--num-workers", "1"]
    code = main(["--datasets", "demo", *source, "--output", str(tmp_path / "out"), *options])
    message = capsys.readouterr().err
    assert code == EXIT_FAILED, message
    assert "demo, wrist: frames of 15x16 and 16x16 cannot be told apart as video" in message
    assert "Traceback" not in message
    assert not (tmp_path / "out/demo/1.0.0/dataset.json").exists()


SIZES = [(100, 100), (104, 108), (63, 81)]
"""The first two are the same in whole macroblocks of 16 pixels."""
GOP = 3


def test_frames_of_several_sizes_are_stored_read_and_converted_again_at_their_size(tmp_path: Path) -> None:
    pictures = [moving_pictures(7, size=size, seed=seed) for seed, size in enumerate(SIZES)]
    episodes = [demo_episode(7, seed=number) for number in range(len(SIZES))]
    for episode, frames in zip(episodes, pictures, strict=True):
        for step, pixels in zip(episode["steps"], frames, strict=True):
            step["observation"]["image"] = jpeg(pixels, 98)
    dataset = write_dataset(tmp_path / "source", splits={"train": [episodes]})
    options = ConvertConfig(layout="frames", policy=FramePolicy(size=None, codec="h264"), gop=GOP, crf=18)
    convert_dataset(dataset.conversion(tmp_path / "h264", options))
    repeated = ["--output", str(tmp_path / "raw"), "--layout", "frames", "--codec", "raw", "--image-size", "native"]
    assert main(["--datasets", f"root:{tmp_path / 'h264'}", "--num-workers", "1", *repeated]) == 0
    stored, raw = (open_all(tmp_path / name, len(SIZES)) for name in ("h264", "raw"))
    order = np.random.default_rng(0).permutation([(n, t) for n in range(len(SIZES)) for t in range(7)]).tolist()
    for number, step in order:
        pixels = decode_frame(stored[number].read(step))
        np.testing.assert_array_equal(pixels, decode_alone(stored[number].read(step), SIZES[number]))
        np.testing.assert_array_equal(pixels, decode_frame(raw[number].read(step)))
        likeness = [psnr(pixels, item) for item in pictures[number]]
        assert likeness[step] == max(likeness) > 35


def open_all(root: Path, count: int) -> list[Any]:
    dataset = Catalog(root).open("demo")
    index = open_index(dataset, "train")
    return [open_tracks(dataset, index, number).cameras[0] for number in range(count)]


def decode_alone(frame: Any, size: tuple[int, int]) -> np.ndarray:
    """Decode a frame by another way: its chunk as a file of its own that FFmpeg's demuxer reads."""
    with av.open(io.BytesIO(frame.chunk), "r", format="h264") as source:
        decoded = [item.to_ndarray(format="rgb24") for item in source.decode(video=0)]
    return np.minimum(decoded[frame.number][: size[0], : size[1]], 254) + 1
