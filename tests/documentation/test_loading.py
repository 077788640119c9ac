"""What the pages say of a loader's batches, files and episodes runs."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from stream import Frames, Vector, make_loader
from tests.documentation.blocks import block_with, blocks, run_block


def test_the_first_lines(oxe_root: Path) -> None:
    names = run_block(block_with(oxe_root, "batch_at(51_234)"), {})
    assert names["batch"]["frames"].shape[:2] == (64, 2)
    assert [len(names["refs"]), names["batch"]["sample"][0]] == [64, 51_234 * 64]


def test_the_import_of_an_installation(oxe_root: Path) -> None:
    batch = run_block(block_with(oxe_root, "frames=ps.Frames([0])"), {})["batch"]
    assert batch["frames"].shape[:2] == (64, 1) and batch["action"].shape[:2] == (64, 16)


def test_the_dimensions_of_an_action(oxe_root: Path) -> None:
    code = block_with(oxe_root, 'action_names["bridge"]')
    names = run_block(code, {"make_loader": make_loader})
    shown = [ast.literal_eval(line.split("# ")[1]) for line in code.splitlines() if "# (" in line]
    assert sum(shown, ()) == names["loader"].action_names["bridge"]
    assert [len(names["loader"].action_names[name]) for name in ("bridge", "rt1")] == [8, 13]


def test_one_action_space(oxe_root: Path) -> None:
    loader = run_block(block_with(oxe_root, "on_unmapped="), {"make_loader": make_loader})["loader"]
    assert loader.batch_at(0)["action"].shape[2] == 7
    assert "tidybot" not in loader.dataset_names and len(loader.dataset_names) > 15


class Robot(list[np.ndarray]):
    """A robot of some states."""

    def send(self, action: np.ndarray) -> None:
        """Keep an action."""
        self.action = action


def test_normalising_in_training_and_on_a_robot(oxe_root: Path, tmp_path: Path) -> None:
    change = {"run/normalize.json": str(tmp_path / "normalize.json")}
    names = run_block(block_with(oxe_root, "loader.normalize.save", **change), {})
    assert names["again"].batch_at(0)["action"].any()
    robot = Robot([np.zeros(len(names["loader"].state_names["bridge"]), np.float32)] * 3)
    run_block(block_with(oxe_root, "for state in robot", **change), {"robot": robot, "policy": lambda state: state + 1})
    assert robot.action.shape == (7,) and robot.action.any()


def test_the_tutorial(frames_root: Path, tmp_path: Path) -> None:
    code = block_with(frames_root, "build/tutorial/loader.json", **{"build/tutorial/root": str(frames_root)})
    shapes: list[tuple[int, ...]] = []

    def train_step(*arrays: np.ndarray) -> float:
        shapes[:] = [array.shape for array in arrays]
        return 0.0

    run_block(code.replace("build/tutorial", str(tmp_path)), {"train_step": train_step})
    assert shapes == [(16, *shapes[0][1:]), (16, 8, 8), (16, 8, 8)]
    assert (tmp_path / "loader.json").exists()


def test_windows_in_steps_and_seconds(frames_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"make_loader": make_loader, "Frames": Frames, "Vector": Vector}
    code = block_with(frames_root, 'Vector("1s"', **{"build/demo/frames": str(frames_root)})
    assert run_block(code, names)["batch"]["action"].shape[:2] == (64, 5)
    code = block_with(frames_root, "frames_mask/wrist", **{"build/demo/frames": str(frames_root)})
    batch = run_block(code, {})["batch"]
    assert [batch[f"frames/{camera}"].shape for camera in ("primary", "wrist")] == [(64, 3, 64, 64, 3)] * 2
    assert batch["frame_step"].shape == batch["frames_mask/wrist"].shape == (64, 3)
    assert 0 < batch["frames_mask/wrist"].sum() < batch["frames_mask/primary"].sum()
    change = {"build/demo/frames": str(frames_root), '"min_future_actions": 16': '"min_future_actions": 2'}
    code = block_with(frames_root, "print(loader.spec)", **change)
    run_block(code, names)
    (shown,) = [line.split("# ")[1] for line in code.splitlines() if "# SampleSpec" in line]
    assert capsys.readouterr().out.startswith(shown.removesuffix("...)"))


def test_clips_of_a_world_model(frames_root: Path) -> None:
    code = block_with(frames_root, 'between="frames"),  # the actions', **{"build/demo/frames": str(frames_root)})
    clip = run_block(code, {})["clip"]
    assert clip["frames"].shape == (16, 8, 64, 64, 3) and clip["action"].shape == (16, 7, 1, 8)


def test_a_clip_has_the_actions_of_each_interval(frames_root: Path) -> None:
    names: dict[str, Any] = {"make_loader": make_loader, "Frames": Frames, "Vector": Vector}
    code = block_with(frames_root, "Frames.clip(", **{"build/demo/frames": str(frames_root)})
    batch = run_block(code, names)["batch"]
    assert batch["action"].shape[:3] == (64, 7, 4)
    seconds = np.where(batch["frames_mask"], batch["frame_time"], np.arange(8) / 2.5)
    np.testing.assert_allclose(seconds, [np.arange(8) / 2.5] * 64, atol=1e-6)
    is_bridge = batch["dataset"] == 0
    assert batch["action_mask"][~is_bridge, :, 2:].any() and not batch["action_mask"][is_bridge, :, 2:].any()


def test_dropout_and_delay_in_a_loss(frames_root: Path) -> None:
    names: dict[str, Any] = {"make_loader": make_loader, "Frames": Frames, "Vector": Vector, "np": np}
    code = block_with(frames_root, "history_dropout=0.3", **{"build/demo/frames": str(frames_root)})
    batch = run_block(code, names)["batch"]
    assert batch["action_delay"].shape == (64,) and batch["action_prefix_mask"].shape == (64, 16)
    noise = np.random.default_rng(0)
    known = batch["action_prefix_mask"][..., None]

    def model(batch: dict[str, Any], noisy: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Return any velocity for known actions, and the right one for the others."""
        assert (noisy == batch["action"])[np.broadcast_to(known, noisy.shape)].all()
        start = (noisy - time * batch["action"]) / np.where(known, 1, 1 - time)
        return np.where(known, 1e6, batch["action"] - start)

    names |= {"batch": batch, "rng": noise, "model": model}
    assert run_block(block_with(frames_root, "1 - time"), names)["loss"] < 1e-9


def test_from_a_step_to_its_episode(oxe_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change = {"run/loader.json": str(tmp_path / "run/loader.json")}
    loader = make_loader(oxe_root, "bridge", batch_size=8)
    run_block(block_with(oxe_root, "# mixture, split, seed", **change), {"loader": loader})
    names = run_block(block_with(oxe_root, "load_loader(", **change), {"transforms": []})
    assert capsys.readouterr().out.startswith("bridge bridge-train.tfrecord-")
    assert len(names["episode"].frames) == len(names["episode"].frame_steps) > 1


def test_tables_and_records(oxe_root: Path) -> None:
    names = run_block(block_with(oxe_root, "pa.memory_map"), {})
    assert {"episode", "step", "language", "action/world_vector"} < set(names["steps"].schema.names)
    names = run_block(block_with(oxe_root, "ArrayRecordReader"), names)
    assert names["first"][:3] == names["last"][:3] == b"\xff\xd8\xff"


def test_the_dataset_of_ones_own(tmp_path: Path) -> None:
    from convert.registry.registry import load_registry

    (text,) = blocks("docs/adding-a-dataset.md", "yaml")
    (tmp_path / "my.yaml").write_text(text)
    dataset = load_registry(config=[tmp_path / "my.yaml"]).dataset("my_robot")
    assert dataset.cameras.keys() == yaml.safe_load(text)["datasets"]["my_robot"]["cameras"].keys()


def test_an_augmentation(frames_root: Path) -> None:
    root = {"build/demo/frames": str(frames_root)}
    names = run_block(block_with(frames_root, "share_cameras=True", **root), {})
    assert names["batch"]["frames/wrist"].shape == (64, 2, 224, 224, 3)
    assert names["wider"].hue == [-0.1, 0.1] and names["own"].crop == [0.8, 1]
    code = block_with(frames_root, 'augment="device"', **{'"cuda"': '"cpu"'})
    batches = run_block(code, {"loader": names["loader"]})["batches"]
    assert next(batches)["frames/primary"].shape == (64, 2, 224, 224, 3)
    batches.close()
