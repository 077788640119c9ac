"""Files and formulas of other trainers, by their formulas written out here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Normalize, Vector, load_normalize, make_loader
from stream.adapters import openpi, openvla
from tests.stream.index_root import change_table, with_values, write_dataset

Sets = dict[str, Any]
FRANKA = {"fmb": 1, "stanford_robocook_converted_externally_to_rlds": 3}


def read(path: Path) -> Sets:
    """Return a file with its lists of numbers as arrays, as the trainers have them."""

    def arrays(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: arrays(item) for name, item in value.items()}
        return np.array(value) if isinstance(value, list) else value

    return arrays(json.loads(path.read_text()))


def pi_forward(x: np.ndarray, s: Sets, *, quantiles: bool) -> np.ndarray:
    """openpi, ``src/openpi/transforms.py``."""
    if quantiles:
        return (x - s["q01"]) / (s["q99"] - s["q01"] + 1e-6) * 2.0 - 1.0
    return (x - s["mean"]) / (s["std"] + 1e-6)


def pi_back(x: np.ndarray, s: Sets, *, quantiles: bool) -> np.ndarray:
    """openpi, ``src/openpi/transforms.py``."""
    if quantiles:
        return (x + 1.0) / 2.0 * (s["q99"] - s["q01"] + 1e-6) + s["q01"]
    return x * (s["std"] + 1e-6) + s["mean"]


def vla_forward(x: np.ndarray, s: Sets) -> np.ndarray:
    """OpenVLA, ``prismatic/vla/datasets/rlds/utils/data_utils.py``."""
    scaled = np.clip(2 * (x - s["q01"]) / (s["q99"] - s["q01"] + 1e-8) - 1, -1, 1)
    return np.where(s["min"] == s["max"], 0.0, np.where(s["mask"], scaled, x))


def vla_back(x: np.ndarray, s: Sets) -> np.ndarray:
    """OpenVLA, ``prismatic/models/vlas/openvla.py``."""
    return np.where(s["mask"], 0.5 * (x + 1) * (s["q99"] - s["q01"]) + s["q01"], x)


def octo_forward(x: np.ndarray, s: Sets) -> np.ndarray:
    """Octo, ``octo/data/utils/data_utils.py``."""
    return np.where(s["mask"], (x - s["mean"]) / (s["std"] + 1e-8), x)


def octo_back(x: np.ndarray, s: Sets) -> np.ndarray:
    """Octo, ``octo/model/octo_model.py``."""
    return np.where(s["mask"], x * s["std"] + s["mean"], x)


def numbers(loader: Any, name: str, key: str = "action") -> np.ndarray:
    """Return values within the statistics of a dataset, float32 [100, dims]."""
    statistics = Normalize(loader, leave=(), keys=[key]).statistics[key][name]  # type: ignore[list-item]
    share = np.linspace(0, 1, 100)[:, None]
    return (statistics.q01 * (1 - share) + statistics.q99 * share).astype(np.float32)


@pytest.mark.parametrize("method", ["mean_std", "q01_q99", "min_max", "openpi_pi0", "openpi_pi05"])
@pytest.mark.parametrize("mixture", [FRANKA, {"rt1": 1}, {"berkeley_cable_routing": 1}])
def test_openpi_takes_our_values_back_in_every_dimension(
    oxe_root: Path, tmp_path: Path, mixture: Any, method: Any
) -> None:
    loader = make_loader(oxe_root, mixture, batch_size=8)
    keys: Any = ["action"] if mixture is FRANKA else ["action", "state"]  # their states have other dimensions
    normalize = Normalize(loader, method=method, per="mixture", clip=False, keys=keys)
    normalize.export(tmp_path / "norm_stats.json", format="openpi")
    sets = read(tmp_path / "norm_stats.json")["norm_stats"]
    name = next(iter(mixture))
    for key in keys:
        trainer_key = "actions" if key == "action" else "state"
        values = numbers(loader, name, key)
        our_values = normalize.normalize(values, key, dataset=name)
        quantiles = method not in ("mean_std", "openpi_pi0")
        forward = pi_forward(values, sets[trainer_key], quantiles=quantiles)
        np.testing.assert_allclose(forward, our_values, atol=2e-6, rtol=1e-6)
        back = pi_back(our_values, sets[trainer_key], quantiles=quantiles)
        np.testing.assert_allclose(back, values, atol=1e-6, rtol=2e-7)
        np.testing.assert_allclose(normalize.denormalize(our_values, key, dataset=name), values, atol=1e-6, rtol=2e-7)


def test_a_dimension_that_is_left_alone_comes_back_as_it_was(oxe_root: Path, tmp_path: Path) -> None:
    loader = make_loader(oxe_root, "bridge", batch_size=8)
    normalize = Normalize(loader, method="q01_q99", keys=["action"])
    gripper = loader.action_names["bridge"].index("action/open_gripper[0]")
    values = np.zeros((3, 8), np.float32)
    values[:, gripper] = 0, 1, 0.25
    normalized = normalize.normalize(values, "action", dataset="bridge")
    np.testing.assert_array_equal(normalized[:, gripper], values[:, gripper])
    normalize.export(tmp_path / "pi.json", format="openpi")
    for quantiles in (False, True):
        back = pi_back(normalized, read(tmp_path / "pi.json")["norm_stats"]["actions"], quantiles=quantiles)
        np.testing.assert_allclose(back[:, gripper], values[:, gripper], atol=1e-15)
    for format, back_of in (("openvla", vla_back), ("octo", octo_back)):
        normalize.export(tmp_path / "sets.json", format=format)  # type: ignore[arg-type]
        back = back_of(normalized, read(tmp_path / "sets.json")["bridge"]["action"])
        np.testing.assert_array_equal(back[:, gripper], values[:, gripper])


@pytest.mark.parametrize("name", ["rt1", "language_table", "kuka", "berkeley_cable_routing"])
@pytest.mark.parametrize(
    ("trainer", "method"),
    [("openvla", "q01_q99"), ("openvla", "min_max"), ("openvla", "openvla"), ("octo", "mean_std"), ("octo", "octo")],
)
def test_openvla_and_octo_take_our_values_back_and_make_them_themselves(
    oxe_root: Path, tmp_path: Path, name: str, trainer: Any, method: Any
) -> None:
    forward, back = (vla_forward, vla_back) if trainer == "openvla" else (octo_forward, octo_back)
    loader = make_loader(oxe_root, name, batch_size=8)
    normalize = Normalize(loader, method=method)
    normalize.export(tmp_path / "sets.json", format=trainer)
    sets = read(tmp_path / "sets.json")[name]
    assert ("p01" in sets["action"], "q01" in sets["action"]) == (trainer == "octo", trainer == "openvla")
    for key, trainer_key in (("action", "action"), ("state", "proprio")):
        values = numbers(loader, name, key)
        our_values = normalize.normalize(values, key, dataset=name)  # type: ignore[arg-type]
        np.testing.assert_allclose(forward(values, sets[trainer_key]), our_values, atol=1e-5, rtol=1e-6)
        inside = (np.abs(our_values) < 1) | (trainer == "octo")
        denormalized = normalize.denormalize(our_values, key, dataset=name)  # type: ignore[arg-type]
        for restored in (back(our_values, sets[trainer_key]), denormalized):
            np.testing.assert_allclose(restored[inside], values[inside], atol=1e-6, rtol=2e-7)
    if trainer == "openvla":
        assert sets["num_transitions"] == normalize.statistics["action"][name].count


SETS = {
    "mean": [0.5, 0.1, 250.125, 3.0, 0.0, 1e-3, 0.5, 0.0],
    "std": [0.1, 0.2, 0.0, 0.0, 1.0, 1e-7, 0.4, 0.1],
    "q01": [0.0, -0.5, 250.125, 3.0, 0.0, 0.0, 0.0, -0.1],
    "q99": [1.0, 0.7, 250.125, 3.0, 0.0, 1e-6, 1.0, 0.1],
    "min": [-1.0, -0.6, 250.125, 3.0, 0.0, 0.0, 0.0, -0.1],
    "max": [2.0, 0.8, 250.125, 3.0, 1.0, 2e-6, 1.0, 0.1],
}
"""Statistics of eight dimensions; the third and the fourth do not vary, the fifth is a rare flag."""
VALUES = np.array([[0.76, 0.1, 250.125, 3.0, 0, 5e-7, 1, 0.05], [3, -2, 250.125, 3.0, 1, 0, 0, 9]], np.float32)


@pytest.mark.parametrize("format", ["openpi_pi0", "openpi_pi05"])
def test_the_format_of_openpi_fixes_the_formula_of_its_model(oxe_root: Path, tmp_path: Path, format: Any) -> None:
    (tmp_path / "norm_stats.json").write_text(json.dumps({"norm_stats": {"actions": SETS}}))
    loader = make_loader(oxe_root, "bridge", batch_size=4)
    normalize = load_normalize(tmp_path / "norm_stats.json", loader, format=format)
    sets = read(tmp_path / "norm_stats.json")["norm_stats"]["actions"]
    expected = pi_forward(VALUES, sets, quantiles=format == "openpi_pi05")
    result = normalize.normalize(VALUES, dataset="bridge")
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
    assert result[0, 2] == result[0, 3] == (-1 if format == "openpi_pi05" else 0)
    if format == "openpi_pi05":
        assert result[0, 0] == pytest.approx(0.52, abs=1e-5)
    assert normalize.keys == ("action",) and normalize.clip == 0


def test_a_norm_stats_json_without_its_model_is_an_error(oxe_root: Path, tmp_path: Path) -> None:
    loader: Any = make_loader(oxe_root, "bridge", batch_size=4)
    with pytest.raises(ArgumentError, match="format='openpi'; expected one of stream, openpi_pi0, openpi_pi05"):
        load_normalize(tmp_path / "norm_stats.json", loader, format="openpi")
    with pytest.raises(ArgumentError, match="has no names of dimensions; give a loader"):
        load_normalize(tmp_path / "norm_stats.json", format="openpi_pi0")


@pytest.mark.parametrize("mask", [[True] * 6 + [False, True], None])
def test_the_format_of_openvla_fixes_quantiles_clipping_and_mask(oxe_root: Path, tmp_path: Path, mask: Any) -> None:
    sets = SETS if mask is None else {**SETS, "mask": mask}
    (tmp_path / "sets.json").write_text(json.dumps({"bridge": {"action": sets}}))
    loader = make_loader(oxe_root, "bridge", batch_size=4)
    normalize = load_normalize(tmp_path / "sets.json", loader, format="openvla")
    arrays = {name: np.array(value) for name, value in {"mask": [True] * 8, **sets}.items()}
    result = normalize.normalize(VALUES, dataset="bridge")
    np.testing.assert_allclose(result, vla_forward(VALUES, arrays), atol=1e-6)
    assert np.abs(result).max() <= 1 and not result[:, 2:4].any()
    np.testing.assert_array_equal(result[:, 6], VALUES[:, 6] if mask else [1, -1])
    (tmp_path / "bad.json").write_text(json.dumps({"bridge": {"action": {**SETS, "mask": [True]}}}))
    with pytest.raises(ArgumentError, match="mask has 1 numbers, expected 8"):
        load_normalize(tmp_path / "bad.json", loader, format="openvla")


def test_the_format_of_octo_reads_its_names_and_mask(oxe_root: Path, tmp_path: Path) -> None:
    sets = {**SETS, "p01": SETS["q01"], "p99": SETS["q99"], "mask": [True] * 6 + [False, True]}
    del sets["q01"], sets["q99"]
    (tmp_path / "sets.json").write_text(json.dumps({"bridge": {"action": sets}}))
    normalize = load_normalize(tmp_path / "sets.json", make_loader(oxe_root, "bridge", batch_size=4), format="octo")
    result = normalize.normalize(VALUES, dataset="bridge")
    arrays = {name: np.array(value) for name, value in sets.items()}
    np.testing.assert_allclose(result, octo_forward(VALUES, arrays), rtol=1e-6, atol=1e-6)
    assert normalize.statistics["action"]["bridge"].q99.tolist() == SETS["q99"]


@pytest.mark.parametrize("format", ["openpi_pi0", "openpi_pi05", "openvla", "octo"])
def test_an_export_is_what_is_read_again(oxe_root: Path, tmp_path: Path, format: Any) -> None:
    loader = make_loader(oxe_root, "rt1", batch_size=8)
    normalize = Normalize(loader, method=format)
    normalize.export(tmp_path / "file.json", format=format.partition("_")[0])
    repeated = load_normalize(tmp_path / "file.json", loader, format=format)
    for key, table in normalize.tables.items():
        for part, values in vars(table).items():
            np.testing.assert_allclose(getattr(repeated.tables[key], part), values, rtol=1e-9, atol=1e-12)


def test_a_constant_of_any_size_is_0_or_minus_1_in_openpi_and_comes_back(tmp_path: Path) -> None:
    """250.1 is no float32, nor are its nine digits, and openpi divides by 10^-6."""
    folder = write_dataset(tmp_path, "one", {"train": [[12, 9]]})
    constant = np.full(21, 250.1, np.float32)
    change_table(folder, "steps", lambda table: with_values(table, "reward", constant))
    columns: Any = {"one": ["reward"]}
    for method, value in (("openpi_pi0", 0), ("openpi_pi05", -1)):
        settings = {"method": method, "keys": ["action"]}
        loader: Any = make_loader(tmp_path, "one", batch_size=4, action=Vector(columns=columns), normalize=settings)
        batch = loader.batch_at(0)
        assert (batch["action"][batch["action_mask"]] == value).all()
        loader.normalize.export(tmp_path / "norm_stats.json", format="openpi")
        sets = read(tmp_path / "norm_stats.json")["norm_stats"]["actions"]
        assert (pi_forward(constant[:, None], sets, quantiles=value == -1) == value).all()
        back = pi_back(np.full((2, 1), value, np.float32), sets, quantiles=value == -1)
        assert (back.astype(np.float32) == constant[0]).all()


def test_openpi_takes_one_set_of_statistics(oxe_root: Path, tmp_path: Path) -> None:
    loader = make_loader(oxe_root, FRANKA, batch_size=8)
    with pytest.raises(ArgumentError, match=r"one set of statistics of action, here are those of fmb, .*per='mixture'"):
        Normalize(loader, keys=("action",)).export(tmp_path / "no.json", format="openpi")
    with pytest.raises(ArgumentError, match="format='lerobot'; expected one of openpi, openvla, octo"):
        Normalize(loader).export(tmp_path / "no.json", format="lerobot")  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["pi0", "pi05", "pi0_fast"])
def test_the_adapter_of_openpi_chooses_the_formula_for_a_file(frames_root: Path, tmp_path: Path, model: Any) -> None:
    def load(normalize: Any) -> Any:
        sample: Any = openpi.sample(model, action_horizon=2, normalize=normalize)
        vectors = {"action": replace(sample.action, space="eef_delta"), "state": replace(sample.state, space="eef")}
        return make_loader(frames_root, "viola", batch_size=8, **{**sample, **vectors})

    loader, path = load(True), tmp_path / "norm_stats.json"
    loader.normalize.export(path, format="openpi")
    second = load(path)
    assert second.normalize.method == ("openpi_pi0" if model == "pi0" else "openpi_pi05")
    for key in ("actions", "state"):
        np.testing.assert_allclose(second.batch_at(0)[key], loader.batch_at(0)[key], rtol=1e-6, atol=1e-6)


def test_the_adapter_of_openvla_takes_its_file(frames_root: Path, tmp_path: Path) -> None:
    loader: Any = make_loader(frames_root, "bridge", batch_size=8, **openvla.sample())
    loader.normalize.export(tmp_path / "dataset_statistics.json", format="openvla")
    sample = openvla.sample(normalize=str(tmp_path / "dataset_statistics.json"))
    second = make_loader(frames_root, "bridge", batch_size=8, **sample)
    np.testing.assert_array_equal(second.batch_at(0)["action_bins"], loader.batch_at(0)["action_bins"])
    assert np.abs(second.batch_at(0)["actions"]).max() <= 1
