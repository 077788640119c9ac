"""One episode of a loader's data: its steps and frames."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from stream.batch.assemble import Assembler
from stream.order.rows import Rows
from stream.order.window import resolve_windows
from stream.storage.errors import ArgumentError, FormatError, closest

if TYPE_CHECKING:
    import pyarrow as pa

    from stream.loader.mixed import MixedData


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode.

    Attributes:
        table: All columns of ``steps``, one row for each step.
        frames: Stored frames of the loader's first camera, uint8 [n, H, W, 3], RGB, in the order of ``frame_steps``.
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
    if data.spec.layouts[member] == "frames":
        # Its samples are steps.
        first, count = steps_row, steps
    windows = resolve_windows(None, [each.fields for each in data.datasets], data.names)
    # A record has all frames of a pair, or one.
    windows = [
        window if layout == "pairs" else window.first for window, layout in zip(windows, data.spec.layouts, strict=True)
    ]
    spec = replace(
        data.spec, metadata="none", windows=tuple(windows), cameras=data.spec.cameras[:1], chooses_frames=True
    )
    zeros = np.zeros(count, np.int64)
    rows = Rows(zeros, zeros + member, zeros, zeros + numbers[split], np.arange(first, first + count))
    assembler, camera = Assembler(spec), spec.cameras[0]
    arrays = assembler.empty(count)
    kind = "steps" if data.spec.layouts[member] == "frames" else "records"
    for row, error in assembler.assemble(rows, arrays).failed[:1]:
        raise FormatError(f"dataset {dataset}, split {split}, row {first + row} of {kind}: {error.reason}")
    is_real = arrays[camera.mask]
    frame_steps, places = np.unique(arrays["frame_step"][is_real], return_index=True)
    table = index.steps.arrow().slice(steps_row, steps)
    return Episode(table, arrays[camera.frames][is_real][places], frame_steps)
