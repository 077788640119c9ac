"""Makes the datasets of this folder with LeRobot's own package; see README.md.

``python make.py v3 OUT`` runs with lerobot 0.4.4, ``python make.py v21 OUT`` with lerobot 0.3.3.
"""

from __future__ import annotations

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

FPS = 10
TASKS = ("pick up the red cube", "push the button", "open the drawer")
NUMBERS = {
    "action": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "gripper"]},
    "observation.state": {"dtype": "float32", "shape": (4,), "names": {"motors": ["j0", "j1", "j2", "grip"]}},
    "observation.effort": {"dtype": "float64", "shape": (2,), "names": None},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    "observation.grid": {"dtype": "int64", "shape": (2, 2), "names": None},
}
LEFT_OUT = ("index", "frame_index", "task_index")


def camera(height: int, width: int, dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "shape": (height, width, 3), "names": ["height", "width", "channels"]}


def picture(rng: np.random.Generator, shape: tuple[int, int], episode: int, step: int) -> np.ndarray:
    """A smooth background of the episode, a square that moves with the step, and a bar as long as the step."""
    height, width = shape
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(rows / (5 + c + episode)) + np.cos(columns / (7 - c)) for c in range(3)]
    out = np.stack([(60 + 25 * wave + 12 * c).astype(np.uint8) for c, wave in enumerate(waves)], axis=-1)
    left = 3 + 4 * step % (width - 12)
    out[height // 2 : height // 2 + 8, left : left + 8] = (230, 40 + 20 * (episode % 8), 40)
    out[:4, : 4 * (step + 1)] = (240, 240, 240)
    return out


def fill(dataset: Any, *, lengths: tuple[int, ...], cameras: dict[str, tuple[int, int]], names: list[str]) -> None:
    rng = np.random.default_rng(7)
    old = "old" in dataset.add_frame.__code__.co_varnames or "task" in dataset.add_frame.__code__.co_varnames[:3]
    for episode, steps in enumerate(lengths):
        for step in range(steps):
            every = {
                "action": rng.normal(size=3).astype(np.float32),
                "observation.state": rng.normal(size=4).astype(np.float32),
                "observation.effort": rng.normal(size=2),
                "next.reward": np.array([step / 4], np.float32),
                "next.done": np.array([step == steps - 1]),
                "observation.grid": rng.integers(-9, 9, (2, 2)),
            }
            frame = {name: every[name] for name in names}
            frame |= {key: picture(rng, shape, episode, step) for key, shape in cameras.items()}
            # The third episode changes its task half-way.
            task = TASKS[(episode + (episode == 2 and step > steps // 2)) % len(TASKS)]
            if old:
                dataset.add_frame(frame, task=task)
            else:
                dataset.add_frame({**frame, "task": task})
        dataset.save_episode()


def decode(path: Path | str, timestamps: list[float], tolerance: float, *_: object, **__: object) -> Any:
    """Stand in for LeRobot's decoding backends: the frame nearest to each timestamp, by PyAV."""
    import av
    import torch

    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    times = np.array([frame.time for frame in frames])
    chosen = [int(np.abs(times - each).argmin()) for each in timestamps]
    assert np.abs(times[chosen] - timestamps).max() < tolerance
    return torch.from_numpy(np.stack([frames[place].to_ndarray(format="rgb24") for place in chosen]))


def expected(dataset: Any, folder: Path) -> None:
    """Write what ``LeRobotDataset`` gives for every index."""
    rows: dict[str, list[Any]] = {}
    for index in range(len(dataset)):
        for name, value in dataset[index].items():
            if name == "task":
                rows.setdefault(name, []).append(value)
            elif name not in LEFT_OUT:
                array = np.asarray(value)
                if array.dtype == np.float32 and array.ndim == 3:
                    array = np.transpose(array * 255, (1, 2, 0)).round().astype(np.uint8)
                rows.setdefault(name, []).append(array)
    columns: dict[str, Any] = {name: np.array(values) for name, values in rows.items()}
    np.savez_compressed(folder / "expected.npz", **columns)


def make(out: Path, name: str, *, version: str, cameras: dict[str, tuple[int, int]], lengths: tuple[int, ...]) -> None:
    module: Any = import_module("lerobot.datasets.lerobot_dataset")
    module.decode_video_frames = decode
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    videos = "images" not in name
    names = list(NUMBERS) if name == "v3_av1" else list(NUMBERS)[:2]
    features = {key: NUMBERS[key] for key in names}
    features |= {key: camera(*shape, "video" if videos else "image") for key, shape in cameras.items()}
    dataset = module.LeRobotDataset.create(
        f"tests/{name}", FPS, features, root=folder, robot_type="so101", use_videos=videos
    )
    if version == "v3":
        small = {"chunks_size": 2, "data_files_size_in_mb": 1, "video_files_size_in_mb": 1}
        dataset.meta.update_chunk_settings(**small)
        # Less than the setter accepts, so that a few frames fill a file.
        dataset.meta.info["video_files_size_in_mb"] = 0.006
        dataset.meta.info["data_files_size_in_mb"] = 0.004 if videos else 0.03
    fill(dataset, lengths=lengths, cameras=cameras, names=names)
    if version == "v3":
        dataset.finalize()
        info = json.loads((folder / "meta/info.json").read_text())
        info |= {"video_files_size_in_mb": 200, "data_files_size_in_mb": 100}
        (folder / "meta/info.json").write_text(json.dumps(info, indent=4))
    opened = module.LeRobotDataset(f"tests/{name}", root=folder)
    expected(opened, folder)
    shutil.rmtree(folder / "images", ignore_errors=True)


def main(version: str, out: str) -> None:
    if version == "v3":
        two = {"observation.images.front": (48, 64), "observation.images.left_wrist": (32, 48)}
        make(Path(out), "v3_av1", version="v3", cameras=two, lengths=(9, 6, 8, 7, 11, 5, 8))
        make(Path(out), "v3_images", version="v3", cameras={"observation.image": (32, 48)}, lengths=(6, 7, 5, 6))
    else:
        make(Path(out), "v21_av1", version="v21", cameras={"observation.images.top": (32, 48)}, lengths=(7, 6, 8, 5))


if __name__ == "__main__":
    main(*sys.argv[1:])
