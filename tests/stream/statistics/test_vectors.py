"""Content of statistics: chunks, missing values, robots, samples, weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Normalize, Select, Vector, make_loader
from stream.format.statistics import describe_values, describe_weighted
from stream.statistics import vectors
from tests.stream.index_root import read_table, write_dataset

COLUMNS = ["reward", "three", "half"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets of 40 and 23 steps, without a robot, some of whose values are missing."""
    root = tmp_path_factory.mktemp("root")
    write_dataset(root, "one", {"train": [[9, 4, 7], [20]], "val": [[6]]})
    write_dataset(root, "two", {"train": [[11, 12]]})
    return root


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_CHUNK", 7)


def load(root: Path, mixture: Any, **arguments: Any) -> Any:
    columns = dict.fromkeys(arguments.pop("named", ("one", "two")), COLUMNS)
    return make_loader(root, mixture, batch_size=4, action=Vector(columns=columns), **arguments)


def values(root: Path, name: str, rows: Any = slice(None), split: str = "train") -> np.ndarray:
    """Return the chosen columns of some steps, float64 [n, 5], NaN for missing ones."""
    table = read_table(root / name / "1.0.0", "steps", split)
    three = [[np.nan] * 3 if value is None else value for value in table["three"].to_pylist()]
    reward = [np.nan if value is None else value for value in table["reward"].to_pylist()]
    column_values = np.column_stack(
        [np.array(reward, float), np.array(three, float), np.array(table["half"].to_pylist())]
    )
    return column_values[rows]


def check(result: vectors.VectorStatistics, expected: np.ndarray) -> None:
    """Compare statistics with those of numpy."""
    assert result.count == len(expected)
    for name, function in (("mean", np.nanmean), ("std", np.nanstd), ("min", np.nanmin), ("max", np.nanmax)):
        np.testing.assert_allclose(getattr(result, name), function(expected, axis=0), rtol=1e-6, atol=1e-7)
    for name, share in (("q01", 0.01), ("q99", 0.99)):
        np.testing.assert_allclose(getattr(result, name), np.nanquantile(expected, share, axis=0), rtol=1e-6)


def test_every_chunk_counts_its_own_steps_and_missing_values_do_not_count(root: Path) -> None:
    assert np.isnan(values(root, "one")).any()
    for per in ("dataset", "robot"):  # the datasets have no robot
        result = Normalize(load(root, "one,two"), per=per, keys=["action"]).statistics["action"]
        for name in ("one", "two"):
            check(result[name], values(root, name))


def test_a_derived_column_is_read_in_chunks_too(oxe_root: Path) -> None:
    loader = make_loader(oxe_root, {"kuka": 1}, batch_size=4)
    over_samples = Normalize(loader, over="samples", keys=["action"]).statistics["action"]["kuka"]
    (path,) = (oxe_root / "kuka").glob("*/")
    actions = np.stack(read_table(path, "steps")["action"].to_numpy(zero_copy_only=False)).astype(float)
    rows = [ref for step in range(-(-loader.sizes["kuka"] // 4)) for ref in loader.describe(step)]
    firsts = read_table(path, "episodes")["first_steps_row"].to_pylist()
    drawn = sorted({firsts[ref.episode] + ref.step for ref in rows})
    assert len(drawn) == loader.sizes["kuka"] > 7
    check(over_samples, actions[drawn])


def test_samples_are_those_that_conditions_episodes_and_ranges_keep(root: Path) -> None:
    loader = load(root, "one", named=["one"], select=Select(where=[("step", ">=", 2)]), split="train[1:]")
    result = Normalize(loader, over="samples", keys=["action"]).statistics["action"]["one"]
    # Pairs of offset 2 from the second episode on, without their first two steps.
    rows = [start + step for start, length in ((9, 4), (13, 7), (20, 20)) for step in range(2, length - 2)]
    assert len(rows) == loader.sizes["one"]
    check(result, values(root, "one", rows))
    ranges = {"one": {"*": [[3, 5]]}}
    loader = load(root, "one", named=["one"], select=Select(keep_ranges=ranges))
    result = Normalize(loader, over="samples", keys=["action"]).statistics["action"]["one"]
    check(result, values(root, "one", [start + step for start in (0, 13, 20) for step in (3, 4)]))


def test_the_dataset_counts_whole_whatever_the_loader_leaves_out(root: Path) -> None:
    loader = load(root, "one", named=["one"], select=Select(where=[("step", ">=", 2)]), split="train[1:]")
    check(Normalize(loader, keys=["action"]).statistics["action"]["one"], values(root, "one"))


def test_draws_of_episodes_count_as_often_as_they_are_drawn(root: Path) -> None:
    loader = load(root, "one", named=["one"], samples_per_episode=3)
    result = Normalize(loader, over="samples", keys=["action"]).statistics["action"]["one"]
    firsts = [0, 9, 13, 20]
    refs = [ref for step in range(3) for ref in loader.describe(step)]
    assert len(refs) == loader.sizes["one"] == 12
    check(result, values(root, "one", [firsts[ref.episode] + ref.step for ref in refs]))


def test_two_members_of_one_dataset_count_each_its_own_samples(root: Path) -> None:
    halves = {
        "first": {"dataset": "one", "weight": 3, "split": "train[:2]"},
        "second": {"dataset": "one", "weight": 1, "split": "train[2:]"},
    }
    loader = load(root, halves, named=halves)
    result = Normalize(loader, over="samples", keys=["action"]).statistics["action"]
    check(result["first"], values(root, "one", [*range(7), 9, 10]))
    check(result["second"], values(root, "one", [*range(13, 18), *range(20, 38)]))
    together = Normalize(loader, over="samples", per="mixture", keys=["action"]).statistics["action"]["first"]
    rows = [*range(7), 9, 10, *range(13, 18), *range(20, 38)]
    weights = np.repeat([0.75 / 9, 0.25 / 23], [9, 23])
    weighted(together, values(root, "one", rows), weights)


def test_two_members_of_one_dataset_are_the_steps_of_a_robot_once(root: Path, oxe_root: Path, tmp_path: Path) -> None:
    names = {"a": {"dataset": "kuka", "weight": 1}, "b": {"dataset": "kuka", "weight": 1}}
    loader = make_loader(oxe_root, names, batch_size=4)
    assert Normalize(loader, per="robot").statistics["action"]["a"].count == (
        Normalize(loader).statistics["action"]["a"].count
    )


def weighted(result: vectors.VectorStatistics, expected: np.ndarray, weights: np.ndarray) -> None:
    """Compare statistics with sums of values times weights."""
    for dim, column in enumerate(expected.T):
        real = ~np.isnan(column)
        share = weights[real] / weights[real].sum()
        mean = (column[real] * share).sum()
        assert result.mean[dim] == pytest.approx(mean, rel=1e-6)
        assert result.std[dim] == pytest.approx(np.sqrt(((column[real] - mean) ** 2 * share).sum()), rel=1e-6)
        assert (result.min[dim], result.max[dim]) == (column[real].min(), column[real].max())
        for name, expected_numbers in (("q01", 0.01), ("q99", 0.99)):
            value = getattr(result, name)[dim]
            below, most = (share[column[real] < value].sum(), share.max())
            assert below - most <= expected_numbers <= share[column[real] <= value].sum() + most


@pytest.mark.parametrize("over", ["dataset", "samples"])
def test_a_mixture_counts_by_its_weights(root: Path, over: Any) -> None:
    loader = load(root, {"one": 4, "two": 1})
    result = Normalize(loader, per="mixture", over=over, keys=["action"]).statistics["action"]
    rows = {"one": np.arange(40), "two": np.arange(23)}
    if over == "samples":
        # Without the last two steps of each episode.
        ends = {"one": [7, 8, 11, 12, 18, 19, 38, 39], "two": [9, 10, 21, 22]}
        rows = {name: np.delete(rows[name], ends[name]) for name in rows}
    mixture = np.concatenate([values(root, name, rows[name]) for name in ("one", "two")])
    counts = [len(rows[name]) for name in ("one", "two")]
    weights = np.repeat([loader.weights[name] / len(rows[name]) for name in ("one", "two")], counts)
    for name in ("one", "two"):
        weighted(result[name], mixture, weights)


def test_a_schedule_counts_by_its_last_phase(root: Path) -> None:
    loader = load(root, [(5, {"one": 1, "two": 3}), (None, {"one": 1, "two": 0})])
    result = Normalize(loader, per="mixture", keys=["action"]).statistics["action"]["two"]
    np.testing.assert_allclose(result.mean, np.nanmean(values(root, "one"), axis=0), rtol=1e-6)
    assert result.min[0] == np.nanmin(values(root, "one")[:, 0])


def test_equal_weights_give_the_statistics_without_weights() -> None:
    numbers = np.random.default_rng(0).normal(size=1001).astype(np.float32)
    numbers[::50] = np.nan
    plain, even = describe_values(numbers.copy()), describe_weighted(numbers, np.full(1001, 0.3))
    assert even == pytest.approx(plain, rel=1e-8)
    twice = describe_weighted(numbers, np.where(np.arange(1001) < 500, 1.0, 0.0))
    assert twice == pytest.approx({**describe_values(numbers[:500].copy()), "nonfinite": 21}, rel=1e-8)
    nothing = describe_weighted(np.full(3, np.nan, np.float32), np.ones(3))
    assert nothing == {"nonfinite": 3, **dict.fromkeys(("mean", "std", "min", "max", "q01", "q99"))}


def test_a_split_without_statistics_is_an_error(root: Path) -> None:
    with pytest.raises(ArgumentError, match="dataset two: no statistics of action in split 'val'"):
        Normalize(load(root, {"one": 1, "two": 1}), split="val", keys=["action"])
