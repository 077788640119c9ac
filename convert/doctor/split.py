"""An open split of a converted dataset: the columns of its index, and the frames of its records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import xxhash

from convert.findings import Example, Notes
from convert.index.derived import dimensions, read_vectors
from convert.index.shards import list_shards
from convert.registry.dataset import Part
from stream.format.fields import read_fields
from stream.format.frame import StoredFrame, decode_frame
from stream.format.index import record_number
from stream.format.manifest import Manifest
from stream.format.names import HOLE, TABLE_KINDS, VECTORS, TableKind, table_file
from stream.format.table import open_table

_APART = 5
"""Steps between the two frames of a pair that is looked at, in the layout ``frames``."""


@dataclass
class FrameFacts:
    """Facts about some pairs.

    Attributes:
        pairs: Number of decoded pairs.
        frozen: Number of pairs of twice the same picture.
        blank: Number of frames that are black or constant.
        casts: Red minus blue of each pair that is not blank, -255 to 255.
    """

    pairs: int = 0
    frozen: int = 0
    blank: int = 0
    casts: list[float] = field(default_factory=list)

    def __iadd__(self, other_facts: FrameFacts) -> FrameFacts:
        for field_name, field_value in vars(other_facts).items():
            setattr(self, field_name, getattr(self, field_name) + field_value)
        return self


class OpenSplit:
    """The index and the records of a split, whose index is sound. Rows are counted in the split.

    Attributes:
        sample: Records to decode, sorted.
        vectors: Registry entry in the manifest.
        dimensions: Name and part of each dimension of ``action`` and ``state``.
        broken: Numbers of the shards whose file cannot be opened.
        frames: Facts about the decoded pairs.
    """

    def __init__(self, folder: Path, manifest: Manifest, *, sample: np.ndarray) -> None:
        self.folder, self.name, self.sample = folder, folder.name, sample
        self.statistics = manifest.statistics.get(self.name, {})
        self.vectors = read_vectors(manifest)
        self.dimensions: dict[str, list[tuple[str, Part]]]
        self.dimensions = {vector: dimensions(getattr(self.vectors, vector)) for vector in VECTORS}
        fields = read_fields(manifest, context=str(folder))
        self._cameras, self._last = fields.stored_cameras, max(len(fields.frame_offsets), 1) - 1
        self.shards = list_shards(folder, manifest.splits[self.name])
        self.broken = set[int]()
        self.tables = {kind: open_table(folder / table_file(kind), kind) for kind in TABLE_KINDS}
        self.frames = FrameFacts()

    def column(self, kind: TableKind, column: str) -> np.ndarray:
        """Return a column of numbers, over the mapped file."""
        return self.tables[kind].array(column)

    def value(self, kind: TableKind, column: str, row_number: int) -> int:
        """Return an integer of a column."""
        return int(self.column(kind, column)[row_number])

    def vector(self, vector_name: str) -> np.ndarray:
        """Return ``action`` or ``state`` of each step, float32 [steps, dimensions]."""
        vector_shape = (len(self.tables["steps"]), len(self.dimensions[vector_name]))
        return self.column("steps", vector_name) if all(vector_shape) else np.zeros(vector_shape, np.float32)

    @cached_property
    def episodes(self) -> np.ndarray:
        """Episodes with records, a structured array.

        Its fields are ``row``, the number of the episode; ``start`` and ``stop``, its steps; ``digest``, an XXH3 of the
        actions and the first record; and ``mean`` and ``std`` of each dimension of the action, float32.
        """
        episode_numbers = np.flatnonzero(self.column("episodes", "num_records"))
        actions = self.vector("action")
        identity = actions if actions.shape[1] else self.vector("state")
        number_fields = [(name, np.int64) for name in ("row", "start", "stop")]
        figure_fields = [(name, np.float32, actions.shape[1:]) for name in ("mean", "std")]
        episode_table = np.zeros(len(episode_numbers), [*number_fields, ("digest", np.uint64), *figure_fields])
        episode_table["row"] = episode_numbers
        episode_table["start"] = self.column("episodes", "first_steps_row")[episode_numbers]
        episode_table["stop"] = episode_table["start"] + self.column("episodes", "num_steps")[episode_numbers]
        checksums = self.column("records", "xxh3_64")[self.column("episodes", "first_record")[episode_numbers]]
        for episode, checksum in zip(episode_table, checksums.tolist(), strict=True):
            step_range = slice(*episode[["start", "stop"]].tolist())
            hash_seed = checksum ^ (step_range.stop - step_range.start)
            episode["digest"] = xxhash.xxh3_64_intdigest(identity[step_range].tobytes(), seed=hash_seed)
            with np.errstate(all="ignore"):
                episode["mean"] = actions[step_range].mean(0, dtype=np.float64)
                episode["std"] = actions[step_range].std(0, dtype=np.float64)
        return episode_table

    def pair(self, first_record: int) -> tuple[int, int] | None:
        """Return the records with the first and the last frame of a pair that can be looked at, None if it cannot.

        In the layout ``frames`` the second is a later record of the same camera. Depth is not looked at.
        """
        if self._cameras[self.value("records", "camera", first_record)].is_depth:
            return None
        last_record = first_record
        if not self.value("records", "offset", first_record):
            num_steps = self.value("episodes", "num_steps", self.value("records", "episode", first_record))
            last_record += min(_APART, num_steps - 1 - self.value("records", "step", first_record))
        has_missing = any(self.value("records", "num_bytes", row) == len(HOLE) for row in (first_record, last_record))
        is_broken = self.value("records", "shard", first_record) in self.broken
        return None if has_missing or is_broken else (first_record, last_record)

    def ends(self, episode: int) -> tuple[int, int]:
        """Return the first and the last record of an episode, of its first camera in the layout ``frames``."""
        column_names = ("first_record", "num_records", "num_steps")
        # A camera has one record a step, or one a pair, which are fewer.
        first_record, *record_counts = (self.value("episodes", column, episode) for column in column_names)
        return first_record, first_record + min(record_counts) - 1

    def decode(self, first_record: int, last_record: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the first frame of a record and the last frame of another, uint8 [H, W, 3].

        Raises FormatError or OSError for a record that cannot be read, FormatError for a frame.
        """
        return decode_frame(self._read(first_record, 0)), decode_frame(self._read(last_record, self._last))

    def _read(self, record: int, frame_number: int) -> StoredFrame:
        """Return a frame of a record, in the layout ``frames`` the frame of a row."""
        record_file = self.shards[self.value("records", "shard", record)].open_records()
        location = (self.value("records", column, record) for column in ("position", "num_bytes", "xxh3_64"))
        camera = self._cameras[self.value("records", "camera", record)]
        number = frame_number or self.value("records", "step", record) % camera.gop
        return camera.frame(record_file.read(*location), number)

    def example(self, episode: int, text: str, *, step: int | None = None, record: int | None = None) -> Example:
        """Return an example about an episode."""
        shard = self.shards[self.value("episodes", "shard", episode)]
        episodes_table, row_numbers = self.tables["episodes"], np.array([episode])
        first_record = shard.first["records"]
        positions = self.column("records", "position")[first_record : first_record + shard.entry.records]
        return Example(
            source_file=episodes_table.take_texts("source_file", row_numbers)[0],
            source_position=self.value("episodes", "source_position", episode),
            shard=shard.entry.name,
            record=None if record is None else record_number(positions, record - first_record),
            step=step,
            text=text,
            instruction=episodes_table.take_texts("language", row_numbers)[0],
        )

    def note_steps(self, rule_name: str, is_wrong: np.ndarray, describe: Callable[[int], str], notes: Notes) -> None:
        """Note each episode with records and wrong steps, bool [steps]; ``describe`` describes its first wrong step."""
        wrong_steps = np.flatnonzero(is_wrong)
        owners = self.column("steps", "episode")[wrong_steps]
        episodes, first_indices, counts = np.unique(owners, return_index=True, return_counts=True)
        for episode, row, count in np.stack([episodes, wrong_steps[first_indices], counts], axis=1).tolist():
            if self.value("episodes", "num_records", episode):
                step, num_steps = self.value("steps", "step", row), self.value("episodes", "num_steps", episode)
                sentence = f"{describe(row)} (at {count:,} of {num_steps:,} steps)"
                notes.add(rule_name, self.name, partial(self.example, episode, sentence, step=step))
