"""LeRobot's own dataset and ACT policy beside batches of the adapter, in an environment with LeRobot."""

from __future__ import annotations

import json
import os
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
