from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from stream.batch.cameras import find_cameras
from stream.loader.mixed import MixedData, open_mixture
from stream.loader.options import Options
from stream.storage.errors import ArgumentError


def mix(root: Path, mixture: Any, *, split: str = "train", **options: Any) -> MixedData:
    return open_mixture(root, mixture, split=split, options=Options(**options))


def test_members_keep_their_order_sizes_weights_and_offsets(oxe_root: Path) -> None:
    data = mix(oxe_root, {"rt1": 3, "bridge": 1, "language_table": 4})
    assert data.names == ("rt1", "bridge", "language_table")
    assert data.sizes == {"rt1": 28, "bridge": 20, "language_table": 16}
    assert data.weights == {"rt1": 0.375, "bridge": 0.125, "language_table": 0.5}
    assert data.offsets == (3, 5, 10)


@pytest.mark.parametrize("split", ["train[:50%]", "train[50%:]"])
def test_all_29_datasets_open_together(oxe_root: Path, split: str) -> None:
    data = mix(oxe_root, dict.fromkeys(names(oxe_root), 1), split=split)
    assert len(data.names) == 29
    assert sum(data.weights.values()) == 1


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_batch_is_as_wide_as_the_widest_member(oxe_root: Path) -> None:
    data = mix(oxe_root, {"bridge": 1, "kuka": 1, "language_table": 1})
    spec = data.spec
    assert max(spec.offsets) == spec.window == 10
    assert spec.action_size == max(vector.size for vector in spec.actions)
    assert spec.frame_shape == (64, 64)
    assert spec.num_frames == (2, 2, 2)


def test_several_missing_datasets_are_named_together(oxe_root: Path) -> None:
    with pytest.raises(ArgumentError, match="2 of 3 datasets of the mixture are missing: nowhere, nothing; convert"):
        mix(oxe_root, {"bridge": 1, "nowhere": 1, "nothing": 1})


def test_a_dataset_in_two_versions_at_once_is_refused(oxe_root: Path) -> None:
    with pytest.raises(ArgumentError, match="dataset bridge is in the mixture more than once"):
        mix(oxe_root, {"bridge": 1, "bridge:0.1.0": 2})


def test_a_weight_too_small_to_be_drawn_is_refused_with_the_members(oxe_root: Path) -> None:
    with pytest.raises(ArgumentError, match=r"member 1 is less than 1 in 1,048,576.*members are bridge, kuka"):
        mix(oxe_root, {"bridge": 1, "kuka": 1e-8})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1.5}, "seed=1.5; expected a whole number"),
        ({"seed": True}, "seed=True"),
        ({"seed": "0"}, "seed='0'"),
        ({"samples_per_episode": -1}, "samples_per_episode=-1; expected a whole number >= 0"),
        ({"samples_per_episode": 2.0}, "samples_per_episode=2.0"),
        ({"horizon": 0}, "horizon=0; expected a whole number >= 1"),
        ({"horizon": 10**9}, "horizon=1000000000; at most 100,000"),
        ({"columns": ["reward"], "metadata": "none"}, "columns=.*with metadata='none' a batch has none of them"),
        ({"metadata": "all"}, "metadata='all'; expected one of full, dataset_only, none"),
        ({"action": "last"}, "action='last'; expected one of window, sum, mean, first"),
        ({"columns": "reward"}, "columns='reward'; expected a list"),
        ({"columns": [3]}, r"columns=\[3\]; expected a list"),
        ({"action_columns": ["reward"]}, "action_columns=.*expected a mapping of dataset names"),
        ({"state_columns": "reward"}, "state_columns=.*expected a mapping of dataset names"),
        ({"shuffle": "yes"}, "shuffle='yes'"),
        ({"filters": [("nothing", "==", 1)]}, "no column 'nothing'"),
        ({"filters": {"rt1": [("step", "==", 1)]}}, "filters: no member 'rt1'"),
    ],
)
def test_an_option_that_cannot_be_is_refused(oxe_root: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        mix(oxe_root, {"bridge": 1, "kuka": 1}, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action_columns": {"brigde": ["reward"]}}, "action_columns: no member 'brigde'; did you mean 'bridge'"),
        ({"state_columns": {"bridge": ["nothing"]}}, "dataset bridge: state: no column 'nothing'"),
        ({"columns": ["nothing"]}, "columns: no dataset of the mixture has 'nothing'"),
        ({"columns": ["step"]}, r"columns: 'step' is a key of every batch already.*write episodes\.step, steps\.step"),
        ({"columns": ["language"]}, "columns: 'language' is a key of every batch already"),
    ],
)
def test_a_column_that_a_batch_cannot_hold_is_refused(oxe_root: Path, options: dict[str, Any], message: str) -> None:
    data = mix(oxe_root, {"bridge": 1, "kuka": 1}, **options)
    with pytest.raises(ArgumentError, match=message):
        _ = data.spec


def test_negative_and_large_seeds_are_seeds(oxe_root: Path) -> None:
    orders = [mix(oxe_root, "bridge", seed=seed).fingerprint()["seed"] for seed in (-1, 2**100)]
    assert orders == [-1, 2**100]


@pytest.fixture
def edited(oxe_root: Path, tmp_path: Path) -> MixedData:
    """Return two datasets; the second states a different frame size."""
    for name in ("bridge", "kuka"):
        shutil.copytree(oxe_root / name, tmp_path / name)
    data = mix(tmp_path, {"bridge": 1, "kuka": 1})
    data.datasets[1].fields.sizes = {"48x64": 40}
    return data


def test_frames_of_different_sizes_are_refused_with_the_sizes(edited: MixedData) -> None:
    with pytest.raises(ArgumentError, match=r"frames of 2 sizes .*bridge 64x64; kuka 48x64.*--image-size HxW"):
        find_cameras(None, [dataset.fields for dataset in edited.datasets], edited.names)


def test_an_offset_that_the_mixture_was_not_written_for_is_said(
    oxe_root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("members: {bridge: {weight: 1, offset: 7}, kuka: {weight: 1, offset: 5}, rt1: {weight: 1}}")
    with caplog.at_level(logging.WARNING, logger="stream"):
        mix(oxe_root, path, split="train")
    (message,) = [record.getMessage() for record in caplog.records]
    assert "bridge 5 (the mixture says 7)" in message
    assert "kuka" not in message
    assert "rt1" not in message


def order_text(root: Path, mixture: Any = None, **options: Any) -> str:
    return json.dumps(mix(root, mixture or {"bridge": 1, "kuka": 2}, **options).fingerprint(), sort_keys=True)


def test_the_order_of_the_same_arguments_is_the_same(oxe_root: Path) -> None:
    assert order_text(oxe_root) == order_text(oxe_root, {"bridge": 10, "kuka": 20})
    values = [{3, 1, 2}, (1, 2, 3), [1, 2, 3]]
    assert len({order_text(oxe_root, filters=[("step", "in", value)]) for value in values}) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 1},
        {"shuffle": "block:2"},
        {"samples_per_episode": 1},
        {"split": "train[:50%]"},
        {"mixture": {"bridge": 1, "kuka": 3}},
        {"mixture": {"kuka": 2, "bridge": 1}},
        {"mixture": {"bridge": 1}},
        {"filters": [("step", ">", 0)]},
    ],
)
def test_whatever_changes_the_samples_changes_the_order(oxe_root: Path, options: dict[str, Any]) -> None:
    assert order_text(oxe_root, **options) != order_text(oxe_root)
