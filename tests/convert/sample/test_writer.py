"""Generated datasets on disk: splits, files, and samples that are there already."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tensorflow_datasets as tfds

from convert.errors import ConflictError, UsageError
from convert.sample.command import make_sample
from stream.base.configs import CONFIGS
from tests.fixtures.datasets.sampled import (
    EPISODES,
    NAMES,
    REGISTRY,
    STEPS,
    Sample,
    digest,
    parsed,
    read_by_tfds,
    records,
)


@pytest.mark.parametrize("name", NAMES)
def test_the_feature_tree_is_the_declared_one(sample: Sample, name: str) -> None:
    spec = REGISTRY.dataset(name)
    declared = CONFIGS.joinpath("features", f"{spec.tfds_name}.json").read_text(encoding="utf-8")
    assert json.loads((sample(name) / "features.json").read_text()) == json.loads(declared)


@pytest.mark.parametrize("name", NAMES)
def test_splits_are_the_published_ones_in_up_to_two_shards(sample: Sample, name: str) -> None:
    spec, info = REGISTRY.dataset(name), tfds.builder_from_directory(str(sample(name))).info
    assert {split: info.splits[split].shard_lengths for split in info.splits} == {
        split: [1, 1] if split == "train" else [1] for split in spec.splits
    }


@pytest.mark.long
def test_varied_steps_include_an_empty_and_a_short_episode(tmp_path: Path) -> None:
    spec = REGISTRY.dataset("bc_z")
    make_sample(tmp_path, [spec], episodes=6, steps=9, vary_steps=True, jobs=1)
    lengths = [len(episode["steps"]) for episode in read_by_tfds(tmp_path / "bc_z" / "0.1.0", "train")]
    assert len(lengths) == 6
    assert lengths[1] == 0 and 1 <= lengths[2] < 5
    assert all(1 <= length <= 9 for length in (lengths[0], *lengths[2:]))
    assert len(set(lengths)) > 3


@pytest.mark.long
def test_files_do_not_depend_on_jobs_or_on_the_other_datasets(tmp_path: Path, sample: Sample) -> None:
    names = ["tidybot", "bc_z", "viola", "kuka"]
    make_sample(tmp_path, [REGISTRY.dataset(name) for name in names], episodes=EPISODES, steps=STEPS, jobs=2)
    for name in names:
        alone = sample(name)
        assert digest(tmp_path / alone.relative_to(alone.parents[1])) == digest(alone)


def test_seeds_differ(tmp_path: Path) -> None:
    spec = REGISTRY.dataset("utaustin_mutex")
    for seed in (0, 1):
        make_sample(tmp_path / str(seed), [spec], episodes=1, steps=2, seed=seed, jobs=1)
    first, second = (next(records(tmp_path / seed / spec.tfds_name / spec.version, "train")) for seed in "01")
    assert first != second


def test_an_equal_sample_is_left_alone(tmp_path: Path) -> None:
    spec = REGISTRY.dataset("tidybot")
    first = make_sample(tmp_path, [spec], episodes=1, steps=1, jobs=1)
    before = [(path, path.stat().st_mtime_ns) for path in sorted(tmp_path.rglob("*"))]
    second = make_sample(tmp_path, [spec], episodes=1, steps=1, jobs=1)
    assert [(path, path.stat().st_mtime_ns) for path in sorted(tmp_path.rglob("*"))] == before
    assert (first[0].status, second[0].status) == ("written", "up to date")
    assert first[0].splits == second[0].splits


def test_another_sample_is_only_replaced_when_asked(tmp_path: Path) -> None:
    spec = REGISTRY.dataset("tidybot")
    make_sample(tmp_path, [spec], episodes=1, steps=1, jobs=1)
    with pytest.raises(ConflictError, match=r"steps 1 \(asked for: 2\); --overwrite replaces it"):
        make_sample(tmp_path, [spec], episodes=1, steps=2, jobs=1)
    make_sample(tmp_path, [spec], episodes=1, steps=2, jobs=1, overwrite=True)
    assert len(parsed(tmp_path / "tidybot" / "0.0.1")[0]["steps/reward"]) == 2


def test_what_is_no_sample_is_never_replaced(tmp_path: Path) -> None:
    real = tmp_path / "tidybot" / "0.0.1"
    real.mkdir(parents=True)
    (real / "dataset_info.json").write_text("{}")
    with pytest.raises(ConflictError, match="is not a sample"):
        make_sample(tmp_path, [REGISTRY.dataset("tidybot")], overwrite=True)
    assert digest(real) == {"dataset_info.json": b"{}"}


def test_a_dataset_without_known_features_is_refused(tmp_path: Path) -> None:
    spec = REGISTRY.dataset("tidybot").model_copy(update={"tfds_name": "my_robot"})
    with pytest.raises(UsageError, match="my_robot: no feature tree"):
        make_sample(tmp_path, [spec])
