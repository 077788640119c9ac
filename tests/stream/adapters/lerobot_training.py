"""A program for LeRobot's own environment: its dataset and its ACT policy beside batches of the adapter.

It writes the episodes of a converted dataset with LeRobot, compares a batch with those of LeRobot's ``DataLoader``, and
trains a small ACT policy on each for some steps. The last line of its output is JSON.
"""

# ruff: noqa: E402

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.peers.loaders.torch import import_torchvision

import_torchvision()

from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.act.processor_act import make_act_pre_post_processors

from stream import Loader, make_loader
from stream.adapters import lerobot
from stream.torch import as_tensors, to_device

DATASET, CHUNK, STEPS, ROWS = "viola", 20, 50, 4
IMAGE, STATE = "observation.images.primary", "observation.state"


def write_own(loader: Loader, folder: Path) -> LeRobotDataset:
    """Write the episodes of a loader with LeRobot, images as images; return the dataset with ACT's window."""
    (rate,) = loader.data.spec.rates
    _, _, height, width = loader.batch_at(0)[IMAGE].shape
    sizes = {STATE: len(loader.state_names[DATASET]), "action": len(loader.action_names[DATASET])}
    features: dict[str, Any] = {
        key: {"dtype": "float32", "shape": (size,), "names": None} for key, size in sizes.items()
    }
    features[IMAGE] = {"dtype": "image", "shape": (height, width, 3), "names": ["height", "width", "channels"]}
    dataset = LeRobotDataset.create("local/own", fps=int(rate or 0), features=features, root=folder, use_videos=False)
    for number in range(len(loader.data.sample_index.splits[0].episodes)):
        episode = loader.episode(DATASET, number)
        columns = {key: episode.table[key].to_pylist() for key in ("state", "action", "language")}
        for step, frame in enumerate(episode.frames):
            vectors = {STATE: columns["state"][step], "action": columns["action"][step]}
            dataset.add_frame(
                {key: np.array(value, np.float32) for key, value in vectors.items()}
                | {IMAGE: frame, "task": columns["language"][step]}
            )
        dataset.save_episode()
    dataset.finalize()
    deltas = {"action": [step / int(rate or 1) for step in range(CHUNK)]}
    return LeRobotDataset("local/own", root=folder, delta_timestamps=deltas)


def differences(loader: Loader, dataset: LeRobotDataset) -> list[str]:
    """Return the keys of LeRobot's batch of the same rows that differ; ``index`` and ``task_index`` are its own."""
    rows = {(int(e), int(f)): i for i, (e, f) in enumerate(zip(*(dataset.hf_dataset[k] for k in INDICES), strict=True))}
    mine = as_tensors(loader.batch_at(0))
    positions = zip(*(mine[key].tolist() for key in INDICES), strict=True)
    expected = torch.utils.data.default_collate([dataset[rows[position]] for position in positions])
    keys = set(expected) - {"index", "task_index"}
    return sorted(
        key
        for key in keys
        if (list(expected[key]) != mine[key] if key == "task" else not same(expected[key], mine[key]))
    )


INDICES = ("episode_index", "frame_index")


def same(expected: torch.Tensor, mine: torch.Tensor) -> bool:
    """Return whether tensors are bitwise equal, in type too."""
    return expected.dtype == mine.dtype and torch.equal(expected, mine)


def train(batches: Iterable[Any], stats: Any, sizes: dict[str, int], shape: tuple[int, ...]) -> dict[str, Any]:
    """Train a small ACT policy; return its losses and steps per second."""
    torch.manual_seed(0)
    inputs = {IMAGE: PolicyFeature(FeatureType.VISUAL, shape), STATE: PolicyFeature(FeatureType.STATE, (sizes[STATE],))}
    config = ACTConfig(
        input_features=inputs,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (sizes["action"],))},
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        pretrained_backbone_weights=None,
        dim_model=32,
        dim_feedforward=64,
        n_heads=2,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        device="cpu",
    )
    policy = ACTPolicy(config).train()
    preprocess, _ = make_act_pre_post_processors(config, dataset_stats=stats)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-4)
    losses, start = [], 0.0
    for step, batch in zip(range(STEPS), batches, strict=False):
        loss, _ = policy(preprocess(batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        start = start or time.perf_counter()
        assert np.isfinite(losses[-1]), f"step {step}: the loss is {losses[-1]}"
    return {"losses": losses, "steps_s": (STEPS - 1) / (time.perf_counter() - start)}


if __name__ == "__main__":
    root, folder = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    loader = make_loader(root, DATASET, batch_size=ROWS, num_workers=1, **lerobot.sample(chunk_size=CHUNK))
    lerobot_dataset = write_own(loader, folder)
    sizes = {STATE: len(loader.state_names[DATASET]), "action": len(loader.action_names[DATASET])}
    shape = loader.batch_at(0)[IMAGE].shape[1:]
    stats = lerobot.dataset_stats(loader)
    batches = to_device(loader, "cpu")
    result = {"differ": differences(loader, lerobot_dataset), "adapter": train(batches, stats, sizes, shape)}
    batches.close()
    sampler = torch.utils.data.RandomSampler(lerobot_dataset, replacement=True, num_samples=ROWS * STEPS)
    lerobot_batches = torch.utils.data.DataLoader(lerobot_dataset, ROWS, sampler=sampler, num_workers=1)
    result["own"] = train(lerobot_batches, stats, sizes, shape)
    numbers = {
        key: {kind: lerobot_dataset.meta.stats[key][kind] for kind in ("mean", "std", "min", "max")} for key in sizes
    }
    result["stats"] = {
        key: max(float(np.abs(stats[key][kind] - value).max()) for kind, value in values.items())
        for key, values in numbers.items()
    }
    print(json.dumps(result))
