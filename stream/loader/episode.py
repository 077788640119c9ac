"""One episode of a loader's data: its steps, and its frames as pixels or as they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stream.base.errors import ArgumentError, FormatError, closest
from stream.base.html import Markup, html_picture, html_table
from stream.batch.assemble import Assembler, BatchResult
from stream.format.index import find_episode
from stream.format.video import ChunkFrame
from stream.order.rows import Rows
from stream.order.window import resolve_windows

if TYPE_CHECKING:
    import pyarrow as pa

    from stream.batch.cameras import LoadedCamera
    from stream.batch.spec import BatchSpec
    from stream.format.index import SplitIndex
    from stream.loader.open_mixture import OpenMixture

_ROWS = 256
"""Samples whose stored frames are read at once."""
_STRIP = 8
"""Most frames of a camera that a notebook shows."""


class CameraFrames(NamedTuple):
    """Stored frames of one camera.

    ``frames`` is uint8 [n, H, W, 3], RGB, or of depth uint16 [n, H, W]; ``steps`` int64 [n] has the step of each.
    """

    frames: np.ndarray
    steps: np.ndarray


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode.

    Attributes:
        table: All columns of ``steps``, one row for each step.
        cameras: Stored frames of each camera of the loader, by their key in batches (``frames``, ``frames/wrist``);
            of cameras that samples draw from by their names (``frames/exterior_1``).
    """

    table: pa.Table
    cameras: dict[str, CameraFrames]

    @property
    def frames(self) -> np.ndarray:
        """Stored frames of the loader's first camera, uint8 [n, H, W, 3], RGB, in the order of ``frame_steps``."""
        return next(iter(self.cameras.values())).frames

    @property
    def frame_steps(self) -> np.ndarray:
        """Step of each of ``frames``, int64 [n]."""
        return next(iter(self.cameras.values())).steps

    def _repr_html_(self) -> str:
        texts = dict.fromkeys(self.table.column("language").to_pylist())
        rows: list[tuple[Any, Any]] = [
            ("steps", len(self.table)),
            ("language", "; ".join(text for text in texts if text) or "(none)"),
            ("columns", ", ".join(self.table.column_names)),
        ]
        for name, (frames, steps) in self.cameras.items():
            some = np.unique(np.linspace(0, len(frames) - 1, min(len(frames), _STRIP)).astype(int))
            strip = "".join(html_picture(frames[each], f"step {steps[each]}") for each in some)
            rows.append((f"{name} ({len(frames)} frames)", Markup(strip)))
        return html_table((), rows)


@dataclass(frozen=True, eq=False)
class StoredEpisode:
    """One episode with its frames as they are stored.

    Attributes:
        table: All columns of ``steps``, one row for each step.
        frames: JPEG, raw pixels, depth map, or place in a chunk of video of each step, by number of the camera in
            ``data.cameras``; None for a hole.
    """

    table: pa.Table
    frames: tuple[list[bytes | ChunkFrame | None], ...]


@dataclass(frozen=True, eq=False)
class _Place:
    """Location of an episode.

    Attributes:
        member, split: Number of the member, and of the split in ``data.views.splits``.
        index: Index of the split.
        samples: Rows of the episode's samples: ``records`` in the layout ``pairs``, ``steps`` in the layout ``frames``.
        steps: Rows of the episode in ``steps``.
        where: Text for messages.
    """

    member: int
    split: int
    index: SplitIndex
    samples: range
    steps: range
    where: str


def read_episode(data: OpenMixture, dataset: str, episode: int, *, split: str | None = None) -> Episode:
    """Read an episode.

    Args:
        data: Mixture.
        dataset: Name of a member.
        episode: Number of the episode in its split, as in batches.
        split: Name of the split; needed if the member has samples of several.

    Raises:
        ArgumentError: The dataset, split or episode does not exist.
        stream.base.errors.FormatError: A record is damaged.
    """
    place = _find(data, dataset, episode, split)
    cameras = {}
    for camera in _each_camera(data, place.member):
        arrays = _assemble(Assembler(_spec(data, camera)), place, place.samples)
        is_real = arrays[camera.mask]
        steps, places = np.unique(arrays["frame_step"][is_real], return_index=True)
        cameras[camera.frames] = CameraFrames(arrays[camera.frames][is_real][places], steps)
    return Episode(_table(place), cameras)


def read_stored_episode(data: OpenMixture, dataset: str, episode: int, *, split: str | None = None) -> StoredEpisode:
    """Read an episode without decoding its frames, of all cameras of the mixture.

    Args:
        data, dataset, episode, split: As for ``read_episode``.

    Raises:
        ArgumentError: The dataset, split or episode does not exist.
        stream.base.errors.FormatError: A record is damaged.
    """
    place = _find(data, dataset, episode, split)
    cameras: list[list[bytes | ChunkFrame | None]] = []
    for camera in data.cameras:
        assembler = Assembler(_spec(data, camera), decode="device")
        found: list[bytes | ChunkFrame | None] = [None] * len(place.steps)
        for first in range(0, len(place.samples), _ROWS):
            samples = place.samples[first : first + _ROWS]
            arrays = assembler.empty(len(samples))
            read, done = assembler.read(_rows(place, samples), arrays)
            _check(assembler, place, samples, done)
            for row, frames in read:
                for _, frame, stored in frames:
                    found[int(arrays["frame_step"][row, frame])] = (
                        stored if isinstance(stored, ChunkFrame) else bytes(stored)
                    )
        cameras.append(found)
    return StoredEpisode(_table(place), tuple(cameras))


def stored_steps(data: OpenMixture, dataset: str, episode: int, *, split: str | None = None) -> np.ndarray:
    """Return the steps of an episode whose frames its records hold, int64, ascending; holes count as frames.

    Args:
        data, dataset, episode, split: As for ``read_episode``.

    Raises:
        ArgumentError: The dataset, split or episode does not exist.
    """
    place = _find(data, dataset, episode, split)
    if data.spec.layouts[place.member] == "frames":
        return np.arange(len(place.steps))
    distances = np.array(data.datasets[place.member].fields.frame_offsets, np.int64)
    first = place.index.records.array("step")[place.samples.start : place.samples.stop].astype(np.int64)
    return np.unique(first[:, None] + distances)


def _find(data: OpenMixture, dataset: str, episode: int, split: str | None) -> _Place:
    if dataset not in data.names:
        raise ArgumentError(f"dataset {dataset!r}: {closest(dataset, data.names, noun='members')}")
    member = data.names.index(dataset)
    numbers = {index.split: number for number, index in enumerate(data.views.splits) if index.member == member}
    if split is None and len(numbers) == 1:
        (split,) = numbers
    if not isinstance(split, str) or split not in numbers:
        raise ArgumentError(f"dataset {dataset}: split={split!r}; give one of {', '.join(numbers)}")
    index = data.views.splits[numbers[split]]
    rows = find_episode(data.datasets[member], index, episode)
    is_frames = data.spec.layouts[member] == "frames"
    return _Place(
        member=member,
        split=numbers[split],
        index=index,
        samples=rows.steps if is_frames else rows.records,
        steps=rows.steps,
        where=f"dataset {dataset}, split {split}",
    )


def _each_camera(data: OpenMixture, member: int) -> Iterator[LoadedCamera]:
    """Yield the cameras of a member; where samples take one of several, each of them, by its name."""
    stored = data.datasets[member].fields.stored_cameras
    for camera in data.cameras:
        own = camera.stored[member]
        for number in own if len(own) > 1 else ():
            members = range(len(data.names))
            only = tuple((number,) if each == member else () for each in members)
            sources = tuple((stored[number],) if each == member else () for each in members)
            yield replace(camera, suffix=f"/{stored[number].name}", stored=only, sources=sources)
        if len(own) < 2:
            yield camera


def _spec(data: OpenMixture, camera: LoadedCamera) -> BatchSpec:
    """Return the spec of batches of one camera with all frames of their records."""
    windows = resolve_windows(None, [each.fields for each in data.datasets], data.names)
    # A record has all frames of a pair, or one.
    windows = [
        window if layout == "pairs" else window.first for window, layout in zip(windows, data.spec.layouts, strict=True)
    ]
    return replace(data.spec, metadata="none", windows=tuple(windows), cameras=(camera,), chooses_frames=True)


def _assemble(assembler: Assembler, place: _Place, samples: range) -> dict[str, np.ndarray]:
    """Return the arrays of some samples of an episode."""
    arrays = assembler.empty(len(samples))
    _check(assembler, place, samples, assembler.assemble(_rows(place, samples), arrays))
    return arrays


def _rows(place: _Place, samples: range) -> Rows:
    zero = np.zeros(len(samples), np.int64)
    records = np.arange(samples.start, samples.stop)
    return Rows.of(sample=zero, member=zero + place.member, epoch=zero, split=zero + place.split, record=records)


def _check(assembler: Assembler, place: _Place, samples: range, done: BatchResult) -> None:
    """Raise FormatError if a row failed."""
    kind = "steps" if assembler.spec.layouts[place.member] == "frames" else "records"
    for row, error in done.failed[:1]:
        raise FormatError(f"{place.where}, row {samples[row]} of {kind}: {error.reason}")


def _table(place: _Place) -> pa.Table:
    return place.index.steps.arrow().slice(place.steps.start, len(place.steps))
