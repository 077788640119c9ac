"""LeRobot: a v3 dataset of each dataset with images in parquet, ``LeRobotDataset`` with ``delta_timestamps``.

The parquet files hold the root's JPEGs in LeRobot's layout; its own recorder would encode all frames again as PNG.
LeRobot decodes with Pillow to float32 [3, H, W], and the frames are converted back to uint8 here. A frame is stored
once, so a pair takes two rows, and LeRobot decodes the row of step t twice. It has no weights for mixing, so PyTorch's
``WeightedRandomSampler`` draws from all its datasets. Opening a dataset for the first time makes Arrow files in a
cache, which counts as part of the copy.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.loaders.torch import MapStyle
from bench.peers.protocol import Request

_FPS = 10
_IMAGE = "observation.image"


class Lerobot(MapStyle):
    """The pairs of all datasets, in the order of the export."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        set_up(request)
        dataset_of = import_module("lerobot.datasets").LeRobotDataset
        pairs = request.pairs
        self._full = request.full
        self._window = pairs.about["vector"][0]
        self._numbers = pairs.numbers
        self._datasets, self._starts = [], []
        for number, about in enumerate(pairs.datasets):
            offset = int(about["offset"])
            times: dict[str, list[float]] = {_IMAGE: [0.0, offset / _FPS]}
            if self._full:
                times["action"] = [step / _FPS for step in range(offset)]
            folder = request.copy / f"{number:03d}"
            self._datasets.append(dataset_of(f"local/{number:03d}", root=folder, delta_timestamps=times))
            episodes = sorted({int(pairs.numbers[place, 1]) for place in pairs.places(number)})
            starts = self._datasets[-1].meta.episodes["dataset_from_index"]
            self._starts.append(dict(zip(episodes, starts, strict=True)))

    def __getitem__(self, place: int) -> dict[str, Any]:
        import torch

        number, episode, step = self._numbers[place].tolist()
        row = self._datasets[number][int(self._starts[number][episode]) + step]
        frames = (row[_IMAGE] * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
        sample = {"frames": frames, "dataset": number}
        if self._full:
            action = torch.zeros(self._window, row["action"].shape[-1])
            action[: len(row["action"])] = row["action"]
            language = row["task"]
            sample |= {"action": action, "state": row["observation.state"], "language": language}
            sample |= {"episode": episode, "step": step}
        return sample

    @classmethod
    def make_copy(cls, request: Request) -> None:
        """Write a LeRobot dataset for each dataset, and open each once for its cache."""
        set_up(request)
        for number, (path, _) in enumerate(request.stores()):
            _write(request, number, Path(path))
        cls(request)


def set_up(request: Request) -> None:
    """Prepare importing LeRobot, which reads its variables then."""
    os.environ |= {"HF_HOME": str(request.copy / "cache"), "HF_HUB_OFFLINE": "1"}


def _write(request: Request, number: int, folder: Path) -> None:
    datasets, pandas, files = (import_module(name) for name in ("datasets", "pandas", "lerobot.datasets.io_utils"))
    columns = import_module("lerobot.datasets.feature_utils").get_hf_features_from_features
    metadata_of = import_module("lerobot.datasets").LeRobotDatasetMetadata
    _, action, state = request.pairs.about["vector"]
    features = {
        _IMAGE: {"dtype": "image", "shape": (*request.pairs.shape, 3), "names": ["height", "width", "channels"]},
        "observation.state": {"dtype": "float32", "shape": (state,), "names": None},
        "action": {"dtype": "float32", "shape": (action,), "names": None},
    }
    meta = metadata_of.create(folder.name, _FPS, features, root=folder, use_videos=False)
    rows: list[dict[str, Any]] = []
    episodes: list[dict[str, Any]] = []
    tasks: dict[str, int] = {}
    for frames in _episodes(request, number):
        episodes.append(
            {
                "episode_index": len(episodes),
                "tasks": [frames[0]["language"]],
                "length": len(frames),
                "dataset_from_index": len(rows),
                "dataset_to_index": len(rows) + len(frames),
                **dict.fromkeys(("data/chunk_index", "data/file_index"), 0),
                **dict.fromkeys(("meta/episodes/chunk_index", "meta/episodes/file_index"), 0),
            }
        )
        for step, frame in enumerate(frames):
            rows.append(
                {
                    _IMAGE: {"bytes": frame["jpeg"], "path": None},
                    "observation.state": frame["state"],
                    "action": frame["action"],
                    "timestamp": step / _FPS,
                    "frame_index": step,
                    "episode_index": len(episodes) - 1,
                    "index": len(rows),
                    "task_index": tasks.setdefault(frame["language"], len(tasks)),
                }
            )
    data = folder / meta.data_path.format(chunk_index=0, file_index=0)
    data.parent.mkdir(parents=True)
    table = datasets.Dataset.from_list(rows, features=columns(meta.features))
    table.to_parquet(data, batch_size=100)
    files.write_episodes(datasets.Dataset.from_list(episodes), folder)
    files.write_tasks(pandas.DataFrame({"task_index": list(tasks.values())}, index=list(tasks)), folder)
    totals = {"total_episodes": len(episodes), "total_frames": len(rows), "total_tasks": len(tasks)}
    files.write_info(dataclasses.replace(meta.info, **totals, splits={"train": f"0:{len(episodes)}"}), folder)


def _episodes(request: Request, number: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the frames of each episode; the frames of its last steps are second frames of pairs."""
    pairs, offset = request.pairs, int(request.pairs.datasets[number]["offset"])
    found: dict[int, dict[int, dict[str, Any]]] = {}
    for place in pairs.places(number):
        pair = pairs.pair(place)
        frames = found.setdefault(pair["episode"], {})
        action = np.frombuffer(pair["action"], np.float32).reshape(pairs.about["vector"][:2])
        here = {"state": np.frombuffer(pair["state"], np.float32), "language": pair["language"]}
        frames.setdefault(pair["step"], {}).update(here, jpeg=pair["first"], action=action[0])
        for ahead in range(1, offset + 1):
            later = frames.setdefault(pair["step"] + ahead, dict(here))
            later.setdefault("action", action[min(ahead, offset - 1)])
            # In a short episode some steps have no pair: they take the frame before them.
            later.setdefault("jpeg", pair["first"])
        frames[pair["step"] + offset]["jpeg"] = pair["second"]
    for frames in found.values():
        yield [frames[step] for step in sorted(frames)]
