"""Tests of samples by number against a selection from the index, episode by episode."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convert.registry.registry import load_registry
from convert.run.command import main as convert
from convert.sample.command import make_sample
from stream.base.errors import ArgumentError
from stream.format.catalog import Catalog, Dataset
from stream.order.filters import parse_filters
from stream.order.member import OpenMember, touched_shards
from stream.order.mixture import Member
from stream.order.sample_index import SampleIndex
from stream.order.splits import EpisodeRange
from stream.order.window import resolve_windows
from tests.fixtures.datasets.converted_dataset import open_converted
from tests.fixtures.shared_folder import run_folder, shared_folder

NAME = "jaco_play"
EPISODES = {"train": 12, "test": 6}
Episode = list[tuple[str, int]]
"""Shard and record of each pair of an episode, in the order of storage."""


def _make(folder: Path) -> None:
    spec = load_registry().dataset(NAME)
    size: dict[str, Any] = {"episodes": EPISODES["train"], "steps": 12, "vary_steps": True, "shards": 3}
    make_sample(folder / "source", [spec], **size, jobs=1)
    chosen = ["--datasets", NAME, "--source", str(folder / "source"), "--output", str(folder / "oxe")]
    assert convert([*chosen, "--image-size", "64", "--offset", "2", "--num-workers", "1"]) == 0


@pytest.fixture(scope="session")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    """Convert a dataset of two splits, with 12 and 6 episodes of 0 to 14 pairs in 3 shards each."""
    with shared_folder(run_folder(tmp_path_factory) / "stream-varied", _make) as folder:
        yield Catalog(folder / "oxe").open(NAME)


def read_episodes(dataset: Dataset) -> dict[str, list[Episode]]:
    """Return the pairs of each episode, by split, from the column ``episode`` of ``records``."""
    episodes_by_split: dict[str, list[Episode]] = {}
    for shard in open_converted(dataset.folder.parents[1], dataset.name, dataset.version).shards:
        episodes: list[Episode] = [[] for _ in range(len(shard.episodes))]
        ids = shard.episodes["episode_id"].to_pylist()
        for pair in shard.pairs:
            episodes[ids.index(pair.episode_id)].append((shard.entry.name, pair.record))
        episodes_by_split.setdefault(shard.split, []).extend(episodes)
    return episodes_by_split


def open_member(dataset: Dataset, split: str, *, filters: Any = None) -> OpenMember:
    choices = parse_filters(filters, [dataset.name]).get(dataset.name, [])
    (window,) = resolve_windows(None, [dataset.fields], [dataset.name])
    return OpenMember(Member(dataset.name, split), dataset, window, choices=choices)


def make_index(dataset: Dataset, split: str, *, filters: Any = None, **options: Any) -> SampleIndex:
    return SampleIndex([open_member(dataset, split, filters=filters)], **options)


def pairs_of_epoch(samples: SampleIndex, epoch: int = 0, *, member: int = 0, shuffle: bool = False) -> Episode:
    """Return shard and record of each position of an epoch."""
    position = np.arange(samples.sizes[member])
    members, epochs = np.full(len(position), member), np.full(len(position), epoch)
    splits, records = samples.locate(members, epochs, position, seed=3, shuffle=shuffle)
    shards_and_records = []
    for split, record in zip(splits.tolist(), records.tolist(), strict=True):
        index = samples.splits[split]
        shard = int(index.records.array("shard")[record])
        shards_and_records.append((index.shards.stem(shard), record - int(index.shards.first_records[shard])))
    return shards_and_records


Ranges = list[tuple[str, int, int]]
SLICES: dict[str, Ranges] = {
    "train": [("train", 0, 12)],
    "train[:50%]": [("train", 0, 6)],
    "train[50%:]": [("train", 6, 12)],
    "train[1:3]": [("train", 1, 3)],
    "train[-5:-1]": [("train", 7, 11)],
    "train[2:11]": [("train", 2, 11)],
    "train[1shard]": [("train", 4, 8)],
    "train[:2shard]": [("train", 0, 8)],
    "train[-1shard:]": [("train", 8, 12)],
    "train+test": [("train", 0, 12), ("test", 0, 6)],
    "test+train": [("test", 0, 6), ("train", 0, 12)],
    "test[3:]+train[2:7]": [("test", 3, 6), ("train", 2, 7)],
    "train[9:]+train[2:7]": [("train", 9, 12), ("train", 2, 7)],
}


def brute_force(dataset: Dataset, ranges: Ranges) -> list[Episode]:
    """Return the episodes with pairs in some ranges, in order."""
    episodes = read_episodes(dataset)
    return [episode for split, start, stop in ranges for episode in episodes[split][start:stop] if episode]


def test_the_sample_has_what_is_tried(varied: Dataset) -> None:
    lengths = {split: [len(episode) for episode in episodes] for split, episodes in read_episodes(varied).items()}
    assert {split: len(found) for split, found in lengths.items()} == EPISODES
    assert lengths["train"].count(0) >= 2
    assert len(set(lengths["train"])) >= 5


@pytest.mark.parametrize("split", SLICES)
def test_a_split_is_the_pairs_of_its_episodes_in_order(varied: Dataset, split: str) -> None:
    expected = [pair for episode in brute_force(varied, SLICES[split]) for pair in episode]
    samples = make_index(varied, split)
    assert pairs_of_epoch(samples) == expected
    assert samples.sizes.tolist() == [len(expected)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["train", "test"]), st.integers(0, 12), st.integers(0, 12)), min_size=1))
def test_any_sum_of_slices_is_the_pairs_of_its_episodes(varied: Dataset, drawn: Ranges) -> None:
    ranges = [(split, min(a, b, EPISODES[split]), min(max(a, b), EPISODES[split])) for split, a, b in drawn]
    expression = "+".join(f"{split}[{start}:{stop}]" for split, start, stop in ranges)
    named = [(split, number) for split, start, stop in ranges for number in range(start, stop)]
    if len(set(named)) < len(named):
        with pytest.raises(ArgumentError, match="twice, so a pass would have their samples twice"):
            make_index(varied, expression)
        return
    expected = [pair for episode in brute_force(varied, ranges) for pair in episode]
    if expected:
        assert pairs_of_epoch(make_index(varied, expression)) == expected
    else:
        with pytest.raises(ArgumentError, match="episode"):
            make_index(varied, expression)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("per_episode", [1, 2, 5, 40])
@pytest.mark.parametrize("split", ["train", "train[1:11]", "test[1:]+train[:50%]"])
def test_each_episode_gives_so_many_pairs_in_every_epoch(
    varied: Dataset, split: str, per_episode: int, shuffle: bool
) -> None:
    ranges = (
        SLICES.get(split)
        or {
            "train[1:11]": [("train", 1, 11)],
            "test[1:]+train[:50%]": [("test", 1, 6), ("train", 0, 6)],
        }[split]
    )
    episodes = brute_force(varied, ranges)
    owner = {pair: number for number, episode in enumerate(episodes) for pair in episode}
    samples = make_index(varied, split, samples_per_episode=per_episode)
    assert samples.sizes.tolist() == [len(episodes) * per_episode]
    drawn: Counter[tuple[str, int]] = Counter()
    for epoch in range(7):
        pairs = pairs_of_epoch(samples, epoch, shuffle=shuffle)
        assert Counter(owner[pair] for pair in pairs) == dict.fromkeys(range(len(episodes)), per_episode)
        drawn.update(pairs)
        for episode in episodes:
            counts = [drawn[pair] for pair in episode]
            assert max(counts) - min(counts) <= 1


def test_the_pairs_of_an_episode_come_in_another_order_each_time_round(varied: Dataset) -> None:
    episode = max(brute_force(varied, SLICES["train"]), key=len)
    samples = make_index(varied, "train", samples_per_episode=len(episode))
    orders = [[p for p in pairs_of_epoch(samples, epoch, shuffle=True) if p in episode] for epoch in range(4)]
    assert all(sorted(order) == episode for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    in_order = [p for p in pairs_of_epoch(samples, 3) if p in episode]
    assert in_order == episode


@pytest.mark.parametrize(
    ("split", "twice"),
    [
        ("train[:50%]+train[25%:]", "episodes 3 to 5 of 'train'"),
        ("train[5:]+test+train[2:6]", "episodes 5 to 5 of 'train'"),
        ("test[1:2]+test[0:4]+test[3:]", "episodes 1 to 1 of 'test'"),
        ("all+train[-1:]", "episodes 11 to 11 of 'train'"),
        ("train+train", "episodes 0 to 11 of 'train'"),
    ],
)
def test_terms_that_name_episodes_twice_are_refused(varied: Dataset, split: str, twice: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(f"split={split!r} names {twice} twice, so a pass")):
        make_index(varied, split)


FILTERS: dict[str, tuple[list[Any], Any]] = {
    "early": ([("step", "<", 3)], lambda pair, episode: pair.step < 3),
    "long": ([("num_steps", ">=", 9)], lambda pair, episode: episode["num_steps"] >= 9),
    "one file": (
        [("source_file", "in", ["jaco_play-train.tfrecord-00001-of-00003", "jaco_play-test.tfrecord-00000-of-00003"])],
        lambda pair, episode: episode["source_file"][10:].startswith(("train.tfrecord-00001", "test.tfrecord-00000")),
    ),
    "both": (
        [("num_steps", ">", 4), ("steps.step", "!=", 1)],
        lambda pair, episode: episode["num_steps"] > 4 and pair.step != 1,
    ),
    "all": ([("num_steps", ">", 0)], lambda pair, episode: True),
}


def filtered_episodes(dataset: Dataset, ranges: Ranges, keep: Any) -> list[Episode]:
    """Return the kept pairs of each episode in some ranges, without episodes that have none."""
    kept = set()
    for shard in open_converted(dataset.folder.parents[1], dataset.name, dataset.version).shards:
        rows = {row["episode_id"]: row for row in shard.episodes.to_pylist()}
        kept |= {(shard.entry.name, pair.record) for pair in shard.pairs if keep(pair, rows[pair.episode_id])}
    episodes = [[pair for pair in episode if pair in kept] for episode in brute_force(dataset, ranges)]
    return [episode for episode in episodes if episode]


@pytest.mark.parametrize("split", ["train", "train[1:11]", "train+test", "train[9:]+train[2:7]"])
@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_keeps_the_pairs_that_fulfil_it(varied: Dataset, name: str, split: str) -> None:
    filters, keep = FILTERS[name]
    episodes = filtered_episodes(varied, SLICES.get(split, [("train", 1, 11)]), keep)
    assert episodes
    assert pairs_of_epoch(make_index(varied, split, filters=filters)) == [p for episode in episodes for p in episode]


@pytest.mark.parametrize("split", ["train", "train+test", "train[9:]+train[2:7]"])
@pytest.mark.parametrize("name", FILTERS)
def test_samples_per_episode_are_drawn_of_the_pairs_that_are_kept(varied: Dataset, name: str, split: str) -> None:
    filters, keep = FILTERS[name]
    episodes = filtered_episodes(varied, SLICES[split], keep)
    samples = make_index(varied, split, filters=filters, samples_per_episode=3)
    drawn: Counter[tuple[str, int]] = Counter()
    for epoch in range(5):
        pairs = pairs_of_epoch(samples, epoch, shuffle=True)
        assert len(pairs) == 3 * len(episodes)
        for number, episode in enumerate(episodes):
            assert set(pairs[3 * number : 3 * number + 3]) <= set(episode)
        drawn.update(pairs)
    for episode in episodes:
        counts = [drawn[pair] for pair in episode]
        assert max(counts) - min(counts) <= 1


def test_members_do_not_get_in_each_others_way(varied: Dataset, oxe_root: Path) -> None:
    members = [
        open_member(varied, "test"),
        open_member(Catalog(oxe_root).open("bridge"), "train[1:3]", filters=[("step", ">", 1)]),
        open_member(Catalog(oxe_root).open("rt1"), "train"),
    ]
    for samples_per_episode in (0, 2):
        together = SampleIndex(members, samples_per_episode=samples_per_episode)
        for number, member in enumerate(members):
            alone = SampleIndex([member], samples_per_episode=samples_per_episode)
            assert pairs_of_epoch(together, member=number) == pairs_of_epoch(alone)
            splits, _ = together.locate(np.full(4, number), np.zeros(4, np.int64), np.arange(4), seed=0, shuffle=True)
            assert {together.splits[split].member for split in splits} == {number}


@pytest.mark.parametrize(
    ("split", "filters", "message"),
    [
        ("train[:0]", None, r"'train\[:0\]' leaves no episode; splits converted: .*train \(12 episodes\)"),
        ("train[3:3]+test[6:]", None, "leaves no episode"),
        (
            "train",
            [("step", ">", 1000)],
            r"has 12 episodes, but all samples are left out \(\d+ by filters: step > 1000\)",
        ),
        (
            "train[:50%]",
            [("step", ">", 1000)],
            r"has 6 episodes, but all samples are left out \(\d+ by filters: step > 1000\)",
        ),
    ],
)
@pytest.mark.parametrize("samples_per_episode", [0, 2])
def test_a_view_without_pairs_is_refused_with_the_number_of_episodes(
    varied: Dataset, split: str, filters: Any, message: str, samples_per_episode: int
) -> None:
    with pytest.raises(ArgumentError, match=f"dataset jaco_play: split .*{message}"):
        make_index(varied, split, filters=filters, samples_per_episode=samples_per_episode)


@pytest.mark.parametrize("samples_per_episode", [0, 2])
def test_a_split_of_episodes_too_short_for_a_pair_is_refused(varied: Dataset, samples_per_episode: int) -> None:
    short = next(i for i, episode in enumerate(read_episodes(varied)["train"]) if not episode)
    with pytest.raises(ArgumentError, match="has 1 episodes, but these are all too short for a pair"):
        make_index(varied, f"train[{short}:{short + 1}]", samples_per_episode=samples_per_episode)


@pytest.mark.parametrize("split", ["", "trian", "train[", "train[5:100]", "train[9:3]", "val", "train test"])
def test_a_wrong_split_is_refused_with_the_name_of_the_dataset(varied: Dataset, split: str) -> None:
    with pytest.raises(ArgumentError, match="dataset jaco_play: split"):
        make_index(varied, split)


def test_the_splits_are_those_that_samples_are_in(varied: Dataset) -> None:
    samples = make_index(varied, "test[:3]+train[1:3]+test[4:]")
    assert [index.split for index in samples.splits_of(0)] == ["test", "train"]
    for index in samples.splits:
        entry = varied.manifest.splits[index.split]
        assert (len(index.episodes), len(index.records)) == (entry.episodes, entry.records)


@pytest.mark.parametrize(
    ("start", "stop", "shards"), [(0, 12, [0, 1, 2]), (1, 3, [0]), (3, 5, [0, 1]), (8, 8, []), (4, 8, [1])]
)
def test_the_shards_of_a_range_of_episodes(varied: Dataset, start: int, stop: int, shards: list[int]) -> None:
    stems = touched_shards(EpisodeRange("train", start, stop), varied)
    assert stems == [f"train-{shard:05d}-of-00003" for shard in shards]
