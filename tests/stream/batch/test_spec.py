"""Content of a batch, and the columns that it reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream.batch.assemble import Assembler
from stream.batch.spec import BatchSpec
from stream.format.index import SplitIndex
from stream.format.names import TABLE_KINDS
from stream.format.table import Table
from stream.loader.open_mixture import OpenMixture
from stream.order.rows import Rows
from tests.stream.index_root import open_data, write_dataset

OPTIONS: list[dict[str, Any]] = [
    {},
    {"action": None, "state": None, "language": None},
    {"action": None, "frames": {"steps": [0, "offset"], "times": True}},
    {"action": 3},
    {"action": {"steps": 5, "reduce": "mean"}},
    {"action": {"reduce": "sum"}},
    {"action": {"reduce": "first"}, "samples_per_episode": 2},
    {"columns": ("reward", "note", "scene", "records.camera", "success", "bits")},
    {"action": {"columns": {"arm": ["three", "reward"]}}},
    {"state": {"columns": {"hand": [("bits", [3]), "observation/state"]}}},
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("spec")
    splits = {"train": [[5, 1, 4], [], [6]], "test": [[7]]}
    write_dataset(root, "arm", splits)
    write_dataset(root, "hand", splits, action=("displacement",) * 5, state=4, offset=3, frame_offsets=(0, 1, 3))
    return root


def made(spec: BatchSpec, rows: Rows) -> dict[str, Any]:
    assembler = Assembler(spec)
    out = assembler.empty(len(rows))
    done = assembler.assemble(rows, out)
    assert not done.failed
    return done.batch


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_batch_has_the_arrays_of_its_spec(root: Path, options: dict[str, Any]) -> None:
    data, rows = planned(root, options)
    fields = data.spec.fields()
    texts = {column.name for column in data.spec.columns if column.dtype is None}
    batch = made(data.spec, rows)
    assert set(batch) == set(fields) | texts | ({"language"} if data.spec.has_language else set())
    for name, (dtype, shape) in fields.items():
        assert (batch[name].dtype, batch[name].shape) == (np.dtype(dtype), (len(rows), *shape))


def planned(root: Path, options: dict[str, Any]) -> tuple[OpenMixture, Rows]:
    data = open_data(root, {"arm": 1, "hand": 1}, split="train+test", **options)
    return data, data.plan.rows(np.arange(60))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_batch_is_made_of_its_columns_and_of_no_others(root: Path, options: dict[str, Any]) -> None:
    data, rows = planned(root, options)
    splits = tuple(without_others(data.spec, split) for split in data.spec.splits)
    expected, result = made(data.spec, rows), made(replace(data.spec, splits=splits), rows)
    for name, values in expected.items():
        np.testing.assert_array_equal(result[name], values, err_msg=name)


def without_others(spec: BatchSpec, split: SplitIndex) -> SplitIndex:
    """Return a split whose unused columns have wrong offsets."""
    used = set(spec.used_columns(split))
    tables: dict[str, Any] = {}
    for kind in TABLE_KINDS:
        table = split.table(kind)
        moved = {name: replace(column, data=0) for name, column in table.columns.items() if (kind, name) not in used}
        tables[kind] = Table(table.path, table.rows, {**table.columns, **moved})
    return replace(split, **tables)


def test_the_columns_that_locate_records_come_first(root: Path) -> None:
    data, _ = planned(root, {"columns": ("reward",), "action": 3})
    first = list(data.spec.used_columns(data.spec.splits[0]))[:4]
    assert first == [("records", name) for name in ("shard", "position", "num_bytes", "xxh3_64")]
