"""Source datasets that `bench.convert` converts, made once for each run of the benchmark.

All shards have the same size, and each worker gets several. The pictures move and are as large as real ones; a pool of
distinct frames is repeated as often as needed.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import simplejpeg

from bench.synthetic import CAMERA, VERSION, Source, encode_episode, write_source
from convert.sample.scene import Scene
from convert.shard.pairs import first_steps
from convert.source.rlds.dataset import find_dataset
from convert.source.rlds.parser import EpisodeParser
from convert.source.rlds.record_files import TFRecordFile

OFFSET = 5
SHARDS_PER_WORKER = 4
_DISTINCT_FRAMES = 480
_INSTRUCTION = "put the red block next to the star"
_PNG_OPTIONS = [cv2.IMWRITE_PNG_COMPRESSION, 1, cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_SUB]
_PNG_OPTIONS += [cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE]
"""One filter and short matches decode faster than most real files, so that the converter's own share shows."""


@dataclass(frozen=True)
class Case:
    """One kind of source; ``pairs`` is the default count, which takes about 20 s on two cores."""

    name: str
    encoding: str
    height: int
    width: int
    transcoded: bool
    pairs: int

    @property
    def dataset(self) -> str:
        """Return the name of its dataset."""
        return f"bench_{self.name}"


CASES = {
    "png": Case("png", "png", 480, 640, True, pairs=3_520),
    "jpeg": Case("jpeg", "jpeg", 480, 640, True, pairs=7_040),
    "passthrough": Case("passthrough", "jpeg", 256, 256, False, pairs=52_800),
}


@dataclass(frozen=True, kw_only=True)
class BenchSource(Source):
    """A source on disk, with the counts of its conversion; ``frames`` are those of ``used_steps``."""

    case: Case
    episodes: int
    steps: int
    pairs: int
    frames: int
    bytes: int


def choose_size(pairs: int, *, steps: int, num_workers: int) -> tuple[int, int]:
    """Return shards and episodes of each shard that give at least ``pairs`` pairs, up to four shards a worker.

    >>> choose_size(3_520, steps=60, num_workers=2)
    (8, 8)
    """
    episodes = math.ceil(pairs / len(first_steps(steps, OFFSET)))
    shards = num_workers * min(SHARDS_PER_WORKER, max(1, episodes // num_workers))
    return shards, math.ceil(episodes / shards)


def used_steps(steps: int) -> list[int]:
    """Return the steps of an episode whose frame is in a pair.

    >>> used_steps(8)
    [0, 1, 2, 5, 6, 7]
    """
    return sorted({start + offset for start in first_steps(steps, OFFSET) for offset in (0, OFFSET)})


def make_source(case: Case, *, pairs: int, steps: int, root: Path, num_workers: int) -> BenchSource:
    """Write ``root/<dataset>/<version>`` and ``root/<dataset>.yaml``; drawing takes ``num_workers`` processes."""
    shards, per_shard = choose_size(pairs, steps=steps, num_workers=num_workers)
    distinct = min(shards * per_shard, max(1, _DISTINCT_FRAMES // steps))
    # Fork copies locks held by the caller's threads; spawn does not.
    with ProcessPoolExecutor(num_workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        drawn = pool.map(partial(draw_episode, case=case, steps=steps), range(distinct))
        records = [encode_episode(number, frames, instruction=_INSTRUCTION) for number, frames in enumerate(drawn)]
    episodes = [records[number % distinct] for number in range(shards * per_shard)]
    files = [episodes[shard * per_shard : (shard + 1) * per_shard] for shard in range(shards)]
    pictures = {"shape": (case.height, case.width), "encoding": case.encoding}
    source = write_source(root, files, name=case.dataset, offset=OFFSET, **pictures)  # type: ignore[arg-type]
    return BenchSource(
        **vars(source),
        case=case,
        episodes=len(episodes),
        steps=steps,
        pairs=len(episodes) * len(first_steps(steps, OFFSET)),
        frames=len(episodes) * len(used_steps(steps)),
        bytes=sum(map(len, episodes)),
    )


def draw_episode(number: int, *, case: Case, steps: int) -> list[bytes]:
    """Draw one episode and encode its frames as in the case."""
    set_up_opencv()
    scene = Scene(np.random.default_rng([2, number]))
    frames = (scene.colour(step, CAMERA, height=case.height, width=case.width) for step in range(steps))
    if case.encoding == "jpeg":
        return [simplejpeg.encode_jpeg(frame, quality=95, colorsubsampling="420") for frame in frames]
    pictures = (cv2.cvtColor(frame, cv2.COLOR_RGB2BGR) for frame in frames)
    return [cv2.imencode(".png", picture, _PNG_OPTIONS)[1].tobytes() for picture in pictures]


def set_up_opencv() -> None:
    """Set OpenCV as the converter does: one thread a process, and the same pixels on every processor."""
    cv2.setNumThreads(1)
    cv2.ipp.setUseIPP(False)


def read_episodes(files: Sequence[Path], case: Case) -> list[list[bytes]]:
    """Return the encoded frames of all episodes of ``files``; equal frames are one object, to save memory."""
    source = find_dataset([str(files[0].parents[2])], case.dataset, VERSION)
    parser = EpisodeParser([source.features[f"steps/{CAMERA}"]], ())
    distinct: dict[bytes, bytes] = {}
    episodes = []
    for path in files:
        with path.open("rb") as record_file:
            for record in TFRecordFile(record_file, name=path.name, size=path.stat().st_size):
                if not isinstance(record, bytes):
                    raise record
                frames = [frame for frame in parser.parse(record).frames if isinstance(frame, bytes)]
                episodes.append([distinct.setdefault(frame, frame) for frame in frames])
    return episodes
