"""Loaders of all adapters: the same batches with workers, after a resume, on ranks, and as tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Loader, StateError, digest
from stream.adapters import gr00t, latent_action, lerobot, normalization, octo, openpi, openvla
from tests.fixtures.parameters import long_but
from tests.stream.adapters.raw import UNITS

ADAPTERS: dict[str, tuple[Callable[..., Loader], str, dict[str, Any]]] = {
    "openpi": (openpi.loader, "droid,viola", {"action_horizon": 6, **UNITS}),
    "openvla": (openvla.loader, "bridge,rt1", {}),
    "oft": (openvla.loader, "bridge,viola", {"chunk": 4, "wrist": True, "proprio": True, "unknown_units": "keep"}),
    "octo": (octo.loader, "bridge,viola", {"proprio": True, "unknown_units": "keep"}),
    "act": (lerobot.loader, "viola", {"cameras": ("primary", "wrist")}),
    "diffusion": (lerobot.loader, "viola", {"policy": "diffusion"}),
    "smolvla": (lerobot.loader, "viola", {"policy": "smolvla"}),
    "lapa": (latent_action.lapa_loader, "bridge,kuka", {"image_size": (64, 64)}),
    "univla": (latent_action.univla_loader, "bridge,rt1", {}),
    "gr00t": (gr00t.loader, "droid,viola", {"action_horizon": 4, **UNITS}),
}


FIRST = ("openpi", "octo")
"""Adapters that `make test` runs with workers; the others share their code."""


def open_adapter(name: str, root: Path, **arguments: Any) -> Loader:
    make, mixture, defaults = ADAPTERS[name]
    return make(root, mixture, **{"batch_size": 4, **defaults, **arguments})


@pytest.mark.parametrize("name", long_but(FIRST, ADAPTERS))
def test_workers_and_a_resume_give_the_same_batches(name: str, frames_root: Path) -> None:
    expected = [digest(open_adapter(name, frames_root).batch_at(step)) for step in range(4)]
    iterator = iter(open_adapter(name, frames_root))
    assert [digest(next(iterator)) for _ in range(4)] == expected
    iterator.close()
    workers = iter(open_adapter(name, frames_root, num_workers=2))
    assert [digest(next(workers)) for _ in range(2)] == expected[:2]
    state = workers.get_state()
    workers.close()
    resumed = iter(open_adapter(name, frames_root, num_workers=2))
    resumed.set_state(state)
    assert [digest(next(resumed)) for _ in range(2)] == expected[2:]
    resumed.close()


def leaves(batch: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for key, value in batch.items():
        arrays |= leaves(value, f"{prefix}{key}/") if isinstance(value, dict) else {prefix + key: value}
    return arrays


@pytest.mark.parametrize("name", ADAPTERS)
def test_ranks_share_the_rows_of_the_global_batch(name: str, frames_root: Path) -> None:
    full = leaves(open_adapter(name, frames_root).batch_at(1))
    halves = [leaves(open_adapter(name, frames_root, rank=rank, world_size=2).batch_at(1)) for rank in range(2)]
    for key, value in full.items():
        parts = [half[key] for half in halves]
        np.testing.assert_array_equal(np.concatenate(parts), value, err_msg=key)


@pytest.mark.parametrize("name", ["openpi", "act"])
def test_a_batch_becomes_tensors_with_its_dicts(name: str, frames_root: Path) -> None:
    torch = pytest.importorskip("torch")
    from stream.torch import to_device

    loader = open_adapter(name, frames_root)
    batches = to_device(loader, "cpu")
    batch, arrays = leaves(next(batches)), leaves(loader.batch_at(0))
    batches.close()
    for key, value in arrays.items():
        assert isinstance(batch[key], torch.Tensor) == isinstance(value, np.ndarray)
        assert batch[key] == value if isinstance(value, list) else np.array_equal(batch[key].numpy(), value)


def test_a_state_of_another_chunk_is_refused(frames_root: Path) -> None:
    state = open_adapter("oft", frames_root).state_at(3)
    with pytest.raises(StateError, match="min_actions= and action_space= leave out"):
        open_adapter("oft", frames_root, chunk=5).step_of(state)


class Darken:
    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "frames/primary": batch["frames/primary"] // 2}


def test_transforms_see_the_batch_before_the_conversion(frames_root: Path) -> None:
    light = open_adapter("act", frames_root).batch_at(0)
    dark = open_adapter("act", frames_root, transforms=[Darken()]).batch_at(0)
    key = "observation.images.primary"
    np.testing.assert_allclose(dark[key], (light[key] * 255).round() // 2 / np.float32(255))


class AddOne:
    """Adds one to actions and states, and keeps those that it saw."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.seen += [batch[key].copy() for key in ("action", "state")]
        return {**batch, **{key: batch[key] + np.float32(1) for key in ("action", "state")}}


@pytest.mark.parametrize("name", ["openpi", "oft", "octo"])
def test_transforms_see_values_of_make_loader_and_what_they_make_is_normalised(name: str, frames_root: Path) -> None:
    plain, normalised = AddOne(), AddOne()
    raw = open_adapter(name, frames_root, transforms=[plain], normalize=False).batch_at(0)
    loader = open_adapter(name, frames_root, transforms=[normalised])
    batch = loader.batch_at(0)
    for actual, unnormalised in zip(normalised.seen, plain.seen, strict=True):
        np.testing.assert_array_equal(actual, unnormalised)
    if name == "oft":
        members = np.array([loader.dataset_names.index(dataset) for dataset in batch["dataset_names"]])
        expected = normalization(loader).normalize(raw["actions"], "action", dataset=members[:, None])
        real = batch["actions"] != 0
        np.testing.assert_array_equal(batch["actions"][real], expected[real])
        assert real.mean() > 0.5


def test_the_normalisation_of_a_loader_is_found_and_can_be_given(frames_root: Path, tmp_path: Path) -> None:
    loader = open_adapter("oft", frames_root)
    normalize = normalization(loader)
    assert normalize is normalization(loader, "state")
    assert (normalize.method, normalize.keys) == ("openvla", ("action", "state"))
    action, state = (normalize.statistics[key]["bridge"].mask for key in ("action", "state"))
    assert action.tolist() == [True] * 6 + [False] and state.all()
    second = open_adapter("openvla", frames_root, normalize=normalization(open_adapter("openvla", frames_root)))
    assert digest(second.batch_at(2)) == digest(open_adapter("openvla", frames_root).batch_at(2))
    with pytest.raises(ArgumentError, match="does not normalise the action"):
        normalization(open_adapter("act", frames_root))


def test_a_trainer_that_leaves_out_steps_takes_keep_ranges_too(frames_root: Path) -> None:
    ranges = {"bridge": {"*": [[0, 5]]}}
    members = {"bridge": {"weight": 1, "keep_ranges": ranges["bridge"]}}
    for loader in (
        openvla.loader(frames_root, members, batch_size=4, chunk=4),
        openvla.loader(frames_root, "bridge", batch_size=4, chunk=4, keep_ranges=ranges),
    ):
        assert {ref.step for step in range(20) for ref in loader.describe(step)} == {1, 2, 3, 4}
        assert loader.describe()["bridge"]["left_out"]["actions"] > 0
    with pytest.raises(ArgumentError, match="min_actions=1: the adapter sets min_actions"):
        open_adapter("oft", frames_root, min_actions=1)


WITHOUT_WRIST: dict[str, Callable[..., Loader]] = {
    "openpi": openpi.loader,
    "octo": octo.loader,
    "oft": partial(openvla.loader, wrist=True),
}


@pytest.mark.parametrize("name", WITHOUT_WRIST)
def test_a_mixture_without_a_wrist_camera_has_black_ones_where_the_trainer_takes_one(
    name: str, frames_root: Path
) -> None:
    """bridge has no wrist camera, viola has one."""
    options: dict[str, Any] = {"batch_size": 8, "unknown_units": "keep"}
    if name == "openpi":
        options |= UNITS
    alone, mixed = (
        WITHOUT_WRIST[name](frames_root, mixture, **options).batch_at(0)
        for mixture in ("bridge", {"bridge": 1, "viola": 1})
    )
    alone, mixed = leaves(alone), leaves(mixed)
    assert alone.keys() == mixed.keys()
    for key in alone:
        assert np.asarray(alone[key]).shape[1:] == np.asarray(mixed[key]).shape[1:]
    wrist = [key for key in alone if "wrist" in key]
    images = [key for key in wrist if alone[key].dtype == np.uint8]
    masks = [key for key in wrist if alone[key].dtype == bool]
    assert images and (masks or name == "oft")
    assert not any(alone[key].any() for key in (*images, *masks))
    assert any(mixed[key].any() for key in images)
    (primary,) = (key for key in alone if key in ("image/base_0_rgb", "observation/image_primary", "image"))
    assert alone[primary].any()


def test_a_camera_that_the_caller_names_has_to_be_stored(frames_root: Path) -> None:
    with pytest.raises(ArgumentError, match="no dataset of the mixture stores 'wrist'"):
        openpi.loader(frames_root, "bridge", batch_size=4, cameras={"base_0_rgb": "wrist"})
    with pytest.raises(ArgumentError, match="no dataset of the mixture stores 'wrist'"):
        octo.loader(frames_root, "bridge", batch_size=4, sizes={"primary": (64, 64), "wrist": (64, 64)})


@pytest.mark.parametrize("name", [name for name in ADAPTERS if name not in ("octo", "diffusion")])
def test_a_pairs_root_serves_the_frames_that_it_has(name: str, oxe_root: Path, frames_root: Path) -> None:
    make, _, defaults = ADAPTERS[name]
    arguments: dict[str, Any] = {**defaults, "batch_size": 8, "shuffle": "none", "unknown_units": "keep"}
    arguments.pop("cameras", None)
    pairs, frames = make(oxe_root, "bridge", **arguments), make(frames_root, "bridge", **arguments)
    refs = {(ref.episode, ref.step): (step, row) for step in range(12) for row, ref in enumerate(frames.describe(step))}
    actual, checked = leaves(pairs.batch_at(0)), 0
    for row, ref in enumerate(pairs.describe(0)):
        step, position = refs[ref.episode, ref.step]
        expected = leaves(frames.batch_at(step))
        assert actual.keys() == expected.keys()
        for key, values in actual.items():
            np.testing.assert_array_equal(values[row], expected[key][position], err_msg=key)
            checked += 1
    assert checked


@pytest.mark.parametrize("name", ["octo", "diffusion"])
def test_a_trainer_that_a_pairs_root_cannot_serve_names_the_layout(name: str, oxe_root: Path) -> None:
    with pytest.raises(ArgumentError, match=r"its pairs hold the frames .*--layout frames"):
        open_adapter(name, oxe_root)


def test_a_mixture_of_both_layouts_has_complete_pairs(frames_root: Path, oxe_root: Path) -> None:
    mixture = {"bridge": 1, "pairs": {"dataset": "bridge", "root": str(oxe_root)}}
    loader = latent_action.lapa_loader(frames_root, mixture, batch_size=4, image_size=(64, 64))
    assert loader.sizes["bridge"] == loader.sizes["pairs"]
    assert loader.batch_at(0)["video"].shape == (4, 3, 2, 64, 64)


def test_an_adapter_without_ranks_raises_in_a_group(frames_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ArgumentError, match="rank"):
        next(iter(open_adapter("openvla", frames_root)))
    iterator = iter(open_adapter("openvla", frames_root, rank=0, world_size=1))
    assert len(next(iterator)["prompt"]) == 4
    iterator.close()
