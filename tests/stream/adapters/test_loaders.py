"""Loaders of all adapters: the same batches with workers, after a resume, on ranks, and as tensors."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Loader, Select, StateError, digest, load_loader, make_loader
from stream.adapters import gr00t, latent_action, lerobot, octo, openpi, openvla, umi
from stream.adapters.sample import TrainerSample
from tests.fixtures.parameters import long_but
from tests.stream.adapters.raw import UNITS, changed, keep_units, statistics_of

OFT: dict[str, Any] = {"preset": "openvla_oft", "num_actions_chunk": 4}
ADAPTERS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "openpi": (openpi, "droid,viola", {"action_horizon": 6}),
    "openvla": (openvla, "bridge,rt1", {}),
    "oft": (openvla, "bridge,viola", OFT),
    "octo": (octo, "bridge,viola", {"proprio": True}),
    "act": (lerobot, "viola", {"cameras": ("primary", "wrist")}),
    "diffusion": (lerobot, "viola", {"preset": "diffusion"}),
    "smolvla": (lerobot, "viola", {"preset": "smolvla"}),
    "lapa": (latent_action, "bridge,kuka", {"image_size": (64, 64)}),
    "univla": (latent_action, "bridge,rt1", {"preset": "univla"}),
    "gr00t": (gr00t, "droid,viola", {"action_horizon": 4}),
    "umi": (umi, "bridge,droid", {"action_horizon": 4, "down_sample_steps": 2, "normalize": True}),
}


FIRST = ("openpi", "octo")
"""Adapters that `make test` runs with workers; the others share their code."""
HISTORY = ("octo", "diffusion", "umi")
"""Adapters with observations before t."""


def sample_of(name: str, **options: Any) -> TrainerSample:
    module, _, defaults = ADAPTERS[name]
    sample = keep_units(module.sample(**{**defaults, **options}))
    return changed(sample, **UNITS) if module in (openpi, gr00t) else sample


def in_front(transform: Any, sample: TrainerSample) -> TrainerSample:
    return replace(sample, transforms=[transform, *sample.transforms])


def open_adapter(name: str, root: Path, sample: TrainerSample | None = None, **arguments: Any) -> Loader:
    return make_loader(root, ADAPTERS[name][1], **{"batch_size": 4, **arguments}, **(sample or sample_of(name)))


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
    with pytest.raises(StateError, match="min_future_actions and the space of the action leave out"):
        open_adapter("oft", frames_root, sample_of("oft", num_actions_chunk=5)).step_of(state)


class Darken:
    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "frames/primary": batch["frames/primary"] // 2}


def test_transforms_see_the_batch_before_the_conversion(frames_root: Path) -> None:
    light = open_adapter("act", frames_root).batch_at(0)
    dark = open_adapter("act", frames_root, in_front(Darken(), sample_of("act"))).batch_at(0)
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
    raw = open_adapter(name, frames_root, in_front(plain, sample_of(name, normalize=False))).batch_at(0)
    with pytest.raises(ArgumentError, match="AddOne changes the action in front of its normalisation"):
        open_adapter(name, frames_root, in_front(AddOne(), sample_of(name)))
    own = open_adapter(name, frames_root).normalize
    loader = open_adapter(name, frames_root, in_front(normalised, sample_of(name, normalize=own)))
    batch = loader.batch_at(0)
    for actual, unnormalised in zip(normalised.seen, plain.seen, strict=True):
        np.testing.assert_array_equal(actual, unnormalised)
    if name == "oft":
        members = np.array([loader.dataset_names.index(dataset) for dataset in batch["dataset_names"]])
        assert loader.normalize is not None
        expected = loader.normalize.normalize(raw["actions"], "action", dataset=members[:, None])
        real = batch["actions"] != 0
        np.testing.assert_array_equal(batch["actions"][real], expected[real])
        assert real.mean() > 0.5


def test_the_normalisation_of_a_loader_is_found_and_can_be_given(frames_root: Path, tmp_path: Path) -> None:
    normalize = open_adapter("oft", frames_root).normalize
    assert normalize is not None
    assert (normalize.method, normalize.keys) == ("openvla", ("action", "state"))
    action, state = (normalize.statistics[key]["bridge"].mask for key in ("action", "state"))
    assert action.tolist() == [True] * 6 + [False] and state.all()
    chosen = sample_of("openvla", normalize=open_adapter("openvla", frames_root).normalize)
    second = open_adapter("openvla", frames_root, chosen)
    assert digest(second.batch_at(2)) == digest(open_adapter("openvla", frames_root).batch_at(2))
    assert open_adapter("act", frames_root).normalize is None
    assert open_adapter("openvla", frames_root, sample_of("openvla", normalize=False)).normalize is None


def test_a_trainer_that_leaves_out_steps_takes_keep_ranges_too(frames_root: Path) -> None:
    ranges = {"bridge": {"*": [[0, 5]]}}
    members = {"bridge": {"weight": 1, "select": {"keep_ranges": ranges["bridge"]}}}
    sample = openvla.sample(num_actions_chunk=4)
    for loader in (
        make_loader(frames_root, members, batch_size=4, **sample),
        make_loader(frames_root, "bridge", batch_size=4, **changed(sample, select={"keep_ranges": ranges})),
    ):
        assert {ref.step for step in range(20) for ref in loader.describe(step)} == {1, 2, 3, 4}
        assert loader.describe()["bridge"]["left_out"]["actions"] > 0


WITHOUT_WRIST: dict[str, TrainerSample] = {
    "openpi": changed(openpi.sample(), **UNITS),
    "octo": octo.sample(),
    "oft": openvla.sample(wrist=True),
}


@pytest.mark.parametrize("name", WITHOUT_WRIST)
def test_a_mixture_without_a_wrist_camera_has_black_ones_where_the_trainer_takes_one(
    name: str, frames_root: Path
) -> None:
    """bridge has no wrist camera, viola has one."""
    sample = keep_units(WITHOUT_WRIST[name])
    alone, mixed = (
        make_loader(frames_root, mixture, batch_size=8, **sample).batch_at(0)
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
    with pytest.raises(ArgumentError, match="no dataset of the mixture stores 'wrist'"):
        make_loader(frames_root, "bridge", batch_size=8, **changed(sample, frames={"on_missing_camera": "error"}))


def test_a_camera_that_the_caller_names_has_to_be_stored(frames_root: Path) -> None:
    with pytest.raises(ArgumentError, match="no dataset of the mixture stores 'wrist'"):
        make_loader(frames_root, "bridge", batch_size=4, **openpi.sample(cameras={"base_0_rgb": "wrist"}))
    with pytest.raises(ArgumentError, match="no dataset of the mixture stores 'wrist'"):
        sizes = {"primary": (64, 64), "wrist": (64, 64)}
        make_loader(frames_root, "bridge", batch_size=4, **octo.sample(sizes=sizes))


@pytest.mark.parametrize("name", [name for name in ADAPTERS if name not in HISTORY])
def test_a_pairs_root_serves_the_frames_that_it_has(name: str, oxe_root: Path, frames_root: Path) -> None:
    sample = sample_of(name, **({"cameras": ("primary",)} if name == "act" else {}))
    arguments: dict[str, Any] = {"batch_size": 8, "shuffle": "none", **sample}
    pairs, frames = (make_loader(root, "bridge", **arguments) for root in (oxe_root, frames_root))
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


@pytest.mark.parametrize("name", HISTORY)
def test_a_trainer_that_a_pairs_root_cannot_serve_names_the_layout(name: str, oxe_root: Path) -> None:
    with pytest.raises(ArgumentError, match=r"its pairs hold the frames .*--layout frames"):
        open_adapter(name, oxe_root)


def test_a_mixture_of_both_layouts_has_the_complete_pairs_of_one(frames_root: Path, oxe_root: Path) -> None:
    mixture = {"bridge": 1, "pairs": {"dataset": "bridge", "root": str(oxe_root)}}
    sample = latent_action.sample(image_size=(64, 64))
    complete = make_loader(frames_root, mixture, batch_size=4, **changed(sample, frames={"edges": "drop"}))
    assert complete.sizes["bridge"] == complete.sizes["pairs"]
    loader = make_loader(frames_root, mixture, batch_size=4, **sample)
    every = make_loader(frames_root, "bridge", batch_size=4, **sample)
    assert loader.sizes == {**every.sizes, "pairs": complete.sizes["pairs"]}
    assert loader.batch_at(0)["video"].shape == complete.batch_at(0)["video"].shape == (4, 3, 2, 64, 64)


def test_an_adapter_without_ranks_raises_in_a_group(frames_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ArgumentError, match="rank"):
        next(iter(open_adapter("openvla", frames_root)))
    iterator = iter(open_adapter("openvla", frames_root, rank=0, world_size=1))
    assert len(next(iterator)["prompt"]) == 4
    iterator.close()


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_saved_run_takes_the_numbers_of_the_file(name: str, frames_root: Path, tmp_path: Path) -> None:
    loader = open_adapter(name, frames_root, seed=3)
    loader.save(tmp_path / "loader.json")
    restored = load_loader(tmp_path / "loader.json", transforms=sample_of(name).transforms)
    assert (restored.normalize is None) == (loader.normalize is None)
    assert restored.spec == loader.spec and restored.fingerprint == loader.fingerprint
    assert [digest(restored.batch_at(step)) for step in (0, 3)] == [digest(loader.batch_at(step)) for step in (0, 3)]


def test_the_numbers_of_a_saved_run_are_not_those_of_the_data(frames_root: Path, tmp_path: Path) -> None:
    path = tmp_path / "loader.json"
    loader = open_adapter("openvla", frames_root)
    loader.save(path)
    content = json.loads(path.read_text())
    saved, _ = content["transforms"]
    shifted = saved["statistics"]["action"]["bridge"]
    shifted["q01"] = [value - 1 for value in shifted["q01"]]
    path.write_text(json.dumps(content))
    sample = sample_of("openvla")
    restored = load_loader(path, transforms=sample.transforms)
    assert statistics_of(restored)["action"]["bridge"].q01.tolist() == shifted["q01"]
    assert digest(restored.batch_at(0)) != digest(loader.batch_at(0))
    darker = load_loader(path, transforms=[Darken(), *sample.transforms])
    assert [type(transform).__name__ for transform in darker.run_config.transforms] == [
        "Darken",
        "Normalize",
        "ToOpenvla",
    ]
    chosen = load_loader(path, transforms=[loader.normalize, *sample.transforms[1:]])
    assert digest(chosen.batch_at(0)) == digest(loader.batch_at(0))


def test_any_argument_of_a_sample_can_be_replaced(frames_root: Path) -> None:
    sample = sample_of("openpi")
    plain = open_adapter("openpi", frames_root, sample)
    assert {*dict(**sample)} == {field.name for field in fields(sample)}
    longer = changed(sample, action={"steps": 8})
    assert open_adapter("openpi", frames_root, longer).batch_at(0)["actions"].shape == (4, 8, 32)
    column = "language_instruction_2"
    fewer = replace(sample, select=Select(where=[("step", "<", 4)]), language=column)
    batch = make_loader(frames_root, "droid", batch_size=4, **fewer).batch_at(0)
    texts = make_loader(frames_root, "droid", batch_size=4, select=fewer.select, columns=[column]).batch_at(0)
    assert batch["prompt"] == texts[column] and set(texts["step"]) <= {0, 1, 2, 3}
    lanczos = open_adapter("openpi", frames_root, changed(sample, frames={"filter": "lanczos"})).batch_at(0)
    assert (lanczos["image"]["base_0_rgb"] != plain.batch_at(0)["image"]["base_0_rgb"]).any()
    np.testing.assert_array_equal(lanczos["actions"], plain.batch_at(0)["actions"])
