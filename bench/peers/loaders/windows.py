"""Loaders of windows, each of whose frames is stored once: plain Grain, LMDB, LeRobotDataset, and LanceDBDataset.

The study ``windows`` exports the steps of one dataset; a sample is a window of frames and actions around each step. At
the ends of an episode the closest step is repeated and masked, as LeRobot does it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.loaders.streams import grain_batches, write_array_record
from bench.peers.loaders.torch import Lmdb as PairsInLmdb
from bench.peers.loaders.torch import MapStyle
from bench.peers.protocol import Request

LEROBOT = "lerobot"
"""Folder of the export with the same steps as a LeRobot dataset."""


class WindowMaker:
    """Function from a step to its sample; worker processes can be given it."""

    def __init__(self, request: Request) -> None:
        pairs = request.pairs
        self._distances = np.array(pairs.about["window"], np.int64)
        self._shape, self._num_actions = pairs.shape, pairs.about["vector"][0]
        self._episode, self._step = pairs.numbers[:, 1], pairs.numbers[:, 2]
        starts = np.flatnonzero(np.diff(self._episode, prepend=-1))
        lengths = np.diff(np.append(starts, len(self._episode)))
        self._first, self._last = np.repeat(starts, lengths), np.repeat(starts + lengths - 1, lengths)
        with np.load(request.export / "steps.npz") as stored:
            self._action, self._state, self._language = (stored[name] for name in ("action", "state", "language"))

    def __call__(self, step_number: int, read: Callable[[Sequence[int]], Sequence[bytes]]) -> dict[str, Any]:
        """Return the sample of a step; ``read`` returns the JPEGs of some steps."""
        import simplejpeg

        steps, is_real = self._inside(step_number, step_number + self._distances)
        frames = np.empty((len(steps), *self._shape, 3), np.uint8)
        different, first = np.unique(steps, return_index=True)
        for number, jpeg in zip(first.tolist(), read(different.tolist()), strict=True):
            simplejpeg.decode_jpeg(jpeg, buffer=frames[number])
        for number, source in enumerate(first[np.searchsorted(different, steps)].tolist()):
            if number != source:
                frames[number] = frames[source]
        steps, has_action = self._inside(step_number, step_number + np.arange(self._num_actions))
        return {
            "frames": frames,
            "frames_mask": is_real,
            "action": self._action[steps] * has_action[:, None],
            "action_mask": has_action,
            "state": self._state[step_number],
            "language": str(self._language[step_number]),
            "dataset": 0,
            "episode": int(self._episode[step_number]),
            "step": int(self._step[step_number]),
        }

    def _inside(self, step_number: int, requested: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        steps = np.clip(requested, self._first[step_number], self._last[step_number])
        return steps, steps == requested


class Lmdb(PairsInLmdb):
    """LMDB: one database, a record for each frame, read in one transaction a window."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._make = WindowMaker(request)

    def __getitem__(self, step_number: int) -> dict[str, Any]:
        return self._make(step_number, self.read)


class _GrainWindows:
    """Source of windows over an ArrayRecord file of frames."""

    def __init__(self, request: Request) -> None:
        self._make = WindowMaker(request)
        self._frames = import_module("grain").sources.ArrayRecordDataSource(str(request.copy / "frames.arrayrecord"))

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, step_number: int) -> dict[str, Any]:
        return self._make(int(step_number), self._frames.__getitems__)


class Grain:
    """Plain Grain: an ArrayRecord file of frames, a source that reads the frames of a window, worker processes."""

    @staticmethod
    def make_copy(request: Request) -> None:
        """Write a file of frames."""
        records = map(request.pairs.record, range(len(request.pairs)))
        write_array_record(str(request.copy / "frames.arrayrecord"), records)

    @staticmethod
    @contextmanager
    def open_batches(request: Request) -> Iterator[Iterator[Any]]:
        """Give batches, shuffled again in every epoch."""
        import grain

        windows = grain.MapDataset.source(_GrainWindows(request)).seed(request.seed)
        windows = (windows.shuffle() if request.order == "shuffled" else windows).repeat()
        with grain_batches(windows, request) as batches:
            yield batches


class Lerobot(MapStyle):
    """LeRobot: ``LeRobotDataset`` with ``delta_timestamps`` over the exported dataset, JPEGs in parquet.

    Pillow decodes to float32 [3, H, W], and the frames are converted back to uint8.
    """

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        set_up(request)
        about, self._numbers = request.pairs.about, request.pairs.numbers
        self._key, rate = about["image"], about["fps"]
        times = {
            self._key: [distance / rate for distance in about["window"]],
            "action": [step / rate for step in range(about["vector"][0])],
        }
        self._dataset = self.open(request.copy / LEROBOT, times)

    @staticmethod
    def open(folder: Path, times: dict[str, list[float]]) -> Any:
        """Return the dataset of the copy, which gives windows at ``times``, in seconds by feature."""
        opened = import_module("lerobot.datasets").LeRobotDataset
        return opened("local/windows", root=folder, delta_timestamps=times, return_uint8=True)

    def __getitem__(self, step_number: int) -> dict[str, Any]:
        return self._sample(step_number, self._dataset[step_number])

    def _sample(self, step_number: int, row: dict[str, Any]) -> dict[str, Any]:
        _, episode, step = self._numbers[step_number].tolist()
        is_real = ~row["action_is_pad"]
        frames = row[self._key]
        if frames.is_floating_point():
            frames = (frames * 255).round().byte()
        return {
            # LeRobot leaves out the dimension of a single frame of video.
            "frames": frames.reshape(-1, *frames.shape[-3:]).permute(0, 2, 3, 1).contiguous(),
            "frames_mask": ~row[f"{self._key}_is_pad"],
            "action": row["action"] * is_real[:, None],
            "action_mask": is_real,
            "state": row["observation.state"],
            "language": row["task"],
            "dataset": 0,
            "episode": episode,
            "step": step,
        }

    @classmethod
    def make_copy(cls, request: Request) -> None:
        """Copy the exported dataset, and open it once for its cache."""
        shutil.copytree(request.export / LEROBOT, request.copy / LEROBOT)
        cls(request)


class LerobotVideo(Lerobot):
    """LeRobot over video as it records it: AV1, a keyframe every second frame, decoded to uint8 by torchcodec."""

    @classmethod
    def make_copy(cls, request: Request) -> None:
        """Encode the frames of the exported dataset with LeRobot's own converter and its defaults."""
        encode_video(request, request.copy / LEROBOT)
        cls(request)


class LerobotLance(Lerobot):
    """lerobot-lancedb: ``LanceDBDataset`` over tables with the videos that LeRobot reads."""

    context = "forkserver"

    @staticmethod
    def open(folder: Path, times: dict[str, list[float]]) -> Any:
        """Return the dataset of the copy, which gives windows at ``times``, in seconds by feature."""
        opened = import_module("lerobot_lancedb").LanceDBDataset
        return opened(root=folder, delta_timestamps=times, return_uint8=True)

    def __getitems__(self, step_numbers: list[int]) -> list[dict[str, Any]]:
        return list(map(self._sample, step_numbers, self._dataset.__getitems__(step_numbers)))

    @classmethod
    def make_copy(cls, request: Request) -> None:
        """Encode as for ``LerobotVideo``, and convert the result."""
        video = request.copy / "video"
        encode_video(request, video)
        import_module("lerobot_lancedb.convert").convert(request.copy / LEROBOT, root=video)
        shutil.rmtree(video)


def set_up(request: Request) -> None:
    """Prepare importing LeRobot, which reads its variables then."""
    os.environ |= {"HF_HOME": str(request.copy / "cache"), "HF_HUB_OFFLINE": "1"}


def encode_video(request: Request, folder: Path) -> None:
    """Write the exported dataset with its frames as LeRobot's own video."""
    set_up(request)
    lerobot = import_module("lerobot.datasets")
    frames = lerobot.LeRobotDataset("local/frames", root=request.export / LEROBOT)
    lerobot.convert_image_to_video_dataset(frames, folder, "local/windows", num_workers=1)
