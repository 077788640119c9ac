"""Exported video of roots that store video: every frame is that of its step, read in order or after a seek."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from convert.plan import ConvertConfig
from convert.shard.images import FramePolicy
from pairstream.export.command import export
from stream.format.video import VideoCodec
from tests.fixtures.datasets.rlds_dataset import convert_dataset, demo_episode, jpeg, write_dataset
from tests.fixtures.moving_pictures import moving_pictures, psnr

LENGTHS = (13, 11)
GOP = 4
HOLES = {"complete": (), "holed": ((0, 4), (1, 10))}
"""Episode and step of the frames that are missing: the first of a chunk, and one in the middle of a chunk."""
PICTURES = [moving_pictures(count, seed=seed) for seed, count in enumerate(LENGTHS)]


@pytest.fixture(scope="module", params=["h264", "av1"])
def codec(request: pytest.FixtureRequest) -> VideoCodec:
    return request.param


@pytest.fixture(scope="module", params=HOLES)
def exported(codec: VideoCodec, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with ``--video``, whose folder is named for its holes."""
    folder = tmp_path_factory.mktemp(codec)
    episodes = [demo_episode(count, seed=seed) for seed, count in enumerate(LENGTHS)]
    for episode, pictures in zip(episodes, PICTURES, strict=True):
        for step, picture in zip(episode["steps"], pictures, strict=True):
            step["observation"]["image"] = jpeg(picture, 98)
    for number, step in HOLES[request.param]:
        episodes[number]["steps"][step]["observation"]["image"] = b"\xff\xd8\xffdamaged"
    dataset = write_dataset(folder / "source", splits={"train": [episodes]})
    options = ConvertConfig(layout="frames", policy=FramePolicy(size=None, codec=codec), gop=GOP, crf=18)
    convert_dataset(dataset.conversion(folder / "root", options))
    export(folder / "root", folder / request.param, dataset="demo", video=True)
    return folder / request.param


def video_of(folder: Path) -> Path:
    (path,) = folder.rglob("*.mp4")
    return path


def in_order(folder: Path) -> list[np.ndarray]:
    with av.open(str(video_of(folder))) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_each_frame_is_the_picture_of_its_step_and_a_hole_is_black(exported: Path) -> None:
    frames = in_order(exported)
    sources = [picture for pictures in PICTURES for picture in pictures]
    missing_frames = {number * LENGTHS[0] + step for number, step in HOLES[exported.name]}
    assert len(frames) == len(sources)
    for number, frame in enumerate(frames):
        if number in missing_frames:
            assert frame.max() < 8
        else:
            likeness = [psnr(picture, frame) for picture in sources]
            assert likeness[number] == max(likeness) > 33
    columns = pq.read_table(next((exported / "data").rglob("*.parquet"))).column_names
    assert ("observation.frames_mask" in columns) == bool(missing_frames)


def test_a_frame_after_a_seek_is_that_of_reading_in_order(exported: Path) -> None:
    frames = in_order(exported)
    numbers = random.Random(0).sample(range(len(frames)), len(frames))
    for number in numbers:
        with av.open(str(video_of(exported))) as container:
            stream = container.streams.video[0]
            assert stream.average_rate is not None and stream.time_base is not None
            timestamp = round(number / stream.average_rate / stream.time_base)
            container.seek(timestamp, stream=stream)
            decoded = list(itertools.islice(container.decode(stream), GOP))
            (frame,) = [frame for frame in decoded if frame.pts == timestamp]
            np.testing.assert_array_equal(frame.to_ndarray(format="rgb24"), frames[number])
