"""Episodes of LeRobot datasets as the tests of this folder read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from convert.errors import DamagedEpisode
from convert.source.episode import Episode
from convert.source.lerobot.dataset import LeRobotSource
from convert.source.lerobot.dataset import find as find_source
from convert.source.protocol import ReadRequest, Span


def find(folder: Path) -> LeRobotSource:
    return find_source(str(folder), [], {})


def read_episodes(
    source: LeRobotSource, *, pictures: bool = True, spans: Sequence[Sequence[Span]] = ()
) -> Iterator[tuple[int, Episode | DamagedEpisode]]:
    """Yield all episodes, or those of ``spans``, by number; the frames of one can be read until the next is taken."""
    cameras = tuple(feature for feature in source.features.values() if feature.kind == "image")
    features = tuple(feature for feature in source.features.values() if feature.kind != "image" and feature.size)
    request = ReadRequest(cameras=cameras if pictures else (), features=features)
    for number, shard in enumerate(source.shards("train")):
        with shard.open(request, spans[number] if spans else [shard.every]) as reader:
            for _, position, _, content in reader:
                yield position, content
