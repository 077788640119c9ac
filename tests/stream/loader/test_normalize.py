from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import Loader, make_loader
from stream.loader.mixed import Options, open_mixture
from stream.loader.normalize import Normalize
from stream.storage.errors import ArgumentError

WEIGHTS = {"bridge": 1, "kuka": 1, "taco_play": 1, "rt1": 1, "language_table": 1}


def load(root: Path, **options: Any) -> Loader:
    options = {"batch_size": 48, "threads": 1, **options}
    return make_loader(root, WEIGHTS, **options)


def expected(loader: Loader, row: int, batch: Any, key: str, method: str) -> np.ndarray:
    """Return one row of a vector, value by value from the manifest's statistics."""
    member = int(batch["dataset"][row])
    dataset = loader.data.datasets[member]
    vector = getattr(loader.data.spec, f"{key}s")[member]
    statistics: Any = dataset.manifest.statistics["train"][key]  # type: ignore[index]
    values, mask = batch[key][row].astype(np.float64), batch[f"{key}_mask"][row]
    out = np.zeros_like(values)
    for dim in range(vector.size):
        value = values[..., dim]
        if method == "mean_std":
            low, high = statistics.mean[dim], statistics.mean[dim] + statistics.std[dim]
            scaled = (value - low) / (high - low) if statistics.std[dim] > 1e-8 else value
        else:
            low, high = statistics.q01[dim], statistics.q99[dim]
            scaled = np.clip(2 * (value - low) / (high - low) - 1, -1, 1) if high - low > 2e-8 else value
        out[..., dim] = value if vector.modes[dim] == "flag" else scaled
    return np.where(mask, out, 0)


@pytest.mark.parametrize("action", ["window", "first", "mean"])
@pytest.mark.parametrize("method", ["mean_std", "q01_q99"])
def test_each_row_is_normalised_by_the_statistics_of_its_dataset(oxe_root: Path, method: Any, action: Any) -> None:
    loader = load(oxe_root, action=action)
    transform = Normalize(loader, method=method)
    batch = loader.batch_at(0)
    before = {key: batch[key].copy() for key in ("action", "state")}
    result = transform.map(batch)
    assert set(batch["dataset"]) == set(range(len(WEIGHTS)))
    for key in ("action", "state"):
        assert result[key].dtype == np.float32
        assert np.array_equal(batch[key], before[key])
        assert (result[key][~batch[f"{key}_mask"]] == 0).all()
        for row in range(len(batch["dataset"])):
            np.testing.assert_allclose(
                result[key][row], expected(loader, row, batch, key, method), rtol=1e-4, atol=1e-4
            )
    for key in batch:
        assert key in ("action", "state") or result[key] is batch[key]


def test_flags_and_constant_values_stay_as_they_are(oxe_root: Path) -> None:
    loader = load(oxe_root)
    kept = 0
    for method in ("mean_std", "q01_q99"):
        tables = Normalize(loader, method=method).tables
        for key in ("action", "state"):
            for member, dataset in enumerate(loader.data.datasets):
                vector = getattr(loader.data.spec, f"{key}s")[member]
                statistics = dataset.manifest.statistics["train"][key]
                for dim, mode in enumerate(vector.modes):
                    if mode == "flag" or statistics.std[dim] == 0:
                        kept += 1
                        assert tables[key].scale[member, dim] == 1
                        assert tables[key].shift[member, dim] == 0
                        assert tables[key].low[member, dim] == -np.inf
    assert kept


def test_the_training_data_of_a_dataset_get_mean_0_and_standard_deviation_1(oxe_root: Path) -> None:
    loader = make_loader(oxe_root, "kuka", batch_size=20, split="train", shuffle="none", threads=1)
    transform = Normalize(loader, method="q01_q99")
    assert np.abs(transform.map(loader.batch_at(0))["state"]).max() <= 1
    (statistics,) = [d.manifest.statistics["train"]["action"] for d in loader.data.datasets]
    standard = Normalize(loader).tables["action"]
    for dim, mode in enumerate(loader.data.spec.actions[0].modes):
        mean, std = statistics.mean[dim], statistics.std[dim]
        if mode != "flag" and std:
            assert mean is not None
            assert mean * standard.scale[0, dim] + standard.shift[0, dim] == pytest.approx(0, abs=1e-5)
            assert (mean + std) * standard.scale[0, dim] + standard.shift[0, dim] == pytest.approx(1, abs=1e-5)


def test_only_the_keys_that_were_asked_for_are_normalised(oxe_root: Path) -> None:
    loader = load(oxe_root, action="sum")
    batch = loader.batch_at(0)
    result = Normalize(loader, keys=["state"]).map(batch)
    assert result["action"] is batch["action"]
    assert not np.array_equal(result["state"], batch["state"])


def test_as_a_transform_it_gives_what_it_gives_afterwards(oxe_root: Path) -> None:
    plain = load(oxe_root)
    transform = Normalize(plain)
    inside = load(oxe_root, transforms=[transform]).batch_at(2)
    outside = transform.map(plain.batch_at(2))
    assert np.array_equal(inside["action"], outside["action"])
    assert np.array_equal(inside["state"], outside["state"])


class Doubled(Normalize):
    def map(self, element: Any) -> Any:
        return {**super().map(element), "doubled": True}


def test_a_transform_made_of_it_stays_itself(oxe_root: Path) -> None:
    plain = load(oxe_root)
    assert load(oxe_root, transforms=[Doubled(plain)]).batch_at(0)["doubled"]


def test_statistics_of_training_serve_another_split(oxe_root: Path) -> None:
    data = {split: open_mixture(oxe_root, {"bridge": 1}, split=split, options=Options()) for split in ("train", "test")}
    tables = {split: Normalize(each).tables["action"] for split, each in data.items()}
    assert np.array_equal(tables["train"].scale, tables["test"].scale)


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({}, {"method": "minmax"}, "method='minmax'; expected 'mean_std' or 'q01_q99'"),
        ({}, {"split": "val"}, "dataset bridge: no statistics of action in split 'val'; splits with statistics: "),
        ({}, {"keys": ("reward",)}, r"keys=\('reward',\); expected a list of 'action', 'state' or both"),
        ({}, {"keys": "action"}, "keys='action'; expected a list"),
        ({"action": "sum"}, {}, "action='sum' have no statistics"),
        ({"metadata": "none"}, {}, "metadata='none' has no action and state"),
        ({"metadata": "dataset_only"}, {}, "metadata='dataset_only' has no action and state"),
        ({"action_columns": {"bridge": ["reward"]}}, {}, r"dataset bridge: action is reward\[0\], the manifest has"),
    ],
)
def test_what_has_no_statistics_is_refused(
    oxe_root: Path, options: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    data = open_mixture(oxe_root, {"bridge": 1}, split="train", options=Options(**options))
    with pytest.raises(ArgumentError, match=message):
        Normalize(data, **arguments)
