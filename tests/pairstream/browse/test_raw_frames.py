"""Frames of raw pixels and of video are shown too: the browser gets them as JPEGs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from convert.plan import ConvertConfig
from convert.shard.images import FramePolicy
from pairstream.browse.browsed_root import BrowsedRoot
from pairstream.view.tracks import CameraTrack
from stream.format.frame import decode_frame
from tests.fixtures.datasets.rlds_dataset import convert_dataset, demo_episode, jpeg, write_dataset
from tests.fixtures.moving_pictures import moving_pictures, psnr


def convert(tmp_path: Path, episode: dict[str, Any], codec: Any, **video: Any) -> CameraTrack:
    """Convert an episode, and return its camera as the browser opens it."""
    dataset = write_dataset(tmp_path / "source", splits={"train": [[episode]]})
    options = ConvertConfig(layout="frames", policy=FramePolicy(size=None, codec=codec), **video)
    convert_dataset(dataset.conversion(tmp_path / "out", options))
    return BrowsedRoot(tmp_path / "out", marks=tmp_path / "marks.json").episode("demo", "train", 0).camera(0)


def test_raw_pixels_become_a_picture(tmp_path: Path) -> None:
    episode = demo_episode(3, seed=1)
    camera = convert(tmp_path, episode, codec="raw")
    for step in range(3):
        shown = simplejpeg.decode_jpeg(camera.read_picture(step))
        source = decode_frame(episode["steps"][step]["observation"]["image"])
        assert np.abs(shown.astype(int) - source).mean() < 3


def test_each_frame_of_video_is_that_of_its_step(tmp_path: Path) -> None:
    pictures, episode = moving_pictures(7), demo_episode(7, seed=1)
    for step, picture in zip(episode["steps"], pictures, strict=True):
        step["observation"]["image"] = jpeg(picture, 98)
    camera = convert(tmp_path, episode, codec="h264", gop=3, crf=18)
    for step in (4, 0, 6, 1, 5, 2, 3):
        shown = simplejpeg.decode_jpeg(camera.read_picture(step))
        assert np.argmax([psnr(shown, picture) for picture in pictures]) == step
