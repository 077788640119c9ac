"""The index of a split is merged from the parts that are there now."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from convert.journal.journal import Journal
from convert.plan import Conversion, ConvertConfig
from convert.run.status import read_status
from convert.shard.images import FramePolicy
from convert.tasks.merge import merge_split
from convert.tasks.shard import convert_shard
from stream.format.names import table_file
from tests.fixtures.datasets.rlds_dataset import RldsDataset, demo_episode, write_dataset


def conversion_of(folder: Path, output: Path, seed: int) -> Conversion:
    """A dataset whose files have the same sizes for each seed."""
    dataset: RldsDataset = write_dataset(
        folder, splits={"train": [[demo_episode(4, seed=1)], [demo_episode(5, seed=seed)]]}
    )
    return dataset.conversion(output, ConvertConfig(policy=FramePolicy(size=None)))


def actions(output: Path) -> list[list[float]]:
    path = output / "demo/1.0.0/train" / table_file("steps")
    actual: list[list[float]] = pa.ipc.open_file(path.read_bytes()).read_all()["action"].to_pylist()
    return actual


def test_an_index_of_a_source_that_has_changed_since_is_merged_again(tmp_path: Path) -> None:
    output = tmp_path / "out"
    old, new = conversion_of(tmp_path / "old", output, 2), conversion_of(tmp_path / "new", output, 3)
    journal = Journal(output / "demo/1.0.0")
    journal.begin(old.parameters)
    for job in old.jobs:
        convert_shard(job, old.plan)
    (split,) = read_status(old).pending_merges
    first = merge_split(split, old.plan)
    before = actions(output)
    # Killed before the manifest; another source came in the place of the old one.
    journal.forget({new.jobs[1].stem})
    assert convert_shard(new.jobs[1], new.plan)
    second = merge_split(split, new.plan)
    assert first is not None
    assert second is not None
    assert second.inputs != first.inputs
    assert second.statistics != first.statistics
    after = actions(output)
    assert after[:4] == before[:4]
    assert after[4:] != before[4:]
