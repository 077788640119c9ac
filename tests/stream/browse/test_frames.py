"""Stored frames come out as the bytes that they are, in both layouts; depth in colours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from stream import make_loader
from stream.browse.frames import depth_colours
from stream.browse.opened import Opened
from stream.storage.errors import ArgumentError, FormatError
from tests.stream.crafted_root import CraftedRoot


@pytest.fixture(params=["oxe_root", "frames_root"])
def root(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def test_frames_are_those_of_the_loader(root: Path, tmp_path: Path) -> None:
    rows = Opened.open(root, marks=tmp_path / "marks.json").episode("droid", "train", 1)
    cameras = [camera.name for camera in rows.dataset.fields.stored_cameras]
    loader = make_loader(root, "droid", batch_size=1, split="train", cameras=[cameras[-1]])
    (expected,) = loader.episode("droid", 1).cameras.values()
    assert rows.frame_steps().tolist() == expected.steps.tolist()
    for step, frame in zip(expected.steps.tolist(), expected.frames, strict=True):
        picture = rows.read_picture(len(cameras) - 1, step)
        assert picture is not None
        assert np.array_equal(simplejpeg.decode_jpeg(picture), frame)


@pytest.mark.parametrize(("camera", "step"), [(0, -1), (0, 10_000), (9, 0), (-1, 0)])
def test_what_no_episode_has_is_refused(root: Path, tmp_path: Path, camera: int, step: int) -> None:
    opened = Opened.open(root, marks=tmp_path / "marks.json")
    with pytest.raises(ArgumentError, match=r"no camera|no frame of step"):
        opened.episode("bridge", "train", 0).read_frame(camera, step)
    for number in (-1, 10_000):
        with pytest.raises(ArgumentError, match=f"no episode {number}"):
            opened.episode("bridge", "train", number)


def test_a_damaged_record_is_named(frames_root: Path, tmp_path: Path) -> None:
    crafted = CraftedRoot(frames_root, tmp_path / "root")
    (shard,) = crafted.manifest.parent.glob("train/*-00000-of-*.arrayrecord")
    shard.write_bytes(b"\0" * shard.stat().st_size)
    opened = Opened.open(crafted.root, marks=tmp_path / "marks.json")
    with pytest.raises(FormatError, match=r"bridge, split train, episode 0, step 2, record 2: cannot be read"):
        opened.episode("bridge", "train", 0).read_frame(0, 2)


def test_depth_is_red_near_blue_far_and_black_where_nothing_was_measured() -> None:
    near, far, none = depth_colours(np.array([[500, 2000, 0]], np.uint16), 500, 2000)[0].tolist()
    assert near[0] > 2 * near[2]
    assert far[2] > far[0]
    assert none == [0, 0, 0]
