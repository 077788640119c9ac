"""Tests of roots with right checksums and invented content: loaders refuse them in bounded time and memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stream.base.errors import FormatError, StreamError
from stream.format.manifest import read_manifest
from stream.format.names import TableKind
from stream.frameworks.grain import SampleSource, samples
from tests.fixtures.faults.memory_limit import memory_limit
from tests.stream.crafted_root import CraftedRoot, with_column


@pytest.fixture
def crafted(oxe_root: Path, tmp_path: Path) -> CraftedRoot:
    return CraftedRoot(oxe_root, tmp_path)


@pytest.fixture
def little_memory() -> Iterator[None]:
    with memory_limit():
        yield


def load(crafted: CraftedRoot, **more: Any) -> None:
    """Load the samples of a training epoch, with columns of all tables."""
    dataset = samples(crafted.root, "bridge", shuffle="none", columns=["is_first", "robot"], **more)
    for sample in range(min(dataset.data.sizes["bridge"], 60)):
        dataset[sample]


HUGE = 10**12
VALUES: dict[str, list[Any]] = {
    "parameters/offset": [None, "5", -3, 0, 1.5, HUGE, [1]],
    "image/sizes": [
        *(None, {"x": 1}, [1], {"-1x-1": 1}, {f"{HUGE}x{HUGE}": 1}, {"64x64x3": 1}, {"99999x99999": 1}),
    ],
    "spec/spaces": [5, {"other": {}}, {"oxe": 5}, {"oxe": {"action": [{"dims": HUGE}]}}],
    "spec/action": [5, "text", [5], [{}], [{"path": "is_first", "dims": HUGE}], [{"path": "language", "dims": 1}]],
}
PARTS: list[dict[str, Any]] = [
    *({"dims": 7}, {"dims": 1}, {"dims": -1}, {"dims": 3, "names": ["x"]}),
    *({"dims": 3, "kind": "other"}, {"dims": 3, "kind": None}),
    *({"select": [99]}, {"select": "abc"}, {"select": []}, {"select": [-1]}, {"path": "nowhere", "dims": 1}),
    # One value a step, which would be repeated for each of three dimensions.
    {"path": "is_first", "dims": 3},
]
VALUES["spec/action"] += [[{"path": "action/world_vector", "kind": "displacement", **part}] for part in PARTS]
FIELDS = [(field, value) for field, values in VALUES.items() for value in values]


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(("field", "value"), FIELDS, ids=lambda value: str(value)[:40])
def test_a_field_that_cannot_be_is_refused(crafted: CraftedRoot, field: str, value: Any) -> None:
    crafted.set(field, value)
    with pytest.raises((StreamError, FormatError)):
        load(crafted)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("count", [10**10, 10**18, 2**63, 10**30])
@pytest.mark.parametrize("samples_per_episode", [0, 2])
def test_counts_beyond_any_dataset_are_refused(crafted: CraftedRoot, count: int, samples_per_episode: int) -> None:
    def edit(content: Any) -> None:
        split = content["splits"]["train"]
        shard = split["shards"][0]
        for key in ("episodes", "steps", "records"):
            more = count - shard[key]
            for parent in (shard, split, content):
                parent[key] += more
        shard["paired_episodes"] = count

    crafted.edit(edit)
    with pytest.raises((StreamError, FormatError), match=r"dataset\.json: |rows, the manifest says"):
        load(crafted, samples_per_episode=samples_per_episode)


def test_a_member_that_leads_elsewhere_is_refused(crafted: CraftedRoot) -> None:
    for name in ("../bridge", "/etc", "bridge/..", ".", "bridge:..", "bridge:../0.1.0", "bridge:/etc"):
        with pytest.raises(StreamError):
            SampleSource(crafted.root, {name: 1})


def test_a_manifest_that_never_ends_is_refused(crafted: CraftedRoot) -> None:
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.open("wb").truncate(10**12)):
        crafted.manifest.unlink()
        make(crafted.manifest)
        with pytest.raises((StreamError, FormatError)):
            load(crafted)
        with pytest.raises((OSError, FormatError), match=r"device or pipe|larger than"):
            read_manifest(crafted.manifest)


def numbers(value: int, kind: pa.DataType) -> Callable[[pa.Table], pa.Array]:
    return lambda table: pa.array(np.full(len(table), value), pa.int64()).cast(kind)


def other_type(table: pa.Table) -> pa.Array:
    return pa.array(["text"] * len(table))


def nulls(table: pa.Table) -> pa.Array:
    return pa.nulls(len(table), pa.int32())


COLUMNS: list[tuple[TableKind, str, Callable[[pa.Table], pa.Array]]] = [
    *[("records", "episode", numbers(value, pa.int32())) for value in (-1, 2**31 - 1)],
    ("records", "step", numbers(2**31 - 1, pa.int32())),
    *[("records", "shard", numbers(value, pa.int32())) for value in (-1, 2, 2**31 - 1)],
    *[("records", "num_bytes", numbers(value, pa.int32())) for value in (-1, 0, 2**31 - 1)],
    *[("records", name, numbers(value, pa.int64())) for name in ("steps_row", "position") for value in (-1, 2**62)],
    *[("records", column, make) for column in ("episode", "steps_row", "position") for make in (other_type, nulls)],
    *[("steps", column, other_type) for column in ("episode", "language", "is_first", "action")],
    *[("episodes", "first_record", numbers(value, pa.int64())) for value in (-5, 10**6)],
    *[("episodes", "num_steps", numbers(value, pa.int32())) for value in (-1, 0)],
    ("episodes", "robot", numbers(1, pa.int64())),
]


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(("kind", "column", "make"), COLUMNS)
def test_a_column_that_does_not_fit_is_refused(
    crafted: CraftedRoot, kind: TableKind, column: str, make: Callable[[pa.Table], pa.Array]
) -> None:
    table = crafted.table(kind)
    crafted.write(kind, with_column(table, column, make(table)))
    with pytest.raises((StreamError, FormatError)):
        load(crafted, samples_per_episode=2 if kind == "episodes" else 0, action=3)


@pytest.mark.parametrize("size", [1, 2])
def test_a_vector_of_another_length_is_refused_and_not_repeated(crafted: CraftedRoot, size: int) -> None:
    table = crafted.table("steps")
    values = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(len(table) * size, np.float32)), size)
    crafted.write("steps", with_column(table, "action", values))
    with pytest.raises(FormatError, match=r"column 'action' is not the \d+ numbers of the manifest's spec; run"):
        load(crafted)


def test_numbers_of_texts_that_are_not_there_are_refused(crafted: CraftedRoot) -> None:
    table = crafted.table("steps")
    texts = table["language"].combine_chunks().dictionary
    outside = pa.DictionaryArray.from_arrays(pa.array([10**6] * len(table), pa.int32()), texts, safe=False)
    crafted.write("steps", with_column(table, "language", outside))
    with pytest.raises((StreamError, FormatError), match=r"steps\.arrow: column 'language'"):
        load(crafted)
