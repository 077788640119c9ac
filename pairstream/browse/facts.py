"""Facts about a dataset from its manifest alone, for the pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pairstream.info.overview import describe, human_duration
from stream.format.catalog import Dataset
from stream.format.frame import StoredCamera

Facts = dict[str, Any]
"""Facts about a dataset, as ``describe_facts`` returns them."""


def describe_facts(dataset: Dataset) -> Facts:
    """Return the facts that ``pairstream info`` prints, ``codec`` of all cameras, and what else the registry says."""
    spec: dict[str, Any] = dataset.manifest.spec
    quirks = [spec.get("warning"), *(spec.get("quirks") or ())]
    return describe(dataset) | {
        "first_split": first_split(dataset),
        "robot": str(spec.get("robot") or ""),
        "license": str(spec.get("license") or ""),
        "description": str(spec.get("description") or ""),
        "codec": codec_text(dataset.fields.stored_cameras),
        "quirks": [str(quirk) for quirk in quirks if quirk],
    }


def notes_of(facts: Facts) -> dict[str, str]:
    """Return rate, length, robot, cameras, codec and licence in words, by name."""
    return {
        "rate": f"{facts['rate']:g} Hz" if facts["rate"] else "unknown",
        "length": human_duration(facts["hours"]) if facts["hours"] is not None else "",
        "robot": facts["robot"],
        "cameras": ", ".join(facts["cameras"]),
        "codec": facts["codec"],
        "licence": facts["license"].partition(" [")[0],
    }


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
