"""An exported slice, converted again as a LeRobot dataset, is what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

from convert.run.command import main as convert
from pairstream.export.command import export
from stream import Frames, make_loader
from stream.loader.episode import StoredEpisode, read_stored_episode
from stream.loader.loader import Loader
from tests.fixtures.moving_pictures import psnr

# With and without a wrist camera, of several rates and sizes of action and state.
NAMES = ("bridge", "rt1", "taco_play", "viola")
CHOSEN = (1, 3)


def _open(root: Path, dataset: str) -> Loader:
    cameras = list(make_loader(root, dataset, batch_size=1).data.datasets[0].fields.cameras)
    return make_loader(root, dataset, batch_size=1, frames=Frames([0], cameras=cameras))


def _read(loader: Loader, number: int) -> StoredEpisode:
    return read_stored_episode(loader.data, loader.dataset_names[0], number)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("video", [False, True], ids=["images", "video"])
def test_actions_states_tasks_and_frames_come_back(name: str, video: bool, frames_root: Path, tmp_path: Path) -> None:
    export(frames_root, tmp_path / "out", dataset=name, episodes=",".join(map(str, CHOSEN)), video=video)
    arguments = ["--datasets", f"lerobot:{tmp_path / 'out'}", "--output", str(tmp_path / "again"), "--layout", "frames"]
    assert convert([*arguments, "--cameras", "all", "--image-size", "native", "--num-workers", "1"]) == 0
    original = _open(frames_root, name)
    (dataset,) = [path.name for path in (tmp_path / "again").iterdir() if not path.name.startswith(".")]
    converted = _open(tmp_path / "again", dataset)
    assert converted.data.datasets[0].fields.control_frequency == original.data.datasets[0].fields.control_frequency
    # Of rt1 two numbers are called x.
    names = zip(converted.action_names[dataset], original.action_names[name], strict=True)
    assert all(after in (before, f"{before}_2") for after, before in names)
    assert len(converted.data.sample_index.splits[0].episodes) == len(CHOSEN)
    for position, number in enumerate(CHOSEN):
        before, after = _read(original, number), _read(converted, position)
        assert after.table["language"].to_pylist() == before.table["language"].to_pylist()
        for column in {"action", "state"} & {*before.table.schema.names}:
            expected = np.stack(before.table[column].to_numpy())
            np.testing.assert_array_equal(np.stack(after.table[column].to_numpy()), expected)
        for frames_before, frames_after in zip(before.frames, after.frames, strict=True):
            for jpeg_before, jpeg_after in zip(frames_before, frames_after, strict=True):
                assert jpeg_before == jpeg_after or (video and psnr(*map(_pixels, (jpeg_before, jpeg_after))) > 28)


def _pixels(jpeg: Any) -> np.ndarray:
    return simplejpeg.decode_jpeg(jpeg)


def test_pairs_that_hold_every_frame_are_exported_like_frames(
    oxe_root: Path, frames_root: Path, tmp_path: Path
) -> None:
    for root, folder in ((oxe_root, "pairs"), (frames_root, "frames")):
        export(root, tmp_path / folder, dataset="bridge", cameras=["primary"])
    names = ["data/chunk-000/file-000.parquet", "meta/tasks.parquet", "meta/info.json", "meta/stats.json"]
    for name in names:
        assert (tmp_path / "pairs" / name).read_bytes() == (tmp_path / "frames" / name).read_bytes()
