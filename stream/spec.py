"""What a batch holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from stream.columns import Column
from stream.shard_list import ShardList
from stream.vectors import Reduction, Vector

Metadata = Literal["full", "dataset_only", "none"]
METADATA: tuple[Metadata, ...] = ("full", "dataset_only", "none")
Batch = dict[str, Any]

Decode = Literal["host", "device"]
DECODE: tuple[Decode, ...] = ("host", "device")


@dataclass(frozen=True, kw_only=True)
class BatchSpec:
    """What a batch holds; the same in the trainer and in every worker.

    shards: of all members. num_frames: frames of a record, by member. frame_shape: (height, width) of all. actions,
    states: the vector of each member. horizon: steps of the action windows; None takes the steps of the pair. offset:
    the largest of the mixture, in steps. action: how windows are reduced.
    """

    datasets: tuple[str, ...]
    shards: ShardList
    num_frames: tuple[int, ...]
    frame_shape: tuple[int, int]
    metadata: Metadata
    actions: tuple[Vector, ...]
    states: tuple[Vector, ...]
    action: Reduction
    horizon: int | None
    offset: int
    columns: tuple[Column, ...]

    @property
    def action_size(self) -> int:
        """A: dimensions of the largest action."""
        return max(vector.size for vector in self.actions)

    @property
    def state_size(self) -> int:
        """S: dimensions of the largest state."""
        return max(vector.size for vector in self.states)

    @property
    def window(self) -> int:
        """W: steps of an action window."""
        return self.horizon or self.offset

    def fields(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type and shape (of one row) of each array of a batch, in order."""
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
