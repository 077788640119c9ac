"""Tests of the origin of samples against the tables of the index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stream.format.names import TABLE_KINDS
from tests.stream.index_root import open_data, read_table, write_dataset


@pytest.mark.parametrize("split", ["train", "test+train[1:]"])
def test_rows_are_described_by_the_tables(tmp_path: Path, split: str) -> None:
    splits = {"train": [[5, 1, 4], [], [6]], "test": [[7], [3, 8]]}
    for name, offset in (("arm", 2), ("hand", 3)):
        write_dataset(tmp_path, name, splits, offset=offset)
    data = open_data(tmp_path, {"arm": 1, "hand": 1}, split=split)
    rows = data.plan.rows(np.arange(7, 90))
    for row, ref in enumerate(data.describe(rows)):
        folder = tmp_path / ref.dataset / "1.0.0"
        episodes, steps, records = (read_table(folder, kind, ref.split).to_pylist() for kind in TABLE_KINDS)
        record, episode = records[int(rows.record[row])], episodes[ref.episode]
        assert (ref.sample, ref.epoch) == (rows.sample[row], rows.epoch[row])
        assert ref.dataset == data.names[int(rows.member[row])]
        assert (ref.episode, ref.step, ref.offset) == (record["episode"], record["step"], record["offset"])
        assert (ref.source_file, ref.episode_id) == (episode["source_file"], episode["episode_id"])
        assert ref.language == steps[record["steps_row"]]["language"]
        assert ref.shard == f"{ref.split}-{record['shard']:05d}-of-{len(splits[ref.split]):05d}"
        assert ref.record == [r for r in records if r["shard"] == record["shard"]].index(record)
