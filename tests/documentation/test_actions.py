"""The page about representations of actions: loaders of three trainers, and the loop on a robot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import Vector, make_loader
from tests.documentation.blocks import TURNS, block_with, blocks, run_block
from tests.fixtures.trained_tokenizers import chunks_of, write_fast, write_paligemma


def test_chunks_of_three_trainers_from_the_same_root(frames_root: Path) -> None:
    code = block_with(frames_root, "gr00t_loader =", **{"build/demo/frames": str(frames_root)})
    names = run_block(code, {})
    assert names["pi0_loader"].batch_at(0)["actions"].shape == (16, 16, 32)
    assert np.shape(names["statistics"]["relative_action"]["eef"]["min"]) == (4, 9)
    assert names["gr00t_loader"].batch_at(0)["actions"]["eef"].shape == (16, 4, 9)
    assert names["umi_loader"].batch_at(0)["action"].shape == (16, 4, 10)


def test_two_bodies_in_one_layout(frames_root: Path) -> None:
    code = block_with(frames_root, '"slots": "rdt"', **{"build/demo/frames": str(frames_root)})
    names = run_block(code, {})
    loader, batch = names["loader"], names["batch"]
    assert batch["action"].shape == batch["action_mask"].shape == (16, 64, 128)
    assert loader.action_names["droid"][10] == "gripper" and loader.action_names["droid"][30] == "x"
    assert not batch["action"][~batch["action_mask"]].any()


def test_the_layout_of_the_page_takes_the_joints_of_a_robot(frames_root: Path, tmp_path: Path) -> None:
    (layout,) = (code for code in blocks("docs/actions.md", "yaml") if "left_arm:" in code)
    path = tmp_path / "my_robots.yaml"
    path.write_text(layout)
    loader = make_loader(
        frames_root, "droid", batch_size=4, frames=None, action=None, state=Vector(space="joint", slots=path)
    )
    batch = loader.batch_at(0)
    assert np.flatnonzero(batch["state_mask"][0]).tolist() == [*range(8, 16)] and batch["state"].shape == (4, 20)


def test_action_tokens_of_batches_and_the_chunk_of_a_robot(frames_root: Path, tmp_path: Path) -> None:
    for library in ("scipy", "sentencepiece", "tokenizers"):
        pytest.importorskip(library)
    model = write_paligemma(tmp_path / "paligemma.model")
    folder = write_fast(tmp_path / "fast", chunks_of(300, dims=8))
    paths = {"build/demo/frames": str(frames_root), "paligemma_tokenizer.model": str(model), "runs/fast": str(folder)}
    names = run_block(block_with(frames_root, "token_loader =", **paths), {})
    assert names["batch"]["token_loss_mask"].shape == (16, 250)
    np.testing.assert_allclose(names["chunk"], names["batch"]["actions"][0], atol=0.4)


class Robot:
    """A robot that takes two observations, each when one step has passed."""

    def __init__(self, states: list[np.ndarray]) -> None:
        self.states, self.sent = states, list[np.ndarray]()

    def is_running(self) -> bool:
        """Return whether an observation is left."""
        return bool(self.states)

    def observe(self) -> dict[str, Any]:
        """Return the next observation."""
        return {"frames": None, "state": self.states.pop()}

    def steps_since(self, observation: dict[str, Any]) -> int:
        """Return the steps that passed since."""
        return 1

    def send(self, command: np.ndarray) -> None:
        """Keep a command."""
        self.sent.append(command)


def test_a_prediction_becomes_commands_relative_to_its_observation(frames_root: Path, tmp_path: Path) -> None:
    """A policy that predicts no motion keeps each joint where the observation saw it."""
    code = block_with(frames_root, "gr00t_loader =", **{"build/demo/frames": str(frames_root)})
    normalize = run_block(code, {})["pi0_loader"].normalize
    normalize.save(tmp_path / "normalize.json")
    still = normalize.normalize(np.zeros((16, 8), np.float32), "action", dataset="droid")
    states = [np.full(8, value, np.float32) for value in (0.25, 0.5)]
    robot = Robot([*states])
    code = block_with(frames_root, "robot.steps_since", **{"run/normalize.json": str(tmp_path / "normalize.json")})
    run_block(code, {"robot": robot, "policy": lambda frames, state: still})
    commands = np.array(robot.sent)
    assert commands.shape == (2 * TURNS, 8)
    np.testing.assert_allclose(commands[:, :7], np.repeat([0.5, 0.25], TURNS)[:, None] * np.ones(7), atol=1e-5)
    np.testing.assert_allclose(commands[:, 7], 0, atol=1e-5)
