"""Fields of GR00T's ``VLAStepData``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Loader, make_loader
from stream.adapters import gr00t
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
