"""Arguments of all adapters: the choice of the normalisation, those that an adapter sets itself, and wrong ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Loader, digest, make_loader
from stream.adapters import gr00t, latent_action, lerobot, octo, openpi, openvla
from tests.stream.adapters.raw import UNITS

Open = Callable[..., Loader]
LOADERS: dict[str, Open] = {
    "openpi": openpi.loader,
    "openvla": openvla.loader,
    "octo": octo.loader,
    "lerobot": lerobot.loader,
    "lapa": latent_action.lapa_loader,
    "univla": latent_action.univla_loader,
    "gr00t": gr00t.loader,
}


def test_numbers_and_numpy_choose_the_normalisation_as_bools_do(frames_root: Path) -> None:
    same_values: list[list[Any]] = [[1, np.True_, True], [0, np.False_, False]]
    for values in same_values:
        loaders = [openvla.loader(frames_root, "bridge", batch_size=4, normalize=value) for value in values]
        assert len({digest(loader.batch_at(0)) for loader in loaders}) == 1


@pytest.mark.parametrize("value", [None, "yes", 2, [], object])
@pytest.mark.parametrize("name", ["openpi", "openvla", "octo"])
def test_another_normalisation_is_an_error(frames_root: Path, name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"normalize=.*; expected True for the statistics of the data"):
        LOADERS[name](frames_root, "bridge", batch_size=4, normalize=value)


FIXED = {"action": "first", "action_from": 2, "decode": "device", "frames": [0, 1], "horizon": 3, "metadata": "none"}


STATE = {"bounds": "clamp", "state_from": -1, "state_horizon": 2}


@pytest.mark.parametrize(
    ("adapter", "arguments"),
    [
        *((adapter, {**FIXED, "cameras": "primary"}) for adapter in ("univla", "lapa")),
        *((adapter, {**FIXED, **STATE}) for adapter in ("openpi", "lerobot")),
        *((adapter, {**FIXED, **STATE, "cameras": "primary"}) for adapter in ("openvla", "octo")),
        ("gr00t", {**{name: value for name, value in FIXED.items() if name != "frames"}, "cameras": "primary"}),
    ],
)
def test_an_argument_that_the_adapter_sets_is_an_error(frames_root: Path, adapter: str, arguments: Any) -> None:
    for name, value in arguments.items():
        with pytest.raises(ArgumentError, match=f"{name}=.*: the adapter sets {name}"):
            LOADERS[adapter](frames_root, "droid", batch_size=4, **{name: value})


def test_arguments_that_the_adapter_leaves_open_can_be_given(frames_root: Path) -> None:
    arguments: dict[str, Any] = {"batch_size": 4, "unknown_units": "keep", "columns": ["episode_id"], "num_workers": 0}
    loader = octo.loader(frames_root, "droid", action_space="eef_delta", **arguments)
    assert loader.data.sample_spec.action_space == "eef_delta" and loader.batch_at(0)["action"].shape == (4, 2, 4, 7)
    chosen: dict[str, Any] = {"frames": (-1, 0), "bounds": "clamp", "state_horizon": 2, "action_horizon": 4}
    clamped = gr00t.loader(frames_root, "droid", **chosen, **arguments, **UNITS)
    assert clamped.batch_at(0)["states"]["state"].shape[:2] == (4, 2)


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
    ("openvla", {"chunk": "x"}, "chunk='x'; expected a whole number >= 1"),
    ("openpi", {"action_horizon": 2.5}, "action_horizon=2.5; expected a whole number >= 1"),
    ("openpi", {"action_dim": "x"}, "action_dim='x'; expected a whole number >= 1"),
    ("openpi", {"cameras": "primary"}, "cameras='primary'; expected a mapping"),
    ("openpi", {"model": []}, r"model=\[\]; expected one of pi0"),
    ("gr00t", {"action_horizon": 0}, "action_horizon=0; expected a whole number >= 1"),
    ("gr00t", {"views": "primary"}, "views='primary'; expected a mapping"),
    ("gr00t", {"frames": "goal"}, "frames='goal'; expected a list of steps"),
    ("lerobot", {"policy": []}, r"policy=\[\]; expected act"),
    ("lerobot", {"cameras": "primary"}, "cameras='primary'; expected a mapping such as .* or a list"),
    *[
        (name, {"image_size": size}, "image_size=.*; expected \\(height, width\\) in pixels")
        for name in ("openpi", "openvla", "lapa", "univla")
        for size in (224, (0, 0), None)
    ],
    *[
        (name, {argument: value}, f"{argument}={value!r}; expected a list")
        for name in LOADERS
        for argument in ("columns", "transforms")
        for value in (None, "reward")
    ],
]


@pytest.mark.parametrize(("name", "arguments", "message"), WRONG)
def test_a_wrong_argument_is_named_when_the_loader_is_opened(
    frames_root: Path, name: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        LOADERS[name](frames_root, "droid", batch_size=4, **arguments)


@pytest.mark.parametrize(
    ("name", "argument", "message"),
    [
        ("openpi", "chunk_size", "unknown argument 'chunk_size'; did you mean 'action_horizon'?"),
        ("openvla", "chunk_size", "unknown argument 'chunk_size'; did you mean 'chunk'?"),
        ("openvla", "horizn", "unknown argument 'horizn'; arguments there: action_columns, action_space"),
        ("octo", "camera", "unknown argument 'camera'; arguments there: action_columns"),
        ("gr00t", "frame", "unknown argument 'frame'; did you mean 'frames'?"),
        ("lapa", "metadat", "unknown argument 'metadat'; arguments there: "),
    ],
)
def test_an_unknown_argument_leads_to_none_that_the_adapter_refuses(
    frames_root: Path, name: str, argument: str, message: str
) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        LOADERS[name](frames_root, "droid", batch_size=4, **{argument: 3})


def test_a_window_of_a_policy_has_whole_numbers() -> None:
    wrong: list[Any] = [(0, 5), (1, 0), ("x", 5), (1, 5, -1)]
    for numbers in wrong:
        with pytest.raises(ArgumentError, match="expected a whole number >="):
            lerobot.Window(*numbers)


@pytest.mark.parametrize("module", ["gr00t", "lerobot"])
def test_statistics_of_another_loader_are_an_error(frames_root: Path, module: str) -> None:
    other_loader = openvla.loader(frames_root, "droid", batch_size=4)
    for loader in (make_loader(frames_root, "droid", batch_size=4), other_loader):
        with pytest.raises(ArgumentError, match=f"the loader is not one of stream.adapters.{module}.loader"):
            gr00t.statistics(loader) if module == "gr00t" else lerobot.dataset_stats(loader)
