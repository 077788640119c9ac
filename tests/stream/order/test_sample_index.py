"""Samples by number: choices of episodes that are refused, and orders of episodes' pairs.

Which pairs an epoch has is compared with loops over the source in ``tests/reference``.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.base.errors import ArgumentError
from stream.format.catalog import Catalog, Dataset
from stream.order.member import OpenMember, touched_shards
from stream.order.mixture import Member
from stream.order.sample_index import SampleIndex
from stream.order.splits import EpisodeRange
from stream.sample.select import Select
from stream.sample.window import resolve_windows
from tests.stream.index_root import write_dataset

LENGTHS = {"train": [[9, 2, 5, 12], [1, 7, 3, 4], [6, 8, 2, 11]], "test": [[4, 6], [3, 8], [1, 9]]}
EPISODES = {split: [steps for shard in shards for steps in shard] for split, shards in LENGTHS.items()}


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset of two splits, with 12 and 6 episodes of 0 to 10 pairs in 3 shards each."""
    folder = write_dataset(tmp_path_factory.mktemp("varied"), "varied", LENGTHS, size=(8, 8))
    return Catalog(folder.parents[1]).open("varied")


def open_member(dataset: Dataset, split: str, select: Select = Select()) -> OpenMember:
    choices = select.choices([dataset.name]).get(dataset.name, [])
    (window,) = resolve_windows([None], [dataset.fields], [dataset.name])
    return OpenMember(Member(dataset.name, split), dataset, window, choices=choices)


def make_index(dataset: Dataset, split: str, *, where: Any = None, **options: Any) -> SampleIndex:
    return SampleIndex([open_member(dataset, split, Select(where=where))], **options)


def pairs_of_epoch(samples: SampleIndex, epoch: int = 0, *, shuffle: bool = False) -> list[tuple[str, int, int]]:
    """Return split, episode and step of each position of an epoch."""
    position = np.arange(samples.sizes[0])
    numbers, records = samples.locate(0 * position, 0 * position + epoch, position, seed=3, shuffle=shuffle)
    splits = [samples.splits[number] for number in numbers.tolist()]
    return [
        (index.split, int(index.records.array("episode")[record]), int(index.records.array("step")[record]))
        for index, record in zip(splits, records.tolist(), strict=True)
    ]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["train", "test"]), st.integers(0, 12), st.integers(0, 12)), min_size=1))
def test_any_sum_of_slices_is_the_pairs_of_its_episodes(varied: Dataset, drawn: list[tuple[str, int, int]]) -> None:
    lengths = {split: len(steps) for split, steps in EPISODES.items()}
    ranges = [(split, min(a, b, lengths[split]), min(max(a, b), lengths[split])) for split, a, b in drawn]
    expression = "+".join(f"{split}[{start}:{stop}]" for split, start, stop in ranges)
    episodes = [(split, number) for split, start, stop in ranges for number in range(start, stop)]
    expected = [(split, number, t) for split, number in episodes for t in range(EPISODES[split][number] - 2)]
    if len(set(episodes)) == len(episodes) and expected:
        assert pairs_of_epoch(make_index(varied, expression)) == expected
        return
    message = "twice, so a pass would have their samples twice" if len(set(episodes)) < len(episodes) else "episode"
    with pytest.raises(ArgumentError, match=message):
        make_index(varied, expression)


def test_the_pairs_of_an_episode_come_in_another_order_each_time_round(varied: Dataset) -> None:
    episode = [("train", 3, step) for step in range(10)]
    samples = make_index(varied, "train", samples_per_episode=len(episode))
    orders = [[p for p in pairs_of_epoch(samples, epoch, shuffle=True) if p in episode] for epoch in range(4)]
    assert all(sorted(order) == episode for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert [p for p in pairs_of_epoch(samples, 3) if p in episode] == episode


@pytest.mark.parametrize(
    ("split", "twice"),
    [
        ("train[:50%]+train[25%:]", "episodes 3 to 5 of 'train'"),
        ("test[1:2]+test[0:4]+test[3:]", "episodes 1 to 1 of 'test'"),
        ("all+train[-1:]", "episodes 11 to 11 of 'train'"),
    ],
)
def test_terms_that_name_episodes_twice_are_refused(varied: Dataset, split: str, twice: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(f"split={split!r} names {twice} twice, so a pass")):
        make_index(varied, split)


LATE = [("step", ">", 1000)]


@pytest.mark.parametrize(
    ("split", "where", "message"),
    [
        ("train[:0]", None, r"'train\[:0\]' leaves no episode; splits converted: .*train \(12 episodes\)"),
        ("train", LATE, r"has 12 episodes, but all samples are left out \(\d+ by where: step > 1000\)"),
        ("train[:50%]", LATE, r"has 6 episodes, but all samples are left out \(\d+ by where: step > 1000\)"),
        ("train[4:5]", None, "has 1 episodes, but these are all too short for a pair"),
        ("trian", None, "no split 'trian'"),
        ("train[5:100]", None, "the split has 12 episodes"),
    ],
)
@pytest.mark.parametrize("samples_per_episode", [0, 2])
def test_a_view_without_pairs_is_refused_with_the_number_of_episodes(
    varied: Dataset, split: str, where: Any, message: str, samples_per_episode: int
) -> None:
    with pytest.raises(ArgumentError, match=f"dataset varied: split.*{message}"):
        make_index(varied, split, where=where, samples_per_episode=samples_per_episode)


def test_the_splits_are_those_that_samples_are_in(varied: Dataset) -> None:
    samples = make_index(varied, "test[:3]+train[1:3]+test[4:]")
    assert [index.split for index in samples.splits_of(0)] == ["test", "train"]


@pytest.mark.parametrize(
    ("start", "stop", "shards"), [(0, 12, [0, 1, 2]), (1, 3, [0]), (3, 5, [0, 1]), (8, 8, []), (4, 8, [1])]
)
def test_the_shards_of_a_range_of_episodes(varied: Dataset, start: int, stop: int, shards: list[int]) -> None:
    stems = touched_shards(EpisodeRange("train", start, stop), varied)
    assert stems == [f"train-{shard:05d}-of-00003" for shard in shards]
