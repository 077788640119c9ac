"""The shards of a mixture by number: what the manifests say, in little memory."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from stream.catalog import Catalog
from stream.format import FILE_KINDS
from stream.manifest import Manifest, read_manifest
from stream.shard_list import ShardList, SplitShards

NAMES = ("bridge", "kuka")


def manifest_of(root: Path, name: str) -> Manifest:
    (folder,) = (root / name).iterdir()
    return read_manifest(folder)


@pytest.fixture
def shards(oxe_root: Path) -> ShardList:
    catalog, found = Catalog(oxe_root), ShardList()
    for member, name in enumerate(NAMES):
        dataset = catalog.open(name)
        for split, listed in dataset.shards.items():
            first = len(found)
            assert found.add(listed, split, dataset.folder, dataset=name, member=member) == first
            assert len(found) == first + len(listed)
    return found


def test_each_shard_is_what_its_manifest_says(oxe_root: Path, shards: ShardList) -> None:
    entries = [
        (member, name, split, entry)
        for member, name in enumerate(NAMES)
        for split, listed in manifest_of(oxe_root, name).splits.items()
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
        assert shards.column(column).tolist() == [getattr(entry, column) for *_, entry in entries]


def test_first_episodes_count_within_a_split(shards: ShardList) -> None:
    for number, info in enumerate(shards):
        before = shards[number - 1] if number else None
        same = before is not None and (before.dataset, before.split) == (info.dataset, info.split)
        assert info.first_episode == (before.first_episode + before.episodes if before and same else 0)


def test_a_file_without_a_hash_of_its_end_has_none(oxe_root: Path) -> None:
    entry = manifest_of(oxe_root, "bridge").splits["train"].shards[0]
    older = entry.files["arrayrecord"].model_copy(update={"tail_sha256": None})
    shard = entry.model_copy(update={"files": {**entry.files, "arrayrecord": older}})
    found = ShardList()
    found.add(SplitShards.of([shard]), "train", Path("folder"), dataset="bridge")
    assert found[0].files["arrayrecord"] == (older.bytes, None)


def test_what_is_not_there_is_an_index_error(shards: ShardList) -> None:
    with pytest.raises(IndexError, match=f"shard {len(shards)} of {len(shards)}"):
        shards[len(shards)]
    with pytest.raises(IndexError, match="shard 0 of 0"):
        ShardList()[0]


def test_a_shard_takes_little_more_than_its_hashes(oxe_root: Path) -> None:
    found = ShardList()
    shards = SplitShards.of([manifest_of(oxe_root, "bridge").splits["train"].shards[0]] * 1000)
    found.add(shards, "train", Path("folder"), dataset="bridge")
    assert len(pickle.dumps(found)) < 1000 * 300
