"""Frames of raw pixels are shown too: the browser gets them as JPEGs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import simplejpeg

from convert.plan import Options
from convert.shard.images import FramePolicy
from stream.browse.opened import Opened
from stream.format.frame import decode_frame
from tests.fixtures.datasets.rlds_dataset import convert_dataset, demo_episode, write_dataset


def test_raw_pixels_become_a_picture(tmp_path: Path) -> None:
    episode = demo_episode(3, seed=1)
    dataset = write_dataset(tmp_path / "source", splits={"train": [[episode]]})
    options = Options(layout="frames", policy=FramePolicy(size=None, codec="raw"))
    convert_dataset(dataset.conversion(tmp_path / "out", options))
    camera = Opened.open(tmp_path / "out", marks=tmp_path / "marks.json").episode("demo", "train", 0).camera(0)
    for step in range(3):
        shown = simplejpeg.decode_jpeg(camera.read_picture(step))
        source = decode_frame(episode["steps"][step]["observation"]["image"])
        assert np.abs(shown.astype(int) - source).mean() < 3
