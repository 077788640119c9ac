"""Train the policy through `LeRobotDataset` and torch's `DataLoader`, in an environment with LeRobot.

    build/proof/lerobot/bin/python examples/metaworld/train_lerobot.py --root build/proof/lerobot_datasets \
        --tasks button_press,door_open --out build/proof/runs/lerobot

The folders are those of `pairstream export`. Actions and states are normalised as LeRobot does, by the statistics of
each dataset's `meta`; `lerobot.json` keeps them for `play.py`.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from policy import CHUNK, Sample, fit  # type: ignore[import-not-found]
from torch.utils.data import ConcatDataset, DataLoader, Dataset

IMAGE, STATE = "observation.images.primary", "observation.state"
EPSILON = 1e-8
"""LeRobot's addition to standard deviations."""
OPERATORS: list[Any] = []


def open_datasets(root: Path, tasks: list[str]) -> list[Any]:
    """Return a `LeRobotDataset` of each task, with the actions of t to t + 7."""
    _declare_operators()
    os.environ["HF_HUB_OFFLINE"] = "1"
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    rate = json.loads((root / tasks[0] / "meta" / "info.json").read_text())["fps"]
    times = {"action": [step / rate for step in range(CHUNK)]}
    return [LeRobotDataset(f"local/{task}", root=root / task, delta_timestamps=times) for task in tasks]


def _declare_operators() -> None:
    """Declare two operators of torchvision, whose build for CUDA cannot be imported next to a torch without it."""
    if torch.version.cuda is None:
        OPERATORS.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            OPERATORS[-1].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


class Remembered(Dataset[dict[str, Any]]):
    """The items of a dataset, each read once: LeRobot takes 3 ms for one, and an item is the same in every epoch.

    Args:
        dataset: A `LeRobotDataset`.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.items = dataset, dict[int, dict[str, Any]]()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index not in self.items:
            item = self.dataset[index]
            self.items[index] = {key: item[key] for key in (STATE, "action", "action_is_pad", "task")}
            self.items[index][IMAGE] = (item[IMAGE] * 255).round().byte()
        return self.items[index]


def read(datasets: list[Any], statistics: dict[str, Any], *, seed: int) -> Iterator[Sample]:
    """Yield batches of 64 of all datasets without end, shuffled.

    Args:
        datasets: Datasets of ``open_datasets``.
        statistics: Mean and deviation by task and key.
        seed: Seed of the order.
    """
    tasks = {dataset.meta.tasks.index[0]: name for dataset, name in zip(datasets, statistics, strict=True)}
    order = torch.Generator().manual_seed(seed)
    samples: ConcatDataset[dict[str, Any]] = ConcatDataset([Remembered(dataset) for dataset in datasets])
    while True:
        for batch in DataLoader(samples, batch_size=64, shuffle=True, drop_last=True, generator=order):
            rows = [statistics[tasks[text]] for text in batch["task"]]
            mean, deviation = (
                {key: torch.tensor([row[key][name] for row in rows]) for key in (STATE, "action")}
                for name in ("mean", "std")
            )
            state = (batch[STATE] - mean[STATE]) / (deviation[STATE] + EPSILON)
            action = (batch["action"] - mean["action"][:, None]) / (deviation["action"][:, None] + EPSILON)
            real = ~batch["action_is_pad"][:, :, None].expand_as(action)
            yield batch[IMAGE].permute(0, 2, 3, 1), state, batch["task"], action, real


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="folder with a LeRobot dataset of each task")
    parser.add_argument("--tasks", required=True, help="folders in it, with commas between")
    parser.add_argument("--steps", type=int, default=2400, help="steps of 64 samples (default: 2400)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder for policy.pt and lerobot.json")
    args = parser.parse_args()
    names = args.tasks.split(",")
    datasets = open_datasets(args.root, names)
    statistics = {
        name: {key: {n: dataset.meta.stats[key][n].tolist() for n in ("mean", "std")} for key in (STATE, "action")}
        for name, dataset in zip(names, datasets, strict=True)
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "lerobot.json").write_text(json.dumps(statistics))
    policy = fit(read(datasets, statistics, seed=args.seed), steps=args.steps, seed=args.seed)
    torch.save(policy.state_dict(), args.out / "policy.pt")
