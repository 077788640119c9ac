"""ALOHA's joints and grippers in openpi's batches, and back for the robot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Loader, digest, load_loader, make_loader
from stream.adapters import aloha, openpi
from tests.fixtures.arrays import written as files
from tests.fixtures.arrays.converted import convert
from tests.stream.adapters.raw import changed, places

HORIZON = 3
CAMERAS = {"base_0_rgb": "cam_high", "left_wrist_0_rgb": None, "right_wrist_0_rgb": None}
IS_GRIPPER = np.isin(np.arange(14), aloha.GRIPPERS)
SIGNS = np.array([1, -1, -1, 1, 1, 1, 1] * 2)


@pytest.fixture(scope="module")
def pour(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[files.Written]]:
    folder = tmp_path_factory.mktemp("aloha")
    written = files.write_aloha(folder / "pour", compress=False)
    assert convert(f"aloha:{folder / 'pour'}", folder / "root") == 0
    return folder / "root", written


def open_pour(root: Path, **options: Any) -> Loader:
    arguments: dict[str, Any] = {"action_horizon": HORIZON, "image_size": (32, 32), "cameras": CAMERAS, **options}
    return make_loader(root, "pour", batch_size=15, shuffle="none", **openpi.sample(**arguments))


@pytest.mark.parametrize(
    ("gripper", "in_state", "in_action"),
    [(0.0, -1.079866, -1.1689), (0.5, -0.140056, -0.11275), (1.0, 0.945653, 0.9434)],
)
def test_grippers_are_those_of_openpi(gripper: float, in_state: float, in_action: float) -> None:
    values = np.where(IS_GRIPPER, gripper, 0.25)
    state, action = aloha.adapt_state(values), aloha.adapt_actions(values)
    np.testing.assert_allclose(state[IS_GRIPPER], in_state, atol=1e-6)
    np.testing.assert_allclose(action[IS_GRIPPER], in_action, atol=1e-6)
    for adapted in (state, action):
        np.testing.assert_array_equal(adapted[~IS_GRIPPER], (0.25 * SIGNS)[~IS_GRIPPER])


def test_commands_are_the_inverse_and_keep_their_type() -> None:
    chunk = np.random.default_rng(0).uniform(0, 1, (5, 14)).astype(np.float32)
    before = chunk.copy()
    commands = aloha.restore_actions(aloha.adapt_actions(chunk))
    np.testing.assert_allclose(commands, chunk, atol=1e-6)
    np.testing.assert_array_equal(chunk, before)
    assert commands.dtype == np.float32


@pytest.mark.parametrize("is_delta", [False, True])
@pytest.mark.parametrize("preset", ["pi0", "pi05"])
def test_batches_are_adapted_then_relative_and_their_statistics_are_of_that(
    pour: tuple[Path, list[files.Written]], preset: openpi.Preset, is_delta: bool
) -> None:
    root, written = pour
    options: dict[str, Any] = {"preset": preset, "adapt_to_pi": True, "use_delta_joint_actions": is_delta}
    plain, scaled = open_pour(root, **options, normalize=False), open_pour(root, **options)
    batch, rows = plain.batch_at(0), places(plain)
    chunks, states = [], []
    for episode, step in rows:
        numbers = written[episode].numbers
        steps = np.minimum(step + np.arange(HORIZON), len(numbers["action"]) - 1)
        state, actions = (
            aloha.adapt_state(numbers["observations/qpos"][step]),
            aloha.adapt_actions(numbers["action"][steps]),
        )
        chunks.append(actions - np.where(IS_GRIPPER, 0, state) * is_delta)
        states.append(state)
    np.testing.assert_allclose(batch["actions"][..., :14], chunks, atol=1e-6)
    np.testing.assert_allclose(batch["state"][:, :14], states, atol=1e-6)
    normalize: Any = scaled.normalize
    for key, expected in (("action", np.array(chunks)), ("state", np.array(states)[:, None])):
        numbers = normalize.statistics[key]["pour"]
        pooled = expected.reshape(-1, 14).astype(np.float64)
        for name in ("mean", "std", "min", "max"):
            np.testing.assert_allclose(getattr(numbers, name), getattr(pooled, name)(axis=0), atol=1e-6)
        np.testing.assert_allclose(numbers.q99, np.quantile(pooled, 0.99, axis=0), atol=1e-6)
    normalised = scaled.batch_at(0)["actions"]
    for row, (episode, step) in enumerate(rows):
        numbers = written[episode].numbers
        state = aloha.adapt_state(numbers["observations/qpos"][step])
        absolute = normalize.denormalize(normalised[row, :, :14], dataset="pour", state=state)
        steps = np.minimum(step + np.arange(HORIZON), len(numbers["action"]) - 1)
        np.testing.assert_allclose(aloha.restore_actions(absolute), numbers["action"][steps], atol=1e-5)


def test_data_of_another_robot_are_an_error(pour: tuple[Path, list[files.Written]], frames_root: Path) -> None:
    root, _ = pour
    sample = openpi.sample(adapt_to_pi=True, cameras=CAMERAS, use_delta_joint_actions=True)
    seven = changed(sample, action={"columns": [("action", range(7))], "relative_to": None})
    with pytest.raises(ArgumentError, match="adapt_to_pi: action of pour has 7 dimensions; expected 14: six joints"):
        make_loader(root, "pour", batch_size=4, **seven)
    with pytest.raises(ArgumentError, match=r"absolute dimensions of the action of pour are none; .* left_gripper and"):
        make_loader(root, "pour", batch_size=4, **changed(sample, action={"absolute": []}))
    with pytest.raises(ArgumentError, match=r"shape \(7,\) and float64; expected floats of 14 dimensions"):
        aloha.adapt_state(np.zeros(7))


def test_a_saved_run_keeps_the_adapted_statistics(pour: tuple[Path, list[files.Written]], tmp_path: Path) -> None:
    loader = open_pour(pour[0], adapt_to_pi=True, use_delta_joint_actions=True)
    loader.save(tmp_path / "loader.json")
    sample = openpi.sample(adapt_to_pi=True, use_delta_joint_actions=True, cameras=CAMERAS, image_size=(32, 32))
    again = load_loader(tmp_path / "loader.json", transforms=sample.transforms)
    assert digest(again.batch_at(0)) == digest(loader.batch_at(0))
