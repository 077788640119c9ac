"""LeRobot's own dataset, ACT policy and training script on batches of the adapter, in an environment with LeRobot."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.peers.list import PEERS

REPOSITORY = Path(__file__).resolve().parents[3]
FURTHER = ("grain", "array_record", "cloudpickle", "pydantic", "rich", "xxhash", "diffusers==0.35.2", "pyserial")
"""What the loader and LeRobot's policies need beside the environment of ``bench.peers``."""


@pytest.fixture(scope="module")
def lerobot_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interpreter with LeRobot 0.4.4 and the loader; PAIRSTREAM_TEST_LEROBOT names one that is there already."""
    if ready := os.environ.get("PAIRSTREAM_TEST_LEROBOT"):
        return Path(ready)
    venvs = tmp_path_factory.mktemp("venvs")
    PEERS["lerobot"].install(venvs)
    python = PEERS["lerobot"].python(venvs)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *FURTHER], check=True)
    return python


@pytest.mark.slow
def test_lerobots_dataset_gives_the_same_tensors_and_act_learns(
    lerobot_python: Path, frames_root: Path, tmp_path: Path
) -> None:
    program = Path(__file__).with_name("lerobot_training.py")
    done = subprocess.run(
        [lerobot_python, program, frames_root, tmp_path / "own"],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["differ"] == []
    assert max(result["stats"].values()) < 1e-5
    losses = result["adapter"]["losses"]
    assert len(losses) == 50 and losses[-1] < losses[0] / 2
    lerobot_losses = result["own"]["losses"]
    print(
        f"ACT, 50 steps: loss {losses[0]:.1f} to {losses[-1]:.1f}, {result['adapter']['steps_s']:.2f} steps/s; ", end=""
    )
    print(
        f"LeRobot's dataset {lerobot_losses[0]:.1f} to {lerobot_losses[-1]:.1f}, {result['own']['steps_s']:.2f} steps/s"
    )


ACT = [
    "--policy.type=act",
    "--policy.device=cpu",
    "--policy.push_to_hub=false",
    "--policy.pretrained_backbone_weights=null",
    "--policy.chunk_size=10",
    "--policy.n_action_steps=10",
    "--policy.dim_model=32",
    "--policy.n_heads=2",
    "--policy.n_encoder_layers=1",
    "--policy.n_vae_encoder_layers=1",
    "--policy.optimizer_lr=1e-4",
    "--policy.optimizer_lr_backbone=1e-4",
    "--dataset.repo_id=local/viola",
    "--log_freq=2",
    "--save_freq=10",
]


def _lerobot_train(python: Path, root: Path, options: list[str], *, launch: tuple[str, ...] = ()) -> list[float]:
    """Run the program; return the losses in its log, of each second step."""
    program = Path(__file__).parents[1] / "frameworks/lerobot/program.py"
    done = subprocess.run(
        [python, *launch, program, root, *options],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"},
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return [float(loss) for loss in re.findall(r" loss:([\d.]+)", done.stdout)]


@pytest.mark.slow
def test_lerobot_train_learns_and_resumes_at_the_next_batch(
    lerobot_python: Path, frames_root: Path, tmp_path: Path
) -> None:
    """The weights of a run that stopped at step 10 of 20 and continued are those of the run that did not stop."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    losses = _lerobot_train(
        lerobot_python, frames_root, [*ACT, "--batch_size=4", "--steps=20", f"--output_dir={whole}"]
    )
    assert len(losses) == 10 and losses[-1] < losses[0] * 0.8
    shutil.copytree(whole / "checkpoints/000010", resumed / "checkpoints/000010")
    (resumed / "checkpoints/last").symlink_to("000010")
    config = resumed / "checkpoints/000010/pretrained_model/train_config.json"
    config.write_text(config.read_text().replace(str(whole), str(resumed)))
    assert _lerobot_train(lerobot_python, frames_root, ["--resume=true", f"--config_path={config}"]) == losses[5:]
    weights = "checkpoints/000020/pretrained_model/model.safetensors"
    assert (resumed / weights).read_bytes() == (whole / weights).read_bytes()
