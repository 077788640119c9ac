"""Facts about a dataset from its manifest alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stream.format.catalog import Dataset
from stream.format.frame import StoredCamera


@dataclass(frozen=True)
class DatasetFacts:
    """Facts about a dataset.

    Attributes:
        name, version, layout: Name, version and layout.
        splits: Count of the episodes of each split.
        first_split: Split to begin with, see ``first_split``.
        episodes, steps, samples: Counts; a sample is a pair, or a step in the layout ``frames``.
        bytes: Size of frames and index.
        rate: Steps a second, or None if no source tells.
        hours: Hours of the steps, or None without a rate.
        robot, licence, description: As the registry has them; empty if it does not say.
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
        manifest, fields = dataset.manifest, dataset.fields
        spec: dict[str, Any] = manifest.spec
        index = sum(table.bytes for split in manifest.splits.values() for table in split.index.values())
        quirks = [spec.get("warning"), *(spec.get("quirks") or ())]
        return cls(
            name=dataset.name,
            version=dataset.version,
            layout=manifest.layout,
            splits={name: split.episodes for name, split in manifest.splits.items()},
            first_split=first_split(dataset),
            episodes=manifest.episodes,
            steps=manifest.steps,
            samples=manifest.records if manifest.layout == "pairs" else manifest.steps,
            bytes=index + sum(int(shards.sizes.sum()) for shards in dataset.shards.values()),
            rate=fields.control_frequency,
            hours=manifest.steps / fields.control_frequency / 3600 if fields.control_frequency else None,
            robot=str(spec.get("robot") or ""),
            licence=str(spec.get("license") or ""),
            description=str(spec.get("description") or ""),
            cameras=tuple(camera.name for camera in fields.stored_cameras),
            codec=codec_text(fields.stored_cameras),
            quirks=tuple(str(quirk) for quirk in quirks if quirk),
            left_out={reason: count for reason, count in manifest.left_out.items() if count},
        )

    @property
    def notes(self) -> list[str]:
        """Rate, robot, cameras, codec and licence in words."""
        rate = f"{self.rate:g} Hz" if self.rate else "rate unknown"
        hours = f"{human_hours(self.hours)} h" if self.hours is not None else ""
        cameras = f"cameras {', '.join(self.cameras)}" if self.cameras != ("",) else ""
        licence = f"licence {self.licence.partition(' [')[0]}" if self.licence else ""
        return [each for each in (rate, hours, self.robot, cameras, f"codec {self.codec}", licence) if each]


def first_split(dataset: Dataset) -> str:
    """Return the split to begin with: ``train`` if it has episodes, or else the first that has some."""
    splits = dataset.manifest.splits
    order = sorted(splits, key=lambda name: (not splits[name].episodes, name != "train"))
    return next(iter(order), "")


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
    return ", ".join(f"{name} {codec}" for name, codec in codecs.items())


def human_bytes(count: int) -> str:
    """Return a size in a unit that fits.

    >>> human_bytes(40_000_000_000)
    '40.0 GB'
    """
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def human_hours(hours: float) -> str:
    """Return a count of hours with the digits that tell something.

    >>> human_hours(1234.5), human_hours(0.0123)
    ('1,234.5', '0.012')
    """
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"
