"""Statistics of vectors that the caller's transforms change: an error, or those of what the transforms give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Loader, Normalize, Vector, make_loader

ARGUMENTS: dict[str, Any] = {"batch_size": 8, "frames": [0], "action": Vector(3), "state": Vector(), "shuffle": "none"}


class Subtract:
    """Subtracts the first numbers of the state from the action, as openpi's DeltaActions does."""

    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        size = min(batch["action"].shape[-1], batch["state"].shape[-1])
        action = batch["action"].copy()
        action[..., :size] -= batch["state"][:, None, :size]
        return {**batch, "action": np.where(batch["action_mask"], action, 0)}


class Brighten:
    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "frames": batch["frames"] // 2}


class NeedFrames:
    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "action": batch["action"] * (batch["frames"].mean() > 0)}


def open_loader(root: Path, **arguments: Any) -> Loader:
    return make_loader(root, "bridge,kuka", **{**ARGUMENTS, **arguments})


@pytest.mark.parametrize("normalize", ["mean_std", {"method": "q01_q99", "over": "samples"}])
def test_stored_statistics_of_a_changed_action_are_an_error(frames_root: Path, normalize: Any) -> None:
    with pytest.raises(ArgumentError, match="Subtract changes the action in front of its normalisation, whose"):
        open_loader(frames_root, transforms=[Subtract()], normalize=normalize)
    for fine in ({"transforms": [Brighten()], "normalize": normalize}, {"transforms": [Subtract()]}):
        open_loader(frames_root, **fine)
    own = Normalize(open_loader(frames_root))
    assert open_loader(frames_root, transforms=[Subtract()], normalize=own).normalize is not None


@pytest.mark.parametrize("per", ["dataset", "mixture"])
def test_transformed_statistics_are_those_of_what_the_transforms_give(frames_root: Path, per: str) -> None:
    mixture = "bridge" if per == "mixture" else "bridge,kuka"
    arguments = {**ARGUMENTS, "transforms": [Subtract()]}
    plain = make_loader(frames_root, mixture, **arguments, num_epochs=1)
    batches = [plain.batch_at(step) for step in range(plain.num_steps or 0)]
    settings = {"method": "mean_std", "statistics": "transformed", "per": per, "keys": ["action"]}
    loader = make_loader(frames_root, mixture, **arguments, normalize=settings)
    assert loader.normalize is not None
    for number, name in enumerate(loader.dataset_names):
        statistics = loader.normalize.statistics["action"][name]
        for dim in range(len(statistics.names)):
            values = [batch["action"][..., dim][batch["dataset"] == number] for batch in batches]
            masks = [batch["action_mask"][..., dim][batch["dataset"] == number] for batch in batches]
            numbers = np.concatenate(values)[np.concatenate(masks)].astype(np.float64)
            expected = [numbers.mean(), numbers.std(), *np.quantile(numbers, [0.01, 0.99])]
            actual = [getattr(statistics, key)[dim] for key in ("mean", "std", "q01", "q99")]
            np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-9)
    batch = loader.batch_at(0)
    assert abs(batch["action"]).max() < 100


def test_a_transform_that_needs_frames_says_so(frames_root: Path) -> None:
    with pytest.raises(ArgumentError, match="a transform needs 'frames', and the statistics are of batches without"):
        open_loader(frames_root, transforms=[NeedFrames()], normalize={"statistics": "transformed"})
    with pytest.raises(ArgumentError, match="statistics='other'; expected 'stored' or 'transformed'"):
        open_loader(frames_root, normalize={"statistics": "other"})


class Double:
    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "action": batch["action"] * 2}


class DropMask:
    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in batch.items() if key != "action_mask"}


def test_actions_between_frames_are_counted_by_dimension(frames_root: Path) -> None:
    arguments = {**ARGUMENTS, "frames": [0, 2, 5], "action": Vector(between="frames"), "transforms": [Double()]}
    plain = make_loader(frames_root, "bridge", **arguments, num_epochs=1)
    batches = [plain.batch_at(step) for step in range(plain.num_steps or 0)]
    values = np.concatenate([batch["action"][batch["action_mask"].all(axis=-1)] for batch in batches])
    loader = make_loader(frames_root, "bridge", **arguments, normalize={"statistics": "transformed"})
    assert loader.normalize is not None
    statistics = loader.normalize.statistics["action"]["bridge"]
    np.testing.assert_allclose(statistics.max, values.max(axis=0))
    np.testing.assert_allclose(statistics.mean, values.mean(axis=0, dtype=np.float64), rtol=1e-6, atol=1e-9)


def test_a_transform_without_the_mask_is_an_error(frames_root: Path) -> None:
    with pytest.raises(ArgumentError, match="the transforms return no action_mask; keep action and action_mask"):
        open_loader(frames_root, transforms=[DropMask()], normalize={"statistics": "transformed", "keys": ["action"]})
