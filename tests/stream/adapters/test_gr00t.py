"""Fields of GR00T's ``VLAStepData``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Loader, Normalize, Vector, make_loader
from stream.adapters import gr00t
from stream.sample.rotations import to_matrix
from tests.stream.adapters.raw import UNITS, Raw, changed, places


def open_gr00t(root: Path, *, units: Any = UNITS, batch_size: int = 4, **options: Any) -> Loader:
    sample = changed(gr00t.sample(**{"action_horizon": 4, **options}), **units)
    return make_loader(root, "droid", batch_size=batch_size, shuffle="none", **sample)


def test_steps_have_complete_chunks_of_the_named_dimensions(frames_root: Path) -> None:
    keys = {"position": ["x", "y", "z"], "gripper": ["gripper"]}
    loader = open_gr00t(frames_root, batch_size=24, frames=[-1, 0], action_keys=keys)
    raw, batch = Raw(frames_root, "droid", **UNITS), loader.batch_at(0)
    assert sum(loader.sizes.values()) == sum(count - 3 - 1 for count in raw.length.values())
    for (episode, t), step in zip(places(loader), gr00t.steps(batch), strict=True):
        assert set(step) == {"images", "states", "actions", "text"}
        chunk = np.array([raw.action(episode, t + ahead) for ahead in range(4)])
        np.testing.assert_array_equal(step["actions"]["position"], chunk[:, :3])
        np.testing.assert_array_equal(step["actions"]["gripper"], chunk[:, 6:])
        np.testing.assert_array_equal(step["states"]["state"], raw.value("state", episode, t)[None])
        for image, at in zip(step["images"]["primary"], (t - 1, t), strict=True):
            assert image.dtype == np.uint8
            np.testing.assert_array_equal(image, raw.value("frames/primary", episode, at)[0])
        assert step["text"] == raw.batch["language"][raw.rows[episode, t]]


def test_statistics_are_those_of_the_data_by_key(frames_root: Path) -> None:
    keys = {"position": ["x", "y", "z"], "gripper": ["gripper"]}
    loader = open_gr00t(frames_root, action_keys=keys)
    statistics = gr00t.statistics(loader)
    values = Raw(frames_root, "droid", split="train", **UNITS).batch["action"][:, 0]
    assert {name: set(by_key) for name, by_key in statistics.items()} == {"state": {"state"}, "action": set(keys)}
    assert set(statistics["state"]["state"]) == {"mean", "std", "min", "max", "q01", "q99"}
    for key, columns in (("position", values[:, :3]), ("gripper", values[:, 6:])):
        numbers = statistics["action"][key]
        np.testing.assert_allclose(numbers["mean"], columns.mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(numbers["q99"], np.quantile(columns, 0.99, axis=0), atol=1e-5)
        np.testing.assert_allclose(numbers["min"], columns.min(axis=0), atol=1e-6)


def test_members_of_other_dimensions_and_unknown_names_are_errors(frames_root: Path) -> None:
    with pytest.raises(ArgumentError, match=r"state of viola is .*; take one space, or load them separately"):
        make_loader(frames_root, "droid,viola", batch_size=4, **gr00t.sample(action_horizon=4))
    with pytest.raises(ArgumentError, match="action_keys: no dimension 'gripped'"):
        open_gr00t(frames_root, action_keys={"hand": ["gripped"]})
    with pytest.raises(ArgumentError, match="none has the 100 steps that its actions take"):
        open_gr00t(frames_root, action_horizon=100)


KEEP: dict[str, Any] = {"on_unknown_units": "keep"}
JOINT: dict[str, Any] = {"space": "joint", **KEEP}
POSE: dict[str, Any] = {"space": "eef", **KEEP}
ROWS = ["x", "y", "z", "r00", "r01", "r02", "r10", "r11", "r12"]
KINDS: dict[str, tuple[str, dict[str, Any], list[str], gr00t.ActionConfig, dict[str, Any]]] = {
    "joint": ("droid", JOINT, [f"joint_{number}" for number in range(1, 8)], gr00t.ActionConfig("relative"), {}),
    "eef": (
        *("bridge", POSE, ROWS, gr00t.ActionConfig("relative", "eef", "xyz+rot6d")),
        {"poses": "body", "rotation": "rot6d_rows"},
    ),
}
"""Dataset, vector, dimensions and representation of a key, and the same in words of Vector."""


def open_relative(root: Path, kind: str, **options: Any) -> Loader:
    dataset, vector, names, config, _ = KINDS[kind]
    keys = {kind: names, "gripper": ["gripper"]}
    configs = {kind: config, "gripper": gr00t.ActionConfig("absolute")}
    sample = gr00t.sample(
        **{"action_horizon": 4, "state_keys": keys, "action_keys": keys, "action_configs": configs, **options}
    )
    return make_loader(root, dataset, batch_size=8, shuffle="none", **changed(sample, action=vector, state=vector))


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_of_relative_keys_are_of_each_step_of_complete_chunks(frames_root: Path, kind: str) -> None:
    dataset, vector, names, _, relative = KINDS[kind]
    loader = open_relative(frames_root, kind)
    statistics = gr00t.statistics(loader)
    assert {name: set(by_key) for name, by_key in statistics.items()} == {
        **{key: {kind, "gripper"} for key in ("state", "action")},
        "relative_action": {kind},
    }
    action = Vector(4, **vector, relative_to="state", **relative, per_step=True)
    relative_loader = make_loader(frames_root, dataset, batch_size=8, action=action, state=Vector(**vector))
    expected = Normalize(relative_loader, tails="complete", keys=["action"]).statistics["action"][dataset]
    for statistic, numbers in statistics["relative_action"][kind].items():
        assert np.shape(numbers) == (4, len(names))
        np.testing.assert_allclose(numbers, getattr(expected, statistic)[:, : len(names)], atol=1e-6)


def test_poses_of_steps_are_absolute_in_the_form_of_the_format(frames_root: Path) -> None:
    step = gr00t.steps(open_relative(frames_root, "eef").batch_at(0))[0]
    raw = Raw(frames_root, "bridge", action=POSE, state=Vector(**POSE))
    episode, t = places(open_relative(frames_root, "eef"))[0]
    turn = to_matrix(raw.value("state", episode, t)[3:6], "euler_xyz")
    np.testing.assert_allclose(step["states"]["eef"][0, 3:], turn[:2].ravel(), atol=1e-6)
    np.testing.assert_allclose(step["actions"]["eef"][0], step["states"]["eef"][0], atol=1e-6)


def test_configs_that_do_not_fit_the_keys_are_errors(frames_root: Path) -> None:
    relative = gr00t.ActionConfig("relative")
    with pytest.raises(ArgumentError, match="only eef has a format, and needs one"):
        gr00t.ActionConfig("relative", "eef")
    with pytest.raises(ArgumentError, match="rep='RELATIVE'; expected one of 'relative', 'delta', 'absolute'"):
        gr00t.ActionConfig("RELATIVE")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="no action key 'joints'"):
        open_relative(frames_root, "joint", action_configs={"joints": relative})
    with pytest.raises(ArgumentError, match="no state key 'arm', which 'joint' is relative to"):
        open_relative(frames_root, "joint", action_configs={"joint": gr00t.ActionConfig("relative", state_key="arm")})
    with pytest.raises(ArgumentError, match=r"expected a gr00t\.ActionConfig"):
        open_relative(frames_root, "joint", action_configs={"joint": "relative"})
    mixed = {"joint": gr00t.ActionConfig("relative", "eef", "xyz+rot6d")}
    mixed["gripper"] = gr00t.ActionConfig("relative", "eef", "xyz+rotvec")
    with pytest.raises(ArgumentError, match=r"formats xyz\+rot6d and xyz\+rotvec of one sample"):
        open_relative(frames_root, "joint", action_configs=mixed)
    with pytest.raises(ArgumentError, match="space='eef_delta', whose actions are displacements already"):
        gr00t.statistics(open_gr00t(frames_root, action_configs={"action": relative}, state_keys={"action": ["x"]}))
