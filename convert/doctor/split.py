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

    def __iadd__(self, other: FrameFacts) -> FrameFacts:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


class OpenSplit:
    """The index and the records of a split. Episodes, steps and records are counted in the split.

    Args:
        folder: Folder of the split, whose index ``convert.verify`` found to be sound.
        manifest: Manifest of the dataset.
        sample: Records to decode, sorted.

    Attributes:
        name: Name of the split.
        statistics: Statistics in the manifest.
        vectors: Registry entry in the manifest.
        dimensions: Name and part of each dimension of ``action`` and ``state``.
        shards: Shards of the split.
        broken: Numbers of the shards whose file cannot be opened.
        tables: Tables of the index.
        frames: Facts about the decoded pairs.
    """

    def __init__(self, folder: Path, manifest: Manifest, *, sample: np.ndarray) -> None:
        self.folder, self.name, self.sample = folder, folder.name, sample
        self.statistics = manifest.statistics.get(self.name, {})
        self.vectors = read_vectors(manifest)
        self.dimensions = dict[str, list[tuple[str, Part]]]()
        for vector in VECTORS:
            self.dimensions[vector] = dimensions(getattr(self.vectors, vector))
        fields = read_fields(manifest, context=str(folder))
        self._cameras, self._last = fields.stored_cameras, max(len(fields.frame_offsets), 1) - 1
        self.shards = list_shards(folder, manifest.splits[self.name])
        self.broken = set[int]()
        self.tables = {kind: open_table(folder / table_file(kind), kind) for kind in TABLE_KINDS}
        self.frames = FrameFacts()

    def column(self, kind: TableKind, name: str) -> np.ndarray:
        """Return a column of numbers, over the mapped file."""
        return self.tables[kind].array(name)

    def value(self, kind: TableKind, name: str, row: int) -> int:
        """Return a whole number of a column."""
        return int(self.column(kind, name)[row])

    def vector(self, name: str) -> np.ndarray:
        """Return ``action`` or ``state`` of each step, float32 [steps, dimensions]."""
        shape = (len(self.tables["steps"]), len(self.dimensions[name]))
        return self.column("steps", name) if all(shape) else np.zeros(shape, np.float32)

    @cached_property
    def episodes(self) -> np.ndarray:
        """Episodes with records, a structured array.

        Its fields are ``row``, the number of the episode; ``start`` and ``stop``, its steps; ``digest``, an XXH3 of the
        actions and the first record; and ``mean`` and ``std`` of each dimension of the action, float32.
        """
        rows = np.flatnonzero(self.column("episodes", "num_records"))
        actions = self.vector("action")
        identity = actions if actions.shape[1] else self.vector("state")
        numbers = [(name, np.int64) for name in ("row", "start", "stop")]
        figures = [(name, np.float32, actions.shape[1:]) for name in ("mean", "std")]
        found = np.zeros(len(rows), [*numbers, ("digest", np.uint64), *figures])
        found["row"], found["start"] = rows, self.column("episodes", "first_steps_row")[rows]
        found["stop"] = found["start"] + self.column("episodes", "num_steps")[rows]
        checksums = self.column("records", "xxh3_64")[self.column("episodes", "first_record")[rows]]
        for episode, checksum in zip(found, checksums.tolist(), strict=True):
            steps = slice(*episode[["start", "stop"]].tolist())
            seed = checksum ^ (steps.stop - steps.start)
            episode["digest"] = xxhash.xxh3_64_intdigest(identity[steps].tobytes(), seed=seed)
            with np.errstate(all="ignore"):
                episode["mean"] = actions[steps].mean(0, dtype=np.float64)
                episode["std"] = actions[steps].std(0, dtype=np.float64)
        return found

    def pair(self, record: int) -> tuple[int, int] | None:
        """Return the records with the first and the last frame of a pair that can be looked at, None if it cannot.

        In the layout ``frames`` the second is a later record of the same camera. Depth is not looked at.
        """
        if self._cameras[self.value("records", "camera", record)].is_depth:
            return None
        last = record
        if not self.value("records", "offset", record):
            steps = self.value("episodes", "num_steps", self.value("records", "episode", record))
            last += min(_APART, steps - 1 - self.value("records", "step", record))
        holes = any(self.value("records", "num_bytes", each) == len(HOLE) for each in (record, last))
        return None if holes or self.value("records", "shard", record) in self.broken else (record, last)

    def ends(self, episode: int) -> tuple[int, int]:
        """Return the first and the last record of an episode, of its first camera in the layout ``frames``."""
        names = ("first_record", "num_records", "num_steps")
        # A camera has one record a step, or one a pair, which are fewer.
        first, *counts = (self.value("episodes", name, episode) for name in names)
        return first, first + min(counts) - 1

    def decode(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the first frame of a record and the last frame of another, uint8 [H, W, 3].

        Raises FormatError or OSError for a record that cannot be read, FormatError for a frame.
        """
        return decode_frame(self._read(begin, 0)), decode_frame(self._read(end, self._last))

    def _read(self, record: int, place: int) -> StoredFrame:
        """Return a frame of a record, in the layout ``frames`` the frame of a row."""
        file = self.shards[self.value("records", "shard", record)].open_records()
        location = (self.value("records", name, record) for name in ("position", "num_bytes", "xxh3_64"))
        camera = self._cameras[self.value("records", "camera", record)]
        return camera.frame(file.read(*location), place or self.value("records", "step", record) % camera.gop)

    def example(
        self,
        episode: int,
        text: str,
        *,
        step: int | None = None,
        record: int | None = None,
    ) -> Example:
        """Return an example about an episode."""
        shard = self.shards[self.value("episodes", "shard", episode)]
        table, row = self.tables["episodes"], np.array([episode])
        first = shard.first["records"]
        positions = self.column("records", "position")[first : first + shard.entry.records]
        return Example(
            source_file=table.take_texts("source_file", row)[0],
            source_position=self.value("episodes", "source_position", episode),
            shard=shard.entry.name,
            record=None if record is None else record_number(positions, record - first),
            step=step,
            text=text,
            instruction=table.take_texts("language", row)[0],
        )

    def note_steps(self, rule: str, wrong: np.ndarray, text: Callable[[int], str], notes: Notes) -> None:
        """Note each episode with records and wrong steps, bool [steps]; ``text`` describes its first wrong step."""
        steps = np.flatnonzero(wrong)
        owners = self.column("steps", "episode")[steps]
        episodes, firsts, counts = np.unique(owners, return_index=True, return_counts=True)
        for episode, step, count in zip(episodes.tolist(), steps[firsts].tolist(), counts.tolist(), strict=True):
            if self.value("episodes", "num_records", episode):
                told = f"{text(step)} (at {count:,} of {self.value('episodes', 'num_steps', episode):,} steps)"
                notes.add(rule, self.name, partial(self.example, episode, told, step=self.value("steps", "step", step)))
