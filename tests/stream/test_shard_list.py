"""The shards of a mixture by number: what the manifests say, in little memory."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from stream.catalog import Catalog
from stream.format import FILE_KINDS
from stream.shard_list import ShardList

NAMES = ("bridge", "kuka")


@pytest.fixture
def shards(oxe_root: Path) -> ShardList:
    catalog, found = Catalog(oxe_root), ShardList()
    for member, name in enumerate(NAMES):
        dataset = catalog.open(name)
        for split in dataset.manifest.splits:
            assert found.add(dataset.manifest, split, dataset.folder, dataset=name, member=member) == len(found) - len(
                dataset.manifest.splits[split].shards
            )
    return found


def test_each_shard_is_what_its_manifest_says(oxe_root: Path, shards: ShardList) -> None:
    catalog = Catalog(oxe_root)
    entries = [
        (member, name, split, entry)
        for member, name in enumerate(NAMES)
        for split, listed in catalog.open(name).manifest.splits.items()
        for entry in listed.shards
    ]
    assert len(shards) == len(entries)
    for info, (member, name, split, entry) in zip(shards, entries, strict=True):
        assert (info.member, info.dataset, info.split, info.stem) == (member, name, split, entry.name)
        assert (info.records, info.steps, info.episodes) == (entry.records, entry.steps, entry.episodes)
        assert set(entry.files) == set(FILE_KINDS)
        for kind, file in entry.files.items():
            assert info.files[kind] == (file.bytes, file.tail_sha256 if kind == "arrayrecord" else file.sha256)
            assert info.path(kind).is_file()
    for column in ("records", "steps", "episodes", "paired_episodes"):
        assert shards.column(column) == [getattr(entry, column) for *_, entry in entries]


def test_first_episodes_count_within_a_split(shards: ShardList) -> None:
    for number, info in enumerate(shards):
        before = shards[number - 1] if number else None
        same = before is not None and (before.dataset, before.split) == (info.dataset, info.split)
        assert info.first_episode == (before.first_episode + before.episodes if before and same else 0)


def test_a_file_without_a_hash_of_its_end_has_none(oxe_root: Path) -> None:
    dataset = Catalog(oxe_root).open("bridge")
    entry = dataset.manifest.splits["train"].shards[0]
    older = entry.files["arrayrecord"].model_copy(update={"tail_sha256": None})
    shard = entry.model_copy(update={"files": {**entry.files, "arrayrecord": older}})
    split = dataset.manifest.splits["train"].model_copy(update={"shards": (shard,)})
    found = ShardList()
    found.add(dataset.manifest.model_copy(update={"splits": {"train": split}}), "train", dataset.folder, dataset="b")
    assert found[0].files["arrayrecord"] == (older.bytes, None)


def test_what_is_not_there_is_an_index_error(shards: ShardList) -> None:
    with pytest.raises(IndexError, match=f"shard {len(shards)} of {len(shards)}"):
        shards[len(shards)]
    with pytest.raises(IndexError, match="shard 0 of 0"):
        ShardList()[0]


def test_a_shard_takes_little_more_than_its_hashes(oxe_root: Path) -> None:
    dataset, found = Catalog(oxe_root).open("bridge"), ShardList()
    entry = dataset.manifest.splits["train"].shards[0]
    split = dataset.manifest.splits["train"].model_copy(update={"shards": (entry,) * 1000})
    manifest = dataset.manifest.model_copy(update={"splits": {"train": split}})
    found.add(manifest, "train", dataset.folder, dataset="bridge")
    assert len(pickle.dumps(found)) < 1000 * 300
