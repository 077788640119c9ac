"""LeRobot's own reader opens an exported slice and gives what the root holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from pairstream.export.command import export
from stream import Frames, make_loader
from stream.loader.episode import read_stored_episode
from tests.fixtures.lerobot_reader import read_with_lerobot
from tests.fixtures.moving_pictures import psnr

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("video", [False, True], ids=["images", "video"])
@pytest.mark.parametrize("name", ["bridge", "taco_play", "viola"])
def test_lerobots_reader_gives_the_values_and_frames_of_the_root(
    name: str, video: bool, frames_root: Path, tmp_path: Path
) -> None:
    export(frames_root, tmp_path / "out", dataset=name, video=video)
    exported = read_with_lerobot(tmp_path / "out")
    data = make_loader(frames_root, name, batch_size=1, frames=[0]).data
    cameras = {camera.role: camera.name for camera in data.datasets[0].fields.stored_cameras}
    data = make_loader(frames_root, name, batch_size=1, frames=Frames([0], cameras=list(cameras.values()))).data
    stored = [read_stored_episode(data, name, number) for number in range(len(data.sample_index.splits[0].episodes))]
    lengths = [len(episode.table) for episode in stored]
    steps = np.concatenate([np.arange(length) for length in lengths])
    for column, key in (("action", "action"), ("state", "observation.state")):
        if column in stored[0].table.schema.names:
            expected = np.concatenate([np.stack(episode.table[column].to_numpy()) for episode in stored])
            np.testing.assert_array_equal(exported[key], expected)
    rate = data.datasets[0].fields.control_frequency
    np.testing.assert_array_equal(exported["timestamp"], (steps / rate).astype(np.float32))
    np.testing.assert_array_equal(exported["frame_index"], steps)
    np.testing.assert_array_equal(exported["episode_index"], np.repeat(range(len(lengths)), lengths))
    assert exported["task"].tolist() == [text for episode in stored for text in episode.table["language"].to_pylist()]
    ratios = list[float]()
    for number, role in enumerate(cameras):
        exported_frames = exported[f"observation.images.{role}"]
        jpegs = [jpeg for episode in stored for jpeg in episode.frames[number]]
        stored_frames = np.stack([simplejpeg.decode_jpeg(jpeg) for jpeg in jpegs if jpeg is not None])
        if not video:
            np.testing.assert_array_equal(exported_frames, stored_frames)
        assert len(exported_frames) == len(stored_frames)
        ratios += map(psnr, exported_frames, stored_frames)
    print(f"{name}: PSNR {min(ratios):.1f} to {max(ratios):.1f} dB, mean {np.mean(ratios):.1f}")
    assert min(ratios) > 28
