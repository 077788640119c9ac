"""One episode of a loader's data: its steps and frames."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from stream.batch.assemble import Assembler
from stream.order.rows import Rows
from stream.storage.errors import ArgumentError, FormatError, closest

if TYPE_CHECKING:
    import pyarrow as pa

    from stream.loader.mixed import MixedData


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode.

    Attributes:
        table: All columns of ``steps``, one row for each step.
        frames: Frames of the records, uint8 [n, H, W, 3], RGB, in the order of ``frame_steps``.
        frame_steps: Step of each frame, int64 [n].
    """

    table: pa.Table
    frames: np.ndarray
    frame_steps: np.ndarray


def read_episode(data: MixedData, dataset: str, episode: int, *, split: str | None = None) -> Episode:
    """Read an episode.

    Args:
        data: Mixture.
        dataset: Name of a member.
        episode: Number of the episode in its split, as in batches.
        split: Name of the split; needed if the member has samples of several.

    Raises:
        ArgumentError: The dataset, split or episode does not exist.
        stream.storage.errors.FormatError: A record is damaged.
    """
    if dataset not in data.names:
        raise ArgumentError(f"dataset {dataset!r}: {closest(dataset, data.names, noun='members')}")
    member = data.names.index(dataset)
    numbers = {index.split: number for number, index in enumerate(data.views.splits) if index.member == member}
    if split is None and len(numbers) == 1:
        (split,) = numbers
    if split not in numbers:
        raise ArgumentError(f"dataset {dataset}: split={split!r}; give one of {', '.join(numbers)}")
    index = data.views.splits[numbers[split]]
    if not 0 <= episode < len(index.episodes):
        raise ArgumentError(f"dataset {dataset}, split {split}: episode {episode} of {len(index.episodes):,}")
    first, count, steps_row, steps = (
        int(index.episodes.array(name)[episode])
        for name in ("first_record", "num_records", "first_steps_row", "num_steps")
    )
    if not (
        0 <= first <= first + count <= len(index.records) and 0 <= steps_row <= steps_row + steps <= len(index.steps)
    ):
        raise FormatError(f"{index.episodes.path}: episode {episode} leads outside of records or steps; it is damaged")
    zeros = np.zeros(count, np.int64)
    rows = Rows(zeros, zeros + member, zeros, zeros + numbers[split], np.arange(first, first + count))
    assembler = Assembler(replace(data.spec, metadata="none"))
    arrays = assembler.empty(count)
    for row, error in assembler.assemble(rows, arrays).failed[:1]:
        raise FormatError(f"dataset {dataset}, split {split}, row {first + row} of records: {error.reason}")
    offsets = data.datasets[member].manifest.parameters["frame_offsets"]
    all_steps = index.records.take("step", rows.record)[:, None] + np.array(offsets, np.int64)
    frame_steps, places = np.unique(all_steps, return_index=True)
    frames = arrays["frames"][:, : len(offsets)].reshape(-1, *data.spec.frame_shape, 3)
    return Episode(index.steps.arrow().slice(steps_row, steps), frames[places], frame_steps)
