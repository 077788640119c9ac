"""Facts about a dataset from its manifest alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pairstream.info.overview import describe
from stream.format.catalog import Dataset
from stream.format.frame import StoredCamera

_SHARED = ("version", "layout", "splits", "episodes", "steps", "samples", "bytes", "rate", "hours", "left_out")
"""Facts that ``pairstream info`` prints too."""


@dataclass(frozen=True)
class DatasetFacts:
    """Facts about a dataset.

    Attributes:
        name, version, layout: Name, version and layout.
        splits: Count of the episodes of each split.
        first_split: Split to open first, see ``first_split``.
        episodes, steps, samples: Counts; a sample is a pair, or a step in the layout ``frames``.
        bytes: Size of frames and index.
        rate: Steps per second, or None if unknown.
        hours: Hours of the steps, or None without a rate.
        robot, licence, description: As in the registry, or empty.
        cameras: Names of the stored cameras.
        codec: Codec of their frames, by camera where they differ.
        quirks: Sentences about the data.
        left_out: Count of the episodes that the conversion left out, by reason.
    """

    name: str
    version: str
    layout: str
    splits: dict[str, int]
    first_split: str
    episodes: int
    steps: int
    samples: int
    bytes: int
    rate: float | None
    hours: float | None
    robot: str
    licence: str
    description: str
    cameras: tuple[str, ...]
    codec: str
    quirks: tuple[str, ...]
    left_out: dict[str, int]

    @classmethod
    def of(cls, dataset: Dataset) -> DatasetFacts:
        """Return the facts about a dataset."""
        spec: dict[str, Any] = dataset.manifest.spec
        content, cameras = describe(dataset), dataset.fields.stored_cameras
        quirks = [spec.get("warning"), *(spec.get("quirks") or ())]
        return cls(
            name=dataset.name,
            first_split=first_split(dataset),
            robot=str(spec.get("robot") or ""),
            licence=str(spec.get("license") or ""),
            description=str(spec.get("description") or ""),
            cameras=tuple(camera.name for camera in cameras),
            codec=codec_text(cameras),
            quirks=tuple(str(quirk) for quirk in quirks if quirk),
            **{name: content[name] for name in _SHARED},
        )

    @property
    def notes(self) -> list[str]:
        """Rate, robot, cameras, codec and licence in words."""
        rate_text = f"{self.rate:g} Hz" if self.rate else "rate unknown"
        hours_text = f"{human_hours(self.hours)} h" if self.hours is not None else ""
        camera_text = f"cameras {', '.join(self.cameras)}" if self.cameras != ("",) else ""
        licence_text = f"licence {self.licence.partition(' [')[0]}" if self.licence else ""
        return [
            note
            for note in (rate_text, hours_text, self.robot, camera_text, f"codec {self.codec}", licence_text)
            if note
        ]


def first_split(dataset: Dataset) -> str:
    """Return the split to open first: ``train`` if it has episodes, or else the first split with episodes."""
    splits = dataset.manifest.splits
    return min(splits, key=lambda split_name: (not splits[split_name].episodes, split_name != "train"), default="")


def codec_text(cameras: Sequence[StoredCamera]) -> str:
    """Return the codec of cameras in words, by camera where they differ.

    >>> wrist = StoredCamera("wrist", "wrist", ((64, 64),), codec="h264", gop=8)
    >>> codec_text([wrist]), codec_text([StoredCamera("image", "primary", ((64, 64),)), wrist])
    ('h264 (8 frames a chunk)', 'image jpeg, wrist h264 (8 frames a chunk)')
    """
    codecs = {
        camera.name: ("depth" if camera.is_depth else camera.codec)
        + (f" ({camera.gop} frames a chunk)" if camera.gop > 1 else "")
        for camera in cameras
    }
    if len(set(codecs.values())) == 1:
        return next(iter(codecs.values()))
    return ", ".join(f"{camera_name} {codec}" for camera_name, codec in codecs.items())


def human_hours(hours: float) -> str:
    """Return a count of hours with the digits that matter.

    >>> human_hours(1234.5), human_hours(0.0123)
    ('1,234.5', '0.012')
    """
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"
