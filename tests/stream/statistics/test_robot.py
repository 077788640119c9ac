"""Normalisation as an argument of ``make_loader``, and for a robot without any data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stream
from stream import ArgumentError, Normalize, Vector, load_normalize, make_loader
from stream.adapters import gr00t, latent_action, lerobot, octo, openpi, openvla


@pytest.mark.parametrize("chosen", ["mean_std", {"method": "min_max", "leave": ["x"], "over": "samples"}])
def test_one_call_gives_what_two_gave(oxe_root: Path, chosen: Any) -> None:
    plain = make_loader(oxe_root, "bridge,kuka", batch_size=16)
    normalize = Normalize(plain, **({"method": chosen} if isinstance(chosen, str) else chosen))
    expected = normalize.map(plain.batch_at(1))
    loader = make_loader(oxe_root, "bridge,kuka", batch_size=16, normalize=chosen)
    reused = make_loader(oxe_root, "kuka,bridge", batch_size=16, normalize=normalize)
    for key in ("action", "state"):
        np.testing.assert_array_equal(loader.batch_at(1)[key], expected[key])
    assert loader.normalize is not None and plain.normalize is None and reused.normalize is not None
    assert reused.normalize.names == ("kuka", "bridge")
    back = loader.normalize.denormalize(expected["action"], dataset=expected["dataset"])
    inside = expected["action_mask"] & (np.abs(expected["action"]) < 1)
    np.testing.assert_allclose(back[inside], plain.batch_at(1)["action"][inside], rtol=1e-5, atol=1e-6)


class Doubles:
    """A transform of raw actions."""

    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "action": batch["action"] * 2, "seen": np.array(batch["action"])}


def test_transforms_see_the_units_of_the_data(oxe_root: Path) -> None:
    raw = make_loader(oxe_root, "kuka", batch_size=8).batch_at(0)
    own = Normalize(make_loader(oxe_root, "kuka", batch_size=8))
    loader = make_loader(oxe_root, "kuka", batch_size=8, transforms=[Doubles()], normalize=own)
    batch = loader.batch_at(0)
    np.testing.assert_array_equal(batch["seen"], raw["action"])
    assert loader.normalize is not None
    np.testing.assert_array_equal(batch["action"], loader.normalize.map({**raw, "action": 2 * raw["action"]})["action"])


def test_a_wrong_choice_is_named_when_the_loader_is_made(oxe_root: Path) -> None:
    values: list[Any] = [True, 5, ["mean_std"], "q1", {"methd": "q01_q99"}, {"tables": {}}, Normalize]
    for value in values:
        with pytest.raises(ArgumentError, match=r"normalize(=|: no setting )|method='q1'; expected one of mean_std"):
            make_loader(oxe_root, "kuka", batch_size=8, normalize=value)
    assert make_loader(oxe_root, "kuka", batch_size=8, normalize=None).normalize is None


def test_a_class_instead_of_a_transform_is_an_error_when_the_loader_is_made(oxe_root: Path) -> None:
    for transform in (Normalize, Doubles):
        with pytest.raises(ArgumentError, match=r"transform <class .*; expected a Map or RandomMap, not a class"):
            make_loader(oxe_root, "kuka", batch_size=8, transforms=[transform])


def test_normalising_twice_is_an_error_when_the_loader_is_made(oxe_root: Path, frames_root: Path) -> None:
    def made(root: Path, **arguments: Any) -> Normalize:
        return Normalize(make_loader(root, "kuka", batch_size=8), **arguments)

    twice = "the action would be normalised twice, by Normalize"
    with pytest.raises(ArgumentError, match=twice):
        make_loader(oxe_root, "kuka", batch_size=8, transforms=[made(oxe_root)], normalize="mean_std")
    with pytest.raises(ArgumentError, match=twice):
        make_loader(oxe_root, "kuka", batch_size=8, transforms=[made(oxe_root), made(oxe_root)])
    parts = [made(oxe_root, keys=["action"]), made(oxe_root, keys=["state"], method="min_max")]
    assert make_loader(oxe_root, "kuka", batch_size=8, transforms=parts).batch_at(0)


def test_a_second_normalisation_of_a_trainer_is_an_error_when_the_loader_is_made(frames_root: Path) -> None:
    oxe: Any = {"action": Vector(space="oxe")}
    normalize = Normalize(make_loader(frames_root, "viola", batch_size=8, **oxe), keys=["action"])
    samples = {module: module.sample() for module in (openpi, openvla, octo, lerobot)}
    samples[gr00t] = gr00t.sample(action_horizon=4)
    for module, sample in samples.items():
        by_itself = module in (lerobot, gr00t)
        message = "the trainer normalises by itself; leave it out" if by_itself else "would be normalised twice"
        chosen = {**sample, **oxe}
        with pytest.raises(ArgumentError, match=message):
            make_loader(frames_root, "viola", batch_size=8, **{**chosen, "transforms": [normalize, *sample.transforms]})
        with pytest.raises(ArgumentError, match=message):
            make_loader(frames_root, "viola", batch_size=8, normalize="mean_std", **chosen)
    for sample in (openpi.sample(normalize=False), latent_action.sample()):
        with pytest.raises(ArgumentError, match="comes after the conversion to the trainer's keys; take the sample's"):
            make_loader(frames_root, "viola", batch_size=8, normalize="mean_std", **sample)


@pytest.mark.parametrize("method", ["mean_std", "q01_q99", "openpi_pi05", "openvla"])
def test_a_file_serves_a_robot_without_data(oxe_root: Path, tmp_path: Path, method: Any) -> None:
    loader = make_loader(oxe_root, "bridge,rt1,kuka", batch_size=24, normalize=method)
    assert loader.normalize is not None
    loader.normalize.save(tmp_path / "normalize.json")
    robot = load_normalize(tmp_path / "normalize.json")
    raw = make_loader(oxe_root, "bridge,rt1,kuka", batch_size=24).batch_at(0)
    batch = loader.batch_at(0)
    for row, number in enumerate(raw["dataset"].tolist()):
        name = loader.dataset_names[number]
        size = len(loader.state_names[name])
        state = robot.normalize(raw["state"][row, :size], dataset=name)
        np.testing.assert_array_equal(state, batch["state"][row, :size])
        action = batch["action"][row, 0, : len(loader.action_names[name])]
        np.testing.assert_array_equal(
            robot.denormalize(action, dataset=name), loader.normalize.denormalize(action, dataset=name)
        )
    with pytest.raises(ArgumentError, match="dataset='viola'; expected one of bridge, rt1, kuka"):
        robot.denormalize(action, dataset="viola")


def test_without_a_loader_a_batch_has_no_rows_of_tables(oxe_root: Path, tmp_path: Path) -> None:
    plain = make_loader(oxe_root, "kuka,bridge", batch_size=8)
    Normalize(plain).save(tmp_path / "normalize.json")
    robot = load_normalize(tmp_path / "normalize.json")
    for use in (lambda: robot.tables, lambda: robot.map(plain.batch_at(0))):
        with pytest.raises(ArgumentError, match=r"has no tables of batches; take load_normalize\(path, loader\)"):
            use()
    assert make_loader(oxe_root, "bridge", batch_size=8, normalize=robot).batch_at(0)


def test_a_robot_needs_numpy_alone(oxe_root: Path, tmp_path: Path) -> None:
    Normalize(make_loader(oxe_root, "kuka", batch_size=8)).save(tmp_path / "normalize.json")
    code = f"""
import sys, numpy as np, stream
normalize = stream.load_normalize({str(tmp_path / "normalize.json")!r})
state = normalize.normalize(np.zeros(7, np.float32), dataset="kuka")
action = normalize.denormalize(np.zeros(13, np.float32), dataset="kuka")
heavy = "grain torch jax pyarrow pydantic array_record cv2 PIL obstore fsspec tensorflow".split()
print(state.dtype, action.shape, [name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "float32 (13,) []\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["settings"].pop("clip"), "field missing or of the wrong type"),
        (lambda content: content["settings"].update(method="median"), "field missing or of the wrong type"),
        (lambda content: content["statistics"]["action"]["kuka"].update(mask=[True]), "mask has 1 numbers, expected"),
        (lambda content: content["statistics"]["action"]["kuka"].update(mean="x"), "not a set of statistics"),
        (lambda content: content["statistics"]["action"]["kuka"].pop("names"), "field missing or of the wrong type"),
        (lambda content: content.update(statistics=5), "field missing or of the wrong type"),
    ],
)
def test_a_changed_file_is_refused(oxe_root: Path, tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "normalize.json"
    Normalize(make_loader(oxe_root, "kuka", batch_size=8)).save(path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ArgumentError, match=f"normalize.json: .*{message}"):
        stream.load_normalize(path)
