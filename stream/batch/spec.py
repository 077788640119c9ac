"""Content of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stream.batch.columns import Column
from stream.batch.vectors import Reduction, Vector, sum_scale
from stream.format.index import SplitIndex
from stream.format.names import TableKind

Metadata = Literal["full", "dataset_only", "none"]
METADATA: tuple[Metadata, ...] = ("full", "dataset_only", "none")
Batch = dict[str, Any]

Decode = Literal["host", "device"]
DECODE: tuple[Decode, ...] = ("host", "device")
RECORD_COLUMNS = ("shard", "position", "num_bytes", "xxh3_64")
"""Columns of ``records`` that locate a record."""


@dataclass(frozen=True, kw_only=True)
class BatchSpec:
    """Content of a batch, the same in the trainer and in every worker.

    Attributes:
        datasets: Names of the members.
        splits: Splits of all members.
        num_frames: Frames of a record, by member.
        frame_shape: Height and width of all frames, in pixels.
        metadata: ``full``; ``dataset_only``; or ``none``, for frames and sample numbers.
        actions: Action of each member.
        states: State of each member.
        rates: Steps per second of each member, None if unknown.
        action: Reduction of action windows.
        horizon: Steps of the action windows; None takes the steps of the pair.
        offset: Largest offset of the mixture, in steps.
        columns: Additional columns.
    """

    datasets: tuple[str, ...]
    splits: tuple[SplitIndex, ...]
    num_frames: tuple[int, ...]
    frame_shape: tuple[int, int]
    metadata: Metadata
    actions: tuple[Vector, ...]
    states: tuple[Vector, ...]
    rates: tuple[float | None, ...]
    action: Reduction
    horizon: int | None
    offset: int
    columns: tuple[Column, ...]

    @property
    def action_size(self) -> int:
        """Dimensions of the largest action, A."""
        return max(vector.size for vector in self.actions)

    @property
    def state_size(self) -> int:
        """Dimensions of the largest state, S."""
        return max(vector.size for vector in self.states)

    @property
    def window(self) -> int:
        """Steps of an action window, W."""
        return self.horizon or self.offset

    def sum_scales(self) -> list[np.ndarray]:
        """Return the factor of each member's summed actions; raises ArgumentError as ``sum_scale``."""
        members = zip(self.actions, self.rates, self.datasets, strict=True)
        return [sum_scale(vector, rate, dataset=name) for vector, rate, name in members]

    def fields(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the dtype of each array of a batch and the shape of one row, in order."""
        frames = max(self.num_frames)
        fields: dict[str, tuple[str, tuple[int, ...]]] = {"frames": ("u1", (frames, *self.frame_shape, 3))}
        if len(set(self.num_frames)) > 1:
            fields["frames_mask"] = ("?", (frames,))
        fields["sample"] = ("i8", ())
        if self.metadata != "none":
            fields["dataset"] = ("i4", ())
        if self.metadata == "full":
            action = (self.window, self.action_size) if self.action == "window" else (self.action_size,)
            fields |= {
                "action": ("f4", action),
                "action_mask": ("?", action),
                "state": ("f4", (self.state_size,)),
                "state_mask": ("?", (self.state_size,)),
                "episode": ("i8", ()),
                "step": ("i8", ()),
                "offset": ("i8", ()),
            }
            for column in self.columns:
                if column.dtype is not None:
                    fields[column.name] = (column.dtype, column.shape)
                    fields[f"{column.name}_mask"] = ("?", column.shape)
        return fields

    def used_columns(self, split: SplitIndex) -> Iterator[tuple[TableKind, str]]:
        """Yield the columns of a split that a batch reads, the ones that locate records first."""
        for name in RECORD_COLUMNS:
            yield "records", name
        if self.metadata != "full":
            return
        for name in ("episode", "step", "offset", "steps_row"):
            yield "records", name
        yield "steps", "language"
        for name, vector in (("action", self.actions[split.member]), ("state", self.states[split.member])):
            if vector.chosen is not None:
                yield from (("steps", column) for column, _ in vector.chosen)
            elif vector.size:
                yield "steps", name
        if self.horizon is not None:
            yield "episodes", "num_steps"
        for column in self.columns:
            if kind := column.kinds[split.member]:
                yield kind, column.column
