"""Statistics of chunks: weights of 0, chunks of several lengths, and datasets without a complete chunk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stream import ArgumentError, Normalize, Vector, make_loader
from stream.format.statistics import NUMBERS
from stream.statistics.chunks import Chunks, describe_chunks
from tests.stream.crafted_root import CraftedRoot

KEEP: dict[str, Any] = {"on_unknown_units": "keep"}


def part(values: Any) -> Callable[[], Chunks]:
    array = np.array(values, np.float32)
    return lambda: iter([(array, np.ones(array.shape, bool))])


def test_chunks_of_weight_0_do_not_count() -> None:
    parts = [(0.0, part([[[9.0]], [[-9.0]]])), (1.0, part([[[1.0]], [[3.0]]]))]
    numbers = describe_chunks(parts, 1, per_step=False)
    expected = describe_chunks(parts[1:], 1, per_step=False)
    assert {name: numbers[name].tolist() for name in ("count", *NUMBERS)} == {
        name: expected[name].tolist() for name in ("count", *NUMBERS)
    }


@pytest.mark.parametrize("is_first", [False, True])
def test_chunks_of_several_lengths_are_counted_by_step(is_first: bool) -> None:
    parts = [(0.5, part([[[1.0], [5.0]]])), (0.5, part([[[3.0]]]))]
    numbers = describe_chunks(parts if is_first else parts[::-1], 1, per_step=True)
    assert numbers["count"].tolist() == [[2], [1]] and numbers["mean"].tolist() == [[2.0], [5.0]]


@pytest.mark.parametrize("per_step", [False, True])
def test_a_dataset_without_a_complete_chunk_is_an_error(frames_root: Path, per_step: bool) -> None:
    vector = Vector(1000, space="joint", relative_to="state", per_step=per_step, **KEEP)
    loader = make_loader(
        frames_root, "droid", batch_size=4, frames=None, action=vector, state=Vector(space="joint", **KEEP)
    )
    with pytest.raises(
        ArgumentError, match=r"action of droid: no complete chunk of 1000 steps has values.*tails='real'"
    ):
        Normalize(loader, tails="complete", keys=["action"])


class Same:
    """A transform that changes nothing."""

    def map(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of the batch."""
        return {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in batch.items()}


def test_a_transform_that_leaves_stored_nan_as_it_is_changes_nothing(oxe_root: Path, tmp_path: Path) -> None:
    crafted = CraftedRoot(oxe_root, tmp_path)
    table = crafted.table("steps")
    column = table["action"].combine_chunks()
    values = column.values.to_numpy().copy()
    values[::2] = np.nan
    changed = pa.FixedSizeListArray.from_arrays(pa.array(values), column.type.list_size)
    number = table.schema.get_field_index("action")
    crafted.write("steps", table.set_column(number, table.schema.field(number), changed.cast(column.type)))
    loader = make_loader(crafted.root, "bridge", batch_size=4, transforms=[Same()], normalize="mean_std")
    batch = loader.batch_at(0)
    assert np.isnan(batch["action"]).any() and not np.isnan(batch["action"]).all()
