"""Our code on the page of other loaders runs, and the function for tar files converts them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from convert.run.command import main
from stream import make_loader
from tests.documentation.blocks import TURNS, block_with, run_block


def test_a_mixture_of_rlds_datasets(frames_root: Path) -> None:
    root = {"build/demo/frames": str(frames_root), "num_workers=8": "num_workers=1"}
    loader = run_block(block_with(frames_root, 'augment="octo"', **root), {})["loader"]
    batch = loader.batch_at(0)
    assert batch["frames"].shape[:2] == (256, 2) and batch["action"].shape[:2] == (256, 4)
    assert np.bincount(batch["dataset"]).tolist() in ([171, 85], [170, 86])


def test_batches_of_a_lerobot_policy(frames_root: Path) -> None:
    root = {"build/demo/frames": str(frames_root)}
    names = run_block(block_with(frames_root, "instead of dataset.meta.stats", **root), {})
    assert names["batch"]["observation.images.primary"].shape[:2] == (8, 3)
    assert names["batch"]["action"].shape == (8, 100, 8) and names["batch"]["action_is_pad"].shape == (8, 100)
    assert set(names["stats"]) >= {"action", "observation.state"}


def test_a_stream_of_mosaicml(oxe_root: Path, closing: dict[str, Any]) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    code = block_with(oxe_root, "seed=9176", **{'"cuda"': '"cpu"', "num_workers=8": "num_workers=1"})
    closing |= run_block(code, {"train_step": lambda *_: None, "model": None})
    assert closing["progress"].step == TURNS
    assert closing["progress"].state_dict(512, True) == {"loader": json.dumps(closing["loader"].state_at(2))}


def _write_tar(path: Path, episodes: range) -> None:
    """Write episodes of five steps, whose samples are not in the order of their names."""
    random = np.random.default_rng(episodes.start)
    with tarfile.open(path, "w") as tar:
        for episode in episodes:
            for step in reversed(range(5)):
                jpeg = io.BytesIO()
                Image.fromarray(random.integers(0, 255, (32, 32, 3), np.uint8)).save(jpeg, "JPEG")
                numbers = {"action": [step, episode], "state": [step / 2], "instruction": f"task {episode}"}
                for extension, content in (("jpg", jpeg.getvalue()), ("json", json.dumps(numbers).encode())):
                    entry = tarfile.TarInfo(f"{episode:04d}-{step:06d}.{extension}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))


def test_tar_files_of_webdataset(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    for number in range(2):
        _write_tar(tmp_path / f"shards/{number:06d}.tar", range(number * 2, number * 2 + 2))
    module = tmp_path / "tars.py"
    module.write_text(block_with(tmp_path, "def episodes(tar_path)"))
    arguments = ["--datasets", f"python:{module}:episodes", "--source", str(tmp_path / "shards/*.tar")]
    output = ["--output", str(tmp_path / "out"), "--layout", "frames", "--image-size", "32", "--num-workers", "1"]
    assert main([*arguments, *output]) == 0
    loader = make_loader(tmp_path / "out", "tars", batch_size=20, frames=[0], action=2, shuffle="none")
    batch = loader.batch_at(0)
    assert batch["language"] == [f"task {episode}" for episode in range(4) for _ in range(5)]
    assert batch["action"][:, 0].tolist() == [[step, episode] for episode in range(4) for step in range(5)]
