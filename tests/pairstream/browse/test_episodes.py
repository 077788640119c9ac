"""The table of episodes finds, filters and sorts as the index says, without reading more of it than a query needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pairstream.browse import episodes
from pairstream.browse.browsed_root import BrowsedRoot
from pairstream.browse.episodes import EpisodeTable, Query
from pairstream.info import overview
from stream import Select, add_labels, make_loader, remove_labels
from stream.base.errors import ArgumentError
from tests.stream.index_root import write_dataset


@pytest.fixture
def table(opened: BrowsedRoot) -> EpisodeTable:
    return opened.table("bridge", "train")


def test_a_search_finds_instruction_id_and_number(table: EpisodeTable) -> None:
    said = table.values("language", np.array([1]))[0]
    named = table.values("episode_id", np.array([2]))[0]
    for text, numbers in ((named, [2]), ("no such text [", [])):
        assert table.find(Query(search=text))[0].tolist() == numbers
    assert 1 in table.find(Query(search=said.upper()))[0] and 3 in table.find(Query(search="3"))[0]


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    "condition", [("step", ">=", 3), ("motion", ">", 0.006), ("language", "contains", "red"), ("episode", "in", [0, 1])]
)
def test_a_filter_leaves_the_samples_that_a_loader_has(
    opened: BrowsedRoot, oxe_root: Path, condition: tuple[str, str, object], split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "_CHUNK", 7)
    matches, num_samples = opened.table("bridge", split).find(Query(where=(condition,)))
    loader = make_loader(oxe_root, "bridge", batch_size=1, split=split, select=Select(where=[condition]))
    assert num_samples == loader.sizes["bridge"]
    assert len(matches) == loader.describe()["bridge"]["remaining_episodes"]


def test_a_filter_on_an_unknown_column_names_it(table: EpisodeTable) -> None:
    with pytest.raises(ArgumentError, match="has no column 'stepp'"):
        table.find(Query(where=(("stepp", ">", 1),)))


def test_every_column_sorts_both_ways_with_missing_values_last(opened: BrowsedRoot) -> None:
    for name in ("bridge", "droid", "rt1", "kuka"):
        table = opened.table(name, "train")
        for column in table.columns:
            upward, downward = (table.find(Query(sort=column, descending=down))[0] for down in (False, True))
            values = [value for value in table.values(column, upward) if value is not None]
            assert values == sorted(values), column
            assert [value for value in table.values(column, downward) if value is not None] == sorted(
                values, reverse=True
            ), column


def test_a_mean_of_steps_is_that_of_an_episode(table: EpisodeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "_CHUNK", 7)
    means = table.sort_key("mean of motion")
    steps = table.index.steps
    for episode, mean in enumerate(means.tolist()):
        episode_motion = steps.array("motion")[steps.array("episode") == episode]
        assert mean == pytest.approx(np.nanmean(episode_motion), rel=1e-6)


def test_instructions_are_counted_and_sources_found(table: EpisodeTable) -> None:
    texts, num_texts = table.frequent_instructions(100)
    assert sum(count for _, count in texts) == len(table) and len(texts) == num_texts
    ids = table.values("episode_id", np.arange(len(table)))
    assert table.find_ids([ids[2], "unknown"]) == {ids[2]: 2}
    source, _, position = ids[2].rpartition("__")
    assert table.find_source(source, int(position)) == 2
    assert table.find_source("other", 0) is None


def test_labels_are_seen_once_they_are_attached_and_no_longer_once_they_are_gone(tmp_path: Path) -> None:
    write_dataset(tmp_path / "root", "demo", {"train": [[5, 4]]})
    opened = BrowsedRoot(tmp_path / "root", marks=tmp_path / "marks.json")

    def seen() -> bool:
        is_listed = "mean of value" in opened.table("demo", "train").columns
        assert is_listed == ("value" in [curve.name for curve in opened.episode("demo", "train", 0).curves()])
        return is_listed

    assert not seen()
    assert opened.episode("demo", "train", 0) is opened.episode("demo", "train", 0)
    add_labels(tmp_path / "root", "demo", {"episode": [0], "value": [1.5]}, split="train")
    assert seen()
    remove_labels(tmp_path / "root", "demo", "value")
    assert not seen()


def test_a_mean_of_labels_is_that_of_the_steps_that_have_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "_CHUNK", 3)
    write_dataset(tmp_path / "root", "demo", {"train": [[5, 4], [2]]})
    keys = {"episode": [0, 0, 0, 1], "step": [0, 1, 4, 2]}
    labels = {"grade": [4, None, 6, -3], "good": [True, None, False, True], "value": [1.5, float("nan"), 2.5, None]}
    add_labels(tmp_path / "root", "demo", {**keys, **labels}, name="all", split="train")
    table = BrowsedRoot(tmp_path / "root", marks=tmp_path / "marks.json").table("demo", "train")
    expected = {"grade": [5, -3, None], "good": [0.5, 1, None], "value": [2, None, None]}
    for name, means in expected.items():
        assert table.values(f"mean of {name}", np.arange(3)) == means
    # An episode without a mean is last, whichever way.
    for descending in (False, True):
        sorted_by_grade = table.find(Query(sort="mean of grade", descending=descending))[0].tolist()
        assert sorted_by_grade == ([0, 1, 2] if descending else [1, 0, 2])
