"""One episode of a loader's data: its steps, and its frames as pixels or as they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stream.base.errors import ArgumentError, FormatError, closest
from stream.base.html import Markup, html_picture, html_table
from stream.batch.assemble import Assembler
from stream.batch.result import BatchResult
from stream.batch.spec import BatchSpec
from stream.format.index import find_episode
from stream.format.video import ChunkFrame
from stream.order.rows import Rows
from stream.sample.window import resolve_windows

if TYPE_CHECKING:
    import pyarrow as pa

    from stream.batch.cameras import LoadedCamera
    from stream.format.frame import StoredCamera
    from stream.format.index import SplitIndex
    from stream.loader.open_mixture import OpenMixture

_READ_ROWS = 256
"""Samples whose stored frames are read at once."""
_MAX_SHOWN_FRAMES = 8
"""Most frames of a camera that a notebook shows."""


class CameraFrames(NamedTuple):
    """Stored frames of one camera.

    Attributes:
        frames: uint8 [n, H, W, 3], RGB; of depth uint16 [n, H, W].
        steps: Step of each frame, int64 [n].
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
        """Stored frames of the loader's first camera, uint8 [n, H, W, 3], RGB, in the order of ``frame_steps``.

        Raises ArgumentError if the loader has no cameras (``frames=None``).
        """
        return self._first_camera("frames").frames

    @property
    def frame_steps(self) -> np.ndarray:
        """Step of each of ``frames``, int64 [n]; raises as ``frames`` does."""
        return self._first_camera("frame_steps").steps

    def _first_camera(self, attribute: str) -> CameraFrames:
        if not self.cameras:
            raise ArgumentError(
                f"{attribute}: the loader of this episode was made with frames=None, so it has no cameras; make one "
                "without frames=None, or read the columns of `table`"
            )
        return next(iter(self.cameras.values()))

    def _repr_html_(self) -> str:
        instructions = dict.fromkeys(self.table.column("language").to_pylist())
        table_rows: list[tuple[Any, Any]] = [
            ("steps", len(self.table)),
            ("language", "; ".join(text for text in instructions if text) or "(none)"),
            ("columns", ", ".join(self.table.column_names)),
        ]
        for camera_name, (frames, steps) in self.cameras.items():
            frame_numbers = np.unique(np.linspace(0, len(frames) - 1, min(len(frames), _MAX_SHOWN_FRAMES)).astype(int))
            pictures = "".join(html_picture(frames[number], f"step {steps[number]}") for number in frame_numbers)
            table_rows.append((f"{camera_name} ({len(frames)} frames)", Markup(pictures)))
        return html_table((), table_rows)


@dataclass(frozen=True, eq=False)
class StoredEpisode:
    """One episode with its frames as they are stored.

    Attributes:
        table: All columns of ``steps``, one row for each step.
        frames: JPEG, raw pixels, depth map, or location in a chunk of video of each step, by number of the camera in
            ``mixture.cameras``; None for a missing frame.
    """

    table: pa.Table
    frames: tuple[list[bytes | ChunkFrame | None], ...]


@dataclass(frozen=True, eq=False)
class _Location:
    """Location of an episode.

    Attributes:
        member: Number of the member.
        split: Number of the split in ``mixture.sample_index.splits``.
        index: Index of the split.
        table_name: Table of the samples: ``records`` in the layout ``pairs``, ``steps`` in the layout ``frames``.
        samples: Rows of the episode in this table.
        steps: Rows of the episode in ``steps``.
        context: Text for messages.
    """

    member: int
    split: int
    index: SplitIndex
    table_name: str
    samples: range
    steps: range
    context: str

    def rows(self, samples: range) -> Rows:
        """Return some samples of the episode as rows of a batch."""
        zeros = np.zeros(len(samples), np.int64)
        records = np.arange(samples.start, samples.stop)
        return Rows.of(sample=zeros, member=zeros + self.member, epoch=zeros, split=zeros + self.split, record=records)

    def check(self, samples: range, result: BatchResult) -> None:
        """Raise FormatError if a row of some samples failed."""
        for row, error in result.failed[:1]:
            raise FormatError(f"{self.context}, row {samples[row]} of {self.table_name}: {error.reason}")

    def table(self) -> pa.Table:
        """Return the episode's rows of ``steps``."""
        return self.index.steps.arrow().slice(self.steps.start, len(self.steps))


def read_episode(mixture: OpenMixture, dataset: str, episode: int, *, split: str | None = None) -> Episode:
    """Read an episode.

    Args:
        mixture: Open mixture.
        dataset: Name of a member.
        episode: Number of the episode in its split, as in batches.
        split: Name of the split; needed if the member has samples of several.

    Raises:
        ArgumentError: The dataset, split or episode does not exist.
        stream.base.errors.FormatError: A record is damaged.
    """
    location = _find(mixture, dataset, episode, split)
    cameras = {}
    for camera in _member_cameras(mixture, location.member):
        assembler = Assembler(_camera_spec(mixture, camera))
        arrays = assembler.empty(len(location.samples))
        location.check(location.samples, assembler.assemble(location.rows(location.samples), arrays))
        is_real = arrays[camera.mask]
        # Samples share frames: keep the first of each step.
        steps, frame_numbers = np.unique(arrays["frame_step"][is_real], return_index=True)
        cameras[camera.frames] = CameraFrames(arrays[camera.frames][is_real][frame_numbers], steps)
    return Episode(location.table(), cameras)


def read_stored_episode(mixture: OpenMixture, dataset: str, episode: int, *, split: str | None = None) -> StoredEpisode:
    """Read an episode of all cameras of the mixture, without decoding its frames; arguments as for ``read_episode``."""
    location = _find(mixture, dataset, episode, split)
    cameras: list[list[bytes | ChunkFrame | None]] = []
    for camera in mixture.cameras:
        assembler = Assembler(_camera_spec(mixture, camera), decode="device")
        camera_frames: list[bytes | ChunkFrame | None] = [None] * len(location.steps)
        for first in range(0, len(location.samples), _READ_ROWS):
            samples = location.samples[first : first + _READ_ROWS]
            arrays = assembler.empty(len(samples))
            read_frames, result = assembler.read(location.rows(samples), arrays)
            location.check(samples, result)
            for row, frames in read_frames:
                for _, number, stored in frames:
                    step = int(arrays["frame_step"][row, number])
                    camera_frames[step] = stored if isinstance(stored, ChunkFrame) else bytes(stored)
        cameras.append(camera_frames)
    return StoredEpisode(location.table(), tuple(cameras))


def stored_steps(mixture: OpenMixture, dataset: str, episode: int, *, split: str | None = None) -> np.ndarray:
    """Return the steps of an episode whose frames its records hold, missing frames included, int64, ascending.

    Arguments and errors are those of ``read_episode``.
    """
    location = _find(mixture, dataset, episode, split)
    if location.table_name == "steps":
        return np.arange(len(location.steps))
    offsets = np.array(mixture.datasets[location.member].fields.frame_offsets, np.int64)
    first_steps = location.index.records.array("step")[location.samples.start : location.samples.stop].astype(np.int64)
    return np.unique(first_steps[:, None] + offsets)


def _find(mixture: OpenMixture, dataset: str, episode: int, split: str | None) -> _Location:
    if dataset not in mixture.names:
        raise ArgumentError(f"dataset {dataset!r}: {closest(dataset, mixture.names, noun='members')}")
    member = mixture.names.index(dataset)
    split_numbers = {
        index.split: number for number, index in enumerate(mixture.sample_index.splits) if index.member == member
    }
    if split is None and len(split_numbers) == 1:
        (split,) = split_numbers
    if not isinstance(split, str) or split not in split_numbers:
        raise ArgumentError(f"dataset {dataset}: split={split!r}; give one of {', '.join(split_numbers)}")
    index = mixture.sample_index.splits[split_numbers[split]]
    episode_rows = find_episode(mixture.datasets[member], index, episode)
    is_frames = mixture.spec.layouts[member] == "frames"
    return _Location(
        member=member,
        split=split_numbers[split],
        index=index,
        table_name="steps" if is_frames else "records",
        samples=episode_rows.steps if is_frames else episode_rows.records,
        steps=episode_rows.steps,
        context=f"dataset {dataset}, split {split}",
    )


def _member_cameras(mixture: OpenMixture, member: int) -> Iterator[LoadedCamera]:
    """Yield the cameras of a member; a camera that is drawn from several is replaced by all of them, by name."""
    stored = mixture.datasets[member].fields.stored_cameras
    for camera in mixture.cameras:
        alternatives = camera.stored[member]
        if len(alternatives) < 2:
            yield camera
            continue
        for number in alternatives:
            camera_numbers: list[tuple[int, ...]] = [()] * len(mixture.names)
            sources: list[tuple[StoredCamera, ...]] = [()] * len(mixture.names)
            camera_numbers[member], sources[member] = (number,), (stored[number],)
            suffix = f"/{stored[number].name}"
            yield replace(camera, suffix=suffix, stored=tuple(camera_numbers), sources=tuple(sources))


def _camera_spec(mixture: OpenMixture, camera: LoadedCamera) -> BatchSpec:
    """Return the spec of batches of one camera with all frames of their records."""
    fields = [dataset.fields for dataset in mixture.datasets]
    # A record has all frames of a pair, or one.
    windows = [
        window if dataset.layout == "pairs" else window.first
        for window, dataset in zip(resolve_windows([None] * len(fields), fields, mixture.names), fields, strict=True)
    ]
    spec = mixture.spec
    # Vectors, texts, dropout and all else that batches have are left out.
    return BatchSpec(
        datasets=spec.datasets,
        splits=spec.splits,
        layouts=spec.layouts,
        record_offsets=spec.record_offsets,
        stored_cameras=spec.stored_cameras,
        cameras=(camera,),
        windows=tuple(windows),
        chooses_frames=True,
        seed=spec.seed,
        action_span=spec.action_span,
        state_span=spec.state_span,
        neighbours=spec.neighbours,
    )
