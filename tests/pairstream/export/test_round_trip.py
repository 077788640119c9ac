"""An exported slice, converted again as a LeRobot dataset, is what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

from convert.run.command import main as convert
from pairstream.export.command import export
from stream import make_loader
from stream.loader.episode import StoredEpisode, read_stored_episode
from stream.loader.loader import Loader

# With and without a wrist camera, of several rates and sizes of action and state.
NAMES = ("bridge", "rt1", "taco_play", "viola")
CHOSEN = (1, 3)


def _open(root: Path, dataset: str) -> Loader:
    cameras = list(make_loader(root, dataset, batch_size=1).data.datasets[0].fields.cameras)
    return make_loader(root, dataset, batch_size=1, cameras=cameras, frames=[0])


def _read(loader: Loader, number: int) -> StoredEpisode:
    return read_stored_episode(loader.data, loader.dataset_names[0], number)


def _same_numbers(original: StoredEpisode, converted: StoredEpisode) -> None:
    assert converted.table["language"].to_pylist() == original.table["language"].to_pylist()
    for name in ("action", "state"):
        if name in original.table.schema.names:
            np.testing.assert_array_equal(
                np.stack(converted.table[name].to_numpy()), np.stack(original.table[name].to_numpy())
            )


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
    names = dict(zip(converted.action_names[dataset], original.action_names[name], strict=True))
    assert all(
        before_frame == after_frame or before_frame == f"{after_frame}_2" for before_frame, after_frame in names.items()
    )
    assert len(converted.data.sample_index.splits[0].episodes) == len(CHOSEN)
    for position, number in enumerate(CHOSEN):
        before, after = _read(original, number), _read(converted, position)
        _same_numbers(before, after)
        assert len(before.frames) == len(after.frames)
        for before_frame, after_frame in zip(before.frames, after.frames, strict=True):
            if video:
                _similar(before_frame, after_frame)
            else:
                assert before_frame == after_frame


def _similar(before_frame: list[Any], after_frame: list[Any]) -> None:
    for before, after in zip(before_frame, after_frame, strict=True):
        assert before is not None and after is not None
        error = np.mean((simplejpeg.decode_jpeg(before).astype(float) - simplejpeg.decode_jpeg(after)) ** 2)
        assert 10 * np.log10(255**2 / max(error, 1e-9)) > 28


def test_pairs_that_hold_every_frame_are_exported_like_frames(
    oxe_root: Path, frames_root: Path, tmp_path: Path
) -> None:
    for root, folder in ((oxe_root, "pairs"), (frames_root, "frames")):
        export(root, tmp_path / folder, dataset="bridge", cameras=["primary"])
    names = ["data/chunk-000/file-000.parquet", "meta/tasks.parquet", "meta/info.json", "meta/stats.json"]
    for name in names:
        assert (tmp_path / "pairs" / name).read_bytes() == (tmp_path / "frames" / name).read_bytes()
