"""Content of a batch: its members, cameras, windows, vectors and columns, and the shape of each array."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from stream.batch.cameras import LoadedCamera
from stream.batch.columns import Column
from stream.batch.pictures.augmentation import Augmentation
from stream.batch.vectors import DatasetVector, check_reduction
from stream.format.index import SplitIndex
from stream.format.names import VECTORS, DerivedName, Layout, TableKind, VectorName
from stream.sample.dropout import Delay, Dropout
from stream.sample.relative import RelativeVector
from stream.sample.slots import Slots
from stream.sample.vector import Reduction
from stream.sample.window import StepSpan, Window, WindowTable

Batch = dict[str, Any]

RECORD_COLUMNS = ("shard", "position", "num_bytes", "xxh3_64")
"""Columns of ``records`` that locate a record."""


@dataclass(frozen=True, kw_only=True)
class BatchSpec:
    """Content of a batch, the same in the trainer and in every worker.

    Attributes:
        datasets: Names of the members.
        splits: Splits of all members.
        layouts: Layout of each member.
        record_offsets: Distances from t of the frames of a record, by member; empty in the layout ``frames``.
        stored_cameras: Count of the stored cameras, by member.
        cameras: Cameras that are loaded; none for batches without frames.
        windows: Frames of each member's samples.
        chooses_frames: True if the caller chose steps, cameras or edges, so that batches have masks of their frames.
        seed: Seed of random frames.
        actions: Action of each member; empty if batches have none.
        states: State of each member; empty if batches have none.
        sources: Vectors as stored, by vector, of those that ``relative`` converts.
        relative: Conversion of each member's vector to relative values or other forms of rotations, by vector.
        per_step: Vectors whose normalisation has statistics of each step.
        reference: State of each member that vectors are relative to; empty if none are.
        derived: Column of ``steps`` with the vectors that no caller chose, by ``action``, ``state`` and ``reference``.
        rates: Steps per second of each member, None if unknown.
        reduction: Reduction of action windows, None for all steps.
        has_intervals: True if actions are those between successive frames.
        has_times: True if batches have the times of the frames.
        action_span, state_span: Steps of the actions and states of a sample.
        repeated_edges: Vectors whose steps beyond the episode repeat its first or last one.
        state_has_steps: True if the state has a dimension of steps.
        has_language: True if batches have the language of a sample.
        languages: Columns of texts, one of which is the language of a sample; empty for the column of the format.
        columns: Additional columns.
        num_samples: Samples of all passes together, None without an end. Later rows are padding.
        neighbours: Records that one read takes from an object store, as their samples are drawn together.
        augmentation: Augmentation of the frames, or None.
        state_dropout: Dropout of the state, or None.
        history_dropout: Dropout of the frames before t, or None.
        delay: Delay of the actions, or None.
        slots: Slots of each member's vector, by vector, of those in a layout. ``actions`` and ``states`` are the
            vectors in front of it.
    """

    datasets: tuple[str, ...]
    splits: tuple[SplitIndex, ...]
    layouts: tuple[Layout, ...]
    record_offsets: tuple[tuple[int, ...], ...]
    stored_cameras: tuple[int, ...]
    cameras: tuple[LoadedCamera, ...]
    windows: tuple[Window, ...]
    chooses_frames: bool
    seed: int
    action_span: StepSpan
    state_span: StepSpan
    actions: tuple[DatasetVector, ...] = ()
    states: tuple[DatasetVector, ...] = ()
    sources: Mapping[VectorName, tuple[DatasetVector, ...]] = field(default_factory=dict)
    relative: Mapping[VectorName, tuple[RelativeVector, ...]] = field(default_factory=dict)
    per_step: tuple[VectorName, ...] = ()
    reference: tuple[DatasetVector, ...] = ()
    derived: Mapping[str, DerivedName] = field(default_factory=dict)
    rates: tuple[float | None, ...] = ()
    reduction: Reduction | None = None
    has_intervals: bool = False
    has_times: bool = False
    repeated_edges: tuple[VectorName, ...] = ()
    state_has_steps: bool = False
    has_language: bool = False
    languages: tuple[Column, ...] = ()
    columns: tuple[Column, ...] = ()
    num_samples: int | None = None
    neighbours: int = 1
    augmentation: Augmentation | None = None
    state_dropout: Dropout | None = None
    history_dropout: Dropout | None = None
    delay: Delay | None = None
    slots: Mapping[VectorName, tuple[Slots, ...]] = field(default_factory=dict)

    @cached_property
    def action_size(self) -> int:
        """Numbers of an action, A: dimensions of the largest, or numbers of the layout."""
        return self._size("action")

    @cached_property
    def state_size(self) -> int:
        """Numbers of a state, S: dimensions of the largest, or numbers of the layout."""
        return self._size("state")

    def _size(self, vector_name: VectorName) -> int:
        if slots := self.slots.get(vector_name):
            return slots[0].size
        return max((vector.size for vector in self.vectors(vector_name)), default=0)

    def dim_names(self, vector_name: VectorName) -> tuple[tuple[str, ...], ...]:
        """Return the names of each member's numbers; empty texts in a layout where the member has none."""
        names = tuple(vector.names for vector in self.vectors(vector_name))
        slots = self.slots.get(vector_name)
        return tuple(slot.names(name) for slot, name in zip(slots, names, strict=True)) if slots else names

    def vectors(self, vector_name: VectorName) -> tuple[DatasetVector, ...]:
        """Return the action or the state of each member."""
        return self.actions if vector_name == "action" else self.states

    @property
    def read_vectors(self) -> dict[str, tuple[DatasetVector, ...]]:
        """Vectors that are read, as stored, by name; ``reference`` is the state that others are relative to."""
        vectors: dict[str, tuple[DatasetVector, ...]] = {
            vector_name: self.sources.get(vector_name, self.vectors(vector_name)) for vector_name in self.loaded_vectors
        }
        return {**vectors, "reference": self.reference} if self.reference else vectors

    def span_of(self, vector_name: str) -> StepSpan:
        """Return the steps of a vector that is read."""
        if vector_name == "reference":
            return StepSpan.of_one(len(self.datasets))
        return self.action_span if vector_name == "action" else self.state_span

    @property
    def loaded_vectors(self) -> list[VectorName]:
        """Vectors that batches have."""
        return [vector_name for vector_name in VECTORS if self.vectors(vector_name)]

    @property
    def vector_names(self) -> list[VectorName]:
        """Vectors of which a member has dimensions."""
        return [vector_name for vector_name in VECTORS if any(vector.size for vector in self.vectors(vector_name))]

    @property
    def frame_shapes(self) -> dict[str, tuple[int, int]]:
        """Height and width of the frames of each camera in pixels, by key."""
        return {camera.frames: camera.shape for camera in self.cameras}

    @property
    def num_frames(self) -> tuple[int, ...]:
        """Frames of a sample, by member."""
        return tuple(map(len, self.windows))

    @cached_property
    def window_table(self) -> WindowTable:
        """Windows of all members."""
        return WindowTable(self.windows, seed=self.seed)

    def check_reduction(self) -> None:
        """Raise ArgumentError if the actions of a member cannot be reduced."""
        for vector, rate, dataset_name in zip(self.actions, self.rates, self.datasets, strict=bool(self.actions)):
            check_reduction(self.reduction, vector, rate, dataset=dataset_name)

    @property
    def is_remote(self) -> bool:
        """True if a member is read in place."""
        return any(split.remote is not None for split in self.splits)

    def fields(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the dtype of each array of a batch and the shape of one row, in order."""
        max_frames = max(self.num_frames)
        fields: dict[str, tuple[str, tuple[int, ...]]] = {}
        for camera in self.cameras:
            dtype, shape = camera.field
            fields[camera.frames] = dtype, (max_frames, *shape)
        if self.chooses_frames:
            fields |= {camera.mask: ("?", (max_frames,)) for camera in self.cameras} | {
                "frame_step": ("i8", (max_frames,))
            }
        elif len(set(self.num_frames)) > 1 and self.cameras:
            fields[self.cameras[0].mask] = ("?", (max_frames,))
        if self.has_times:
            fields["frame_time"] = ("f4", (max_frames,))
        fields["sample"] = ("i8", ())
        if self.num_samples is not None:
            fields["sample_mask"] = ("?", ())
        fields["dataset"] = ("i4", ())
        if self.actions:
            fields |= {"action": ("f4", self._action_shape), "action_mask": ("?", self._action_shape)}
        if self.delay is not None:
            fields |= {"action_delay": ("i4", ()), "action_prefix_mask": ("?", (self.action_span.longest,))}
        if self.states:
            state_shape = (self.state_span.longest, self.state_size) if self.state_has_steps else (self.state_size,)
            fields |= {"state": ("f4", state_shape), "state_mask": ("?", state_shape)}
        fields |= {"episode": ("i8", ()), "step": ("i8", ()), "offset": ("i8", ())}
        for column in self.columns:
            if column.dtype is not None:
                fields[column.name] = (column.dtype, column.shape)
                fields[f"{column.name}_mask"] = ("?", column.shape)
        return fields

    @property
    def _action_shape(self) -> tuple[int, ...]:
        intervals = (max(self.num_frames) - 1,) if self.has_intervals else ()
        longest = self.action_span.longest
        if self.has_intervals:
            longest = max(int(np.diff(window.low).max()) for window in self.windows)
        steps = (longest,) if self.reduction is None else ()
        return (*intervals, *steps, self.action_size)

    def used_columns(self, split_index: SplitIndex) -> Iterator[tuple[TableKind, str]]:
        """Yield the columns of a split that a batch reads, the ones that locate records first."""
        for column_name in RECORD_COLUMNS if self.cameras else ():
            yield "records", column_name
        if self.layouts[split_index.member] == "pairs":
            for column_name in ("episode", "step", "steps_row"):
                yield "records", column_name
        else:
            yield from (("steps", column_name) for column_name in ("episode", "step"))
            yield "episodes", "first_record"
        yield "episodes", "num_steps"
        if self.has_language and not self.languages:
            yield "steps", "language"
        for vector_name, vectors in self.read_vectors.items():
            vector = vectors[split_index.member]
            if vector.chosen is not None:
                yield from (("steps", extra_column) for extra_column, _ in vector.chosen)
            elif vector.size:
                yield "steps", self.derived[vector_name]
        for extra_column in (*self.languages, *self.columns):
            if table_kind := extra_column.kinds[split_index.member]:
                yield table_kind, extra_column.column


def map_values(function: Callable[[str, Any], Any], batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch with the results of a function of key and value, also in the dicts inside.

    >>> map_values(lambda key, value: value + 1, {"image": {"base": 1}, "state": 2})
    {'image': {'base': 2}, 'state': 3}
    """
    return {
        batch_key: map_values(function, value) if isinstance(value, dict) else function(batch_key, value)
        for batch_key, value in batch.items()
    }
