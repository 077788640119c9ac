"""LeRobot's training script on the batches of a loader."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Loader, make_loader
from stream.adapters import lerobot

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

from stream.torch import lerobot_train
from tests.stream.frameworks.lerobot import script as lerobot_script


def open_loader(root: Path, **arguments: Any) -> Loader:
    sample = lerobot.sample("diffusion", chunk_size=4, n_obs_steps=2, drop_n_last_frames=1, cameras=["primary"])
    return make_loader(root, "viola", **{"batch_size": 4, "seed": 3, **sample, **arguments})


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The script in the place of LeRobot's, with options that fit ``open_loader``."""
    for name in ("lerobot", "lerobot.scripts"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "lerobot.scripts.lerobot_train", lerobot_script)
    policy = SimpleNamespace(
        observation_delta_indices=[-1, 0], action_delta_indices=[-1, 0, 1, 2], drop_n_last_frames=1
    )
    transforms = SimpleNamespace(enable=False)
    dataset = SimpleNamespace(streaming=False, eval_split=0.0, use_imagenet_stats=True, image_transforms=transforms)
    config = SimpleNamespace(
        **{"policy": policy, "dataset": dataset, "batch_size": 4, "steps": 3, "resume": False, "output_dir": tmp_path}
    )
    monkeypatch.setattr(lerobot_script, "CONFIG", config)
    monkeypatch.setattr(lerobot_script, "LOG", [])
    return lerobot_script


def test_the_script_trains_on_the_batches_of_the_loader(frames_root: Path, script: Any) -> None:
    loader = open_loader(frames_root)
    lerobot_train(loader)
    _, *batches = script.LOG
    assert len(batches) == 3
    for step, batch in enumerate(batches):
        expected = loader.batch_at(step)
        assert set(batch) == set(expected)
        np.testing.assert_array_equal(batch["action"], expected["action"])
        np.testing.assert_array_equal(batch["observation.images.primary"], expected["observation.images.primary"])
        assert batch["task"] == expected["task"]


def test_a_checkpoint_continues_with_the_next_batch_on_another_number_of_ranks(
    frames_root: Path, script: Any, tmp_path: Path
) -> None:
    loader = open_loader(frames_root)
    lerobot_train(loader)
    script.CONFIG.resume, script.CONFIG.checkpoint_path, script.CONFIG.steps = True, tmp_path / "2", 4
    script.CONFIG.output_dir = tmp_path / "resumed"
    script.LOG.clear()
    lerobot_train(open_loader(frames_root))
    rows = [batch["frame_index"].tolist() for batch in script.LOG[1:]]
    assert rows == [loader.batch_at(step)["frame_index"].tolist() for step in (2, 3)]
    state = (tmp_path / "2/training_state/loader_state.json").read_text()
    half = loader.with_ranks(1, 2)
    assert half.step_of(json.loads(state)) == 2


def test_what_stands_for_the_dataset_describes_the_batches(frames_root: Path, script: Any) -> None:
    loader = open_loader(frames_root)
    lerobot_train(loader)
    dataset, batch = script.LOG[:2]
    for key in dataset.meta.camera_keys:
        height, width, channels = dataset.meta.features[key]["shape"]
        assert batch[key].shape[2:] == (channels, height, width)
    for key in ("observation.state", "action"):
        assert dataset.meta.features[key]["shape"] == batch[key].shape[2:]
        assert len(dataset.meta.features[key]["names"]) == batch[key].shape[-1]
        np.testing.assert_array_equal(dataset.meta.stats[key]["mean"], lerobot.dataset_stats(loader)[key]["mean"])
    assert dataset.num_frames == sum(loader.sizes.values())
    assert dataset.num_episodes == loader.describe()["viola"]["remaining_episodes"]


def test_statistics_of_the_caller_go_to_the_processors(frames_root: Path, script: Any) -> None:
    stats = {"action": {"mean": np.zeros(7, np.float32)}}
    script.CONFIG.dataset.use_imagenet_stats = False
    lerobot_train(open_loader(frames_root), stats=stats)
    assert script.LOG[0].meta.stats == stats


@pytest.mark.parametrize(
    ("change", "value", "message"),
    [
        ("batch_size", 8, r"batch_size of all processes: 8 by LeRobot's options, 4 of the loader"),
        ("policy.observation_delta_indices", None, r"observations: None .* \[-1, 0\] of the loader; see n_obs_steps"),
        ("policy.action_delta_indices", [*range(100)], r"actions: .* \[-1, 0, 1, 2\] of the loader; see chunk_size"),
        ("policy.drop_n_last_frames", 7, "drop_n_last_frames: 7 .* 1 of the loader"),
        ("policy", None, "--reward_model"),
        ("dataset.streaming", True, "dataset.streaming: True"),
        ("dataset.eval_split", 0.1, "dataset.eval_split: 0.1"),
        ("dataset.use_imagenet_stats", False, "dataset.use_imagenet_stats: False .*stats="),
        ("dataset.image_transforms.enable", True, "dataset.image_transforms.enable: True .*augment"),
    ],
)
def test_options_that_ask_for_other_batches_are_an_error(
    frames_root: Path, script: Any, change: str, value: Any, message: str
) -> None:
    owner = script.CONFIG
    *path, name = change.split(".")
    for attribute in path:
        owner = getattr(owner, attribute)
    setattr(owner, name, value)
    with pytest.raises(ArgumentError, match=message):
        lerobot_train(open_loader(frames_root))


def test_a_loader_that_ends_before_the_training_is_an_error(frames_root: Path, script: Any) -> None:
    with pytest.raises(ArgumentError, match="steps=3, and the loader ends at step 2"):
        lerobot_train(open_loader(frames_root, num_steps=2))


def test_a_loader_of_other_ranks_is_an_error(frames_root: Path, script: Any) -> None:
    with pytest.raises(ArgumentError, match=r"processes: 1 .* 2 of the loader; .*ranks\(\)"):
        lerobot_train(open_loader(frames_root, rank=0, world_size=2))


def test_a_checkpoint_of_lerobots_own_loader_is_an_error(frames_root: Path, script: Any, tmp_path: Path) -> None:
    script.save_checkpoint(tmp_path / "1", 1, None)
    script.CONFIG.resume, script.CONFIG.checkpoint_path = True, tmp_path / "1"
    with pytest.raises(ArgumentError, match=r"loader_state.json does not exist.*--policy.path"):
        lerobot_train(open_loader(frames_root))


def test_a_script_with_other_functions_is_an_error(
    frames_root: Path, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(script, "cycle")
    with pytest.raises(ArgumentError, match=r"lerobot.scripts.lerobot_train has no cycle; .*LeRobot 0.4 or 0.6"):
        lerobot_train(open_loader(frames_root))


def test_lerobots_functions_are_its_own_again(frames_root: Path, script: Any) -> None:
    functions = [script.cycle, script.save_checkpoint, script.make_train_eval_datasets]
    lerobot_train(open_loader(frames_root))
    assert [script.cycle, script.save_checkpoint, script.make_train_eval_datasets] == functions


def test_without_lerobot_the_error_names_it(frames_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lerobot", None)
    with pytest.raises(ModuleNotFoundError, match="lerobot_train needs lerobot"):
        lerobot_train(open_loader(frames_root))
