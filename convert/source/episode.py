"""An episode of a source: the columns of its features, and its frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from convert.errors import CorruptFrame, DamagedEpisode
from convert.source.features import Feature
from stream.format.video import ChunkFrame

SourceFrame = bytes | np.ndarray | ChunkFrame
"""An encoded picture, its numbers, or its location in a chunk of video."""
Frames = Iterable[SourceFrame | CorruptFrame]


EPISODE_IDS = "source_file__episode"
"""Form of the ids, a parameter of each conversion: a conversion with ids of another form is not continued."""


def episode_id(source_file: str, position: int) -> str:
    """Return the id of an episode, as TFDS makes it, ``day 1/b.hdf5__2``; no other file and number give the same."""
    return f"{source_file}__{position}"


@dataclass(frozen=True, kw_only=True)
class Column:
    """The values of one feature in one episode.

    Attributes:
        values: All numbers, flat and row-major, in the feature's dtype, or a list of str; None if the episode lacks
            the feature.
        lengths: For each sequence level around the value, outermost first, the count of items of each row.
        rows: Count of steps, or 1 for an episode feature.
        valid: Mask of the rows that have a value, bool [rows]; None if all have, or the episode lacks the feature.
    """

    feature: Feature
    values: np.ndarray | list[str] | None
    lengths: tuple[np.ndarray, ...]
    rows: int
    valid: np.ndarray | None = None


def absent_column(feature: Feature, num_rows: int) -> Column:
    """Return the column of an episode that lacks a feature."""
    lengths = tuple(np.zeros(num_rows if level == 0 else 0, np.int64) for level in range(len(feature.sequences)))
    return Column(feature=feature, values=None, lengths=lengths, rows=num_rows)


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One episode.

    Attributes:
        steps: Columns of step features by name (``Feature.name``).
        episode: Columns of episode features by name.
        cameras: Frames of each requested camera, None or the reason where the episode lacks the camera. There is one
            entry per step, to be read once, in order, and before the next episode. An entry is the bytes as stored, a
            uint8 array [H, W, C], numbers of depth [H, W], a location in a chunk of video, or the reason for no frame.
        extra_frames: A message for each camera that has more frames than steps.
        dropped: A message for each feature that the dataset does not have, so that it is left out.
    """

    num_steps: int
    steps: Mapping[str, Column]
    episode: Mapping[str, Column]
    cameras: Sequence[Frames | DamagedEpisode | None]
    extra_frames: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def frames(self) -> Frames:
        """Frames of the first camera, none where the episode lacks it."""
        first_camera = self.cameras[0]
        return () if first_camera is None or isinstance(first_camera, DamagedEpisode) else first_camera

    def column(self, feature: Feature) -> Column:
        """Return the column of a feature of either level."""
        return (self.steps if feature.level == "step" else self.episode)[feature.name]
