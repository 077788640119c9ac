"""TFDS datasets whose files are ArrayRecord."""

from __future__ import annotations

from pathlib import Path

import pytest

from convert.plan import ConvertConfig
from stream.format.manifest import Manifest
from tests.fixtures.datasets.rlds_dataset import RldsDataset, convert_dataset, demo_episode, write_dataset

EPISODES = [demo_episode(steps, seed=steps) for steps in (5, 9, 7)]


def converted(dataset: RldsDataset) -> Manifest:
    return convert_dataset(dataset.conversion(dataset.root / "out", ConvertConfig(layout="frames")))


@pytest.fixture
def dataset(tmp_path: Path) -> RldsDataset:
    return write_dataset(tmp_path / "arrays", splits={"train": [EPISODES]}, kind="array_record")


def test_the_same_episodes_give_the_same_records_as_from_tfrecord(dataset: RldsDataset, tmp_path: Path) -> None:
    same = converted(write_dataset(tmp_path / "plain", splits={"train": [EPISODES]})).splits["train"]
    result = converted(dataset).splits["train"]
    assert [shard.file for shard in result.shards] == [shard.file for shard in same.shards]
    assert result.index["steps"] == same.index["steps"]


def test_of_a_file_that_is_cut_short_every_episode_is_listed(dataset: RldsDataset) -> None:
    dataset.shard().write_bytes(dataset.shard().read_bytes()[:-2000])
    manifest = converted(dataset)
    assert (manifest.records, manifest.left_out) == (0, {"unreadable": 3})


def test_a_damaged_record_costs_its_episode_alone(dataset: RldsDataset) -> None:
    content = bytearray(dataset.shard().read_bytes())
    first = content.index(b"steps/")
    content[first : first + 6] = b"STEPS/"
    dataset.shard().write_bytes(content)
    manifest = converted(dataset)
    assert (manifest.records, manifest.left_out) == (9 + 7, {"unreadable": 1})


def damage_the_first_record(dataset: RldsDataset) -> None:
    content = bytearray(dataset.shard().read_bytes())
    content[content.index(b"steps/")] ^= 1
    dataset.shard().write_bytes(content)


def test_a_file_that_was_repaired_or_replaced_is_noticed(dataset: RldsDataset) -> None:
    complete = dataset.shard().read_bytes()
    damage_the_first_record(dataset)
    conversion = dataset.conversion(dataset.root / "out", ConvertConfig(layout="frames"))
    (entry,) = convert_dataset(conversion).splits["train"].shards
    (job,) = conversion.jobs

    def differs() -> bool:
        request, digest = conversion.plan.wanted, entry.source_digest
        return job.shard.differs(request, job.spans, digest=digest, left_out=entry.left_out)

    assert not differs()
    dataset.shard().write_bytes(complete)
    assert differs()
    remaining = [demo_episode(steps, seed=100 + steps) for steps in (5, 9, 7)]
    write_dataset(dataset.root, splits={"train": [remaining]}, kind="array_record")
    damage_the_first_record(dataset)
    assert differs()
