"""Arguments of all adapters: the choice of the normalisation, what samples need, and wrong ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Frames, Loader, Vector, digest, make_loader
from stream.adapters import gr00t, latent_action, lerobot, octo, openpi, openvla
from stream.adapters.sample import TrainerSample
from tests.stream.adapters.raw import UNITS, changed, keep_units

SAMPLES: dict[str, Callable[..., TrainerSample]] = {
    "openpi": openpi.sample,
    "openvla": openvla.sample,
    "octo": octo.sample,
    "lerobot": lerobot.sample,
    "lapa": partial(latent_action.sample, "lapa"),
    "univla": partial(latent_action.sample, "univla"),
    "gr00t": partial(gr00t.sample, action_horizon=4),
}


def test_numbers_and_numpy_choose_the_normalisation_as_bools_do(frames_root: Path) -> None:
    same_values: list[list[Any]] = [[1, np.True_, True], [0, np.False_, False]]
    for values in same_values:
        samples = [openvla.sample(normalize=value) for value in values]
        loaders = [make_loader(frames_root, "bridge", batch_size=4, **sample) for sample in samples]
        assert len({digest(loader.batch_at(0)) for loader in loaders}) == 1


@pytest.mark.parametrize("value", [None, "yes", 2, [], object])
@pytest.mark.parametrize("name", ["openpi", "openvla", "octo"])
def test_another_normalisation_is_an_error(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"normalize=.*; expected True for the statistics of the data"):
        SAMPLES[name](normalize=value)


def test_the_steps_and_edges_of_a_sample_can_be_replaced(frames_root: Path) -> None:
    sample = changed(octo.sample(), action={"space": "eef_delta"})
    loader = make_loader(frames_root, "droid", batch_size=4, **keep_units(sample))
    assert loader.spec.action == Vector(5, start=-1, space="eef_delta", on_unknown_units="keep")
    assert loader.batch_at(0)["action"].shape == (4, 2, 4, 7)
    units = {"action": UNITS["action"], "state": {**UNITS["state"], "steps": 2}}
    clamped = changed(gr00t.sample(action_horizon=4, frames=(-1, 0)), frames={"edges": "repeat"}, **units)
    batch = make_loader(frames_root, "droid", batch_size=4, **clamped, seed=1).batch_at(0)
    assert batch["states"]["state"].shape[:2] == (4, 2)


LACKING: list[tuple[str, dict[str, Any], str]] = [
    *[(name, {"action": None}, "action") for name in ("openpi", "openvla", "octo", "lerobot", "gr00t")],
    *[(name, {"state": None}, "state=None, and this trainer takes it") for name in ("openpi", "gr00t")],
    *[
        (name, {"language": None}, "language=None, and this trainer takes it; keep the language of its sample")
        for name in SAMPLES
        if name != "lapa"
    ],
    *[
        (name, {"frames": Frames([0])}, r"frames=Frames\(\[0\]\); this trainer takes decoded frames of")
        for name in SAMPLES
    ],
    ("octo", {"columns": ["episode_id"]}, r"columns=\('episode_id',\); this trainer takes num_steps too"),
]


@pytest.mark.parametrize(("name", "changes", "message"), LACKING)
def test_a_sample_without_what_the_trainer_takes_is_an_error_when_the_loader_is_made(
    frames_root: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_loader(frames_root, "viola", batch_size=4, **replace(SAMPLES[name](), **changes))


@pytest.mark.parametrize("name", SAMPLES)
def test_frames_that_stay_encoded_are_an_error(frames_root: Path, name: str) -> None:
    sample = changed(SAMPLES[name](), frames={"decode": "device"})
    with pytest.raises(ArgumentError, match="takes decoded frames of"):
        make_loader(frames_root, "viola", batch_size=4, **sample)


UNKNOWN_PRESETS: list[Any] = [[], None, "pi06", "pi05-droid"]
WINDOWS = [("chunk_size", 0), ("n_obs_steps", 0), ("n_obs_steps", "x"), ("drop_n_last_frames", -1)]
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("octo", {"window_size": 0}, "window_size=0; expected a whole number >= 1"),
    ("octo", {"action_horizon": 0}, "action_horizon=0; expected a whole number >= 1"),
    ("octo", {"sizes": "primary"}, "sizes='primary'; expected a mapping"),
    ("octo", {"sizes": {}}, "sizes={}; expected a mapping"),
    ("octo", {"sizes": {"primary": 256}}, r"sizes\['primary'\]=256; expected \(height, width\) in pixels"),
    *[
        ("octo", {"keep_image_prob": value}, "keep_image_prob=.*; expected a number from 0 to 1")
        for value in (-0.1, 1.5, float("nan"), "half")
    ],
    ("openvla", {"num_actions_chunk": "x"}, "num_actions_chunk='x'; expected a whole number >= 1"),
    ("openpi", {"action_horizon": 2.5}, "action_horizon=2.5; expected a whole number >= 1"),
    ("openpi", {"action_dim": "x"}, "action_dim='x'; expected a whole number >= 1"),
    ("openpi", {"cameras": "primary"}, "cameras='primary'; expected a mapping"),
    *[
        (name, {"preset": preset}, f"preset={re.escape(repr(preset))}; expected one of {first}")
        for name, first in (
            ("openpi", "pi0, "),
            ("openvla", "openvla, "),
            ("octo", "octo"),
            ("lerobot", "act, "),
        )
        for preset in UNKNOWN_PRESETS
    ],
    ("gr00t", {"action_horizon": 0}, "action_horizon=0; expected a whole number >= 1"),
    ("gr00t", {"views": "primary"}, "views='primary'; expected a mapping"),
    ("gr00t", {"frames": "goal"}, "frames='goal'; expected a list of steps"),
    *[("lerobot", {name: value}, f"{name}={value!r}; expected a whole number >=") for name, value in WINDOWS],
    ("lerobot", {"cameras": "primary"}, "cameras='primary'; expected a mapping such as .* or a list"),
    *[
        (name, {"image_size": size}, "image_size=.*; expected \\(height, width\\) in pixels")
        for name in ("openpi", "openvla", "lapa", "univla")
        for size in (224, (0, 0))
    ],
    *[
        (name, {"image_size": None}, "image_size=None; expected \\(height, width\\) in pixels")
        for name in ("openpi", "openvla")
    ],
    ("lerobot", {"image_size": 224}, "size=224; expected \\(height, width\\) in pixels"),
]


@pytest.mark.parametrize(("name", "arguments", "message"), WRONG)
def test_a_wrong_argument_is_named_before_data_are_opened(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        SAMPLES[name](**arguments)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("argument", ["columns", "transforms"])
@pytest.mark.parametrize("value", [None, "reward"])
def test_columns_and_transforms_of_a_sample_are_lists(frames_root: Path, name: str, argument: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{argument}={value!r}; expected a list"):
        make_loader(frames_root, "droid", batch_size=4, **replace(SAMPLES[name](), **{argument: value}))


@pytest.mark.parametrize("preset", [[], "pi0", "lap"])
def test_a_wrong_preset_of_latent_actions_and_gr00t_is_named(preset: Any) -> None:
    for module, first in ((latent_action, "lapa, univla"), (gr00t, "gr00t_n1d6")):
        with pytest.raises(ArgumentError, match=f"preset={re.escape(repr(preset))}; expected one of {first}"):
            module.sample(preset)


@pytest.mark.parametrize(
    ("name", "argument", "message"),
    [
        ("openpi", "horizon", "openpi.sample: unknown argument 'horizon'; did you mean 'action_horizon'?"),
        ("openpi", "model", "openpi.sample: unknown argument 'model'; arguments there: action_dim, action_horizon"),
        (
            "openvla",
            "actions_chunk",
            "openvla.sample: unknown argument 'actions_chunk'; did you mean 'num_actions_chunk'?",
        ),
        ("openvla", "horizn", "unknown argument 'horizn'; arguments there: image_size, normalize"),
        ("octo", "camera", "unknown argument 'camera'; arguments there: action_horizon"),
        ("gr00t", "frame", "unknown argument 'frame'; did you mean 'frames'?"),
        ("lapa", "metadat", "latent_action.sample: unknown argument 'metadat'; arguments there: image_size, offset"),
        ("lerobot", "chunk", "lerobot.sample: unknown argument 'chunk'; did you mean 'chunk_size'?"),
    ],
)
def test_an_unknown_argument_has_the_closest_of_the_trainer(name: str, argument: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        SAMPLES[name](**{argument: 3})


@pytest.mark.parametrize("module", ["gr00t", "lerobot"])
def test_statistics_of_another_loader_are_an_error(frames_root: Path, module: str) -> None:
    other_loader = make_loader(frames_root, "droid", batch_size=4, **openvla.sample())
    functions: dict[str, list[Callable[[Loader], Any]]] = {
        "gr00t": [gr00t.statistics],
        "lerobot": [lerobot.dataset_stats, lerobot.features],
    }
    for loader in (make_loader(frames_root, "droid", batch_size=4), other_loader):
        for function in functions[module]:
            with pytest.raises(ArgumentError, match=f"the loader is not one of stream.adapters.{module}.sample"):
                function(loader)
