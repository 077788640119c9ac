"""Training windows of a converted LeRobot dataset are those of ``LeRobotDataset`` with ``delta_timestamps``.

Compared are all samples, with the dataset that was converted (within the error of JPEG), and with its export (exactly).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from convert.run.command import main as convert
from pairstream.export.command import export
from stream import make_loader
from tests.fixtures.datasets.lerobot_dataset import DATA
from tests.fixtures.lerobot_reader import read_with_lerobot

pytestmark = pytest.mark.slow

FRAMES, ACTIONS = [-3, -1, 0], 8
CAMERAS = {"v3_av1": ["front", "left_wrist"], "v3_images": ["image"]}


def _windows(root: Path, dataset: str, cameras: list[str]) -> dict[str, np.ndarray]:
    """Return all samples of our loader, in the order of episodes and steps."""
    options = {"frames": {"steps": FRAMES, "cameras": cameras, "edges": "repeat"}, "action": ACTIONS, "shuffle": "none"}
    size = sum(make_loader(root, dataset, batch_size=1, **options).sizes.values())  # type: ignore[arg-type]
    return make_loader(root, dataset, batch_size=size, **options).batch_at(0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CAMERAS)
def test_windows_are_those_of_delta_timestamps(name: str, tmp_path: Path) -> None:
    arguments = ["--datasets", f"lerobot:demo/{name}", "--source", str(DATA), "--output", str(tmp_path / "root")]
    chosen = ["--layout", "frames", "--cameras", "all", "--image-size", "native", "--num-workers", "1"]
    assert convert([*arguments, *chosen]) == 0
    dataset, cameras = f"demo_{name}", CAMERAS[name]
    windows = _windows(tmp_path / "root", dataset, cameras)
    export(tmp_path / "root", tmp_path / "exported", dataset=dataset)
    stored = make_loader(tmp_path / "root", dataset, batch_size=1).data.datasets[0].fields.stored_cameras
    roles = {camera.name: camera.role for camera in stored}
    keys = {camera: f"observation.images.{camera}" for camera in cameras}
    source = {"image": "observation.image"} if name == "v3_images" else keys
    exported = {camera: f"observation.images.{roles[camera]}" for camera in cameras}
    for folder, keys in ((DATA / "demo" / name, source), (tmp_path / "exported", exported)):
        times: dict[str, list[float]] = {key: [frame / 10 for frame in FRAMES] for key in keys.values()}
        lerobot_windows = read_with_lerobot(folder, times={**times, "action": [step / 10 for step in range(ACTIONS)]})
        _same(windows, lerobot_windows, keys, exact=folder.name == "exported")


def _same(
    windows: dict[str, np.ndarray], lerobot_windows: dict[str, np.ndarray], keys: dict[str, str], *, exact: bool
) -> None:
    real = np.asarray(windows["action_mask"].all(axis=2))
    assert len(real) == len(lerobot_windows["index"]) > 20
    np.testing.assert_array_equal(windows["episode"], lerobot_windows["episode_index"])
    np.testing.assert_array_equal(windows["step"], lerobot_windows["frame_index"])
    np.testing.assert_array_equal(real, ~lerobot_windows["action_is_pad"])
    np.testing.assert_array_equal(windows["action"][real], lerobot_windows["action"][real])
    assert not real.all() and not windows["action"][~real].any()
    np.testing.assert_array_equal(windows["state"], lerobot_windows["observation.state"])
    assert list(windows["language"]) == lerobot_windows["task"].tolist()
    for camera, key in keys.items():
        mask = windows[f"frames_mask/{camera}"]
        np.testing.assert_array_equal(mask, ~lerobot_windows[f"{key}_is_pad"])
        assert not mask.all()
        frames, expected = windows[f"frames/{camera}"], lerobot_windows[key]
        if exact:
            np.testing.assert_array_equal(frames, expected)
            continue
        error = ((frames.astype(np.float64) - expected) ** 2).mean(axis=(2, 3, 4))
        ratio = 10 * np.log10(255**2 / np.maximum(error, 1e-9))
        print(f"{camera}: PSNR {ratio.min():.1f} to {ratio.max():.1f} dB, mean {ratio.mean():.1f}")
        assert ratio.min() > 29
