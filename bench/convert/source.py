"""Source datasets that `bench.convert` converts: real TFDS directories, made once for each run of the benchmark.

One camera, an action and a state of seven values, an instruction. All shards have the same size, and each worker gets
several. The pictures move and are as large as real ones; a pool of distinct frames is repeated as often as needed.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
import simplejpeg
import yaml

from convert.sample.record import SampleColumn, encode_example
from convert.sample.scene import Scene
from convert.sample.writer import write_metadata
from convert.shard.pairs import first_steps
from convert.source.rlds import EpisodeParser
from convert.source.source import find_source
from convert.source.tfrecord import TFRecordFile, encode_tfrecord

VERSION = "1.0.0"
OFFSET = 5
SHARDS_PER_WORKER = 4
_CAMERA = "observation/image"
_DISTINCT_FRAMES = 480
_DIMS = 7
_INSTRUCTION = "put the red block next to the star"
_PNG_OPTIONS = [cv2.IMWRITE_PNG_COMPRESSION, 1, cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_SUB]
_PNG_OPTIONS += [cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE]
"""One filter and short matches decode faster than most real files, so that the converter's own share shows."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of source; ``pairs`` is the default count, which takes about 20 s on two cores."""

    name: str
    encoding: Literal["png", "jpeg"]
    height: int
    width: int
    transcoded: bool
    pairs: int

    @property
    def dataset(self) -> str:
        """Return the name of its dataset."""
        return f"bench_{self.name}"


CASES = {
    case.name: case
    for case in (
        Case(name="png", encoding="png", height=480, width=640, transcoded=True, pairs=3_520),
        Case(name="jpeg", encoding="jpeg", height=480, width=640, transcoded=True, pairs=7_040),
        Case(name="passthrough", encoding="jpeg", height=256, width=256, transcoded=False, pairs=52_800),
    )
}


@dataclass(frozen=True, kw_only=True)
class BenchSource:
    """A source on disk; ``root`` is for ``--source``, ``config`` is the YAML file for ``--config``."""

    case: Case
    episodes: int
    steps: int
    root: Path
    config: Path
    files: tuple[Path, ...]

    @property
    def shards(self) -> int:
        """Return the number of shards."""
        return len(self.files)

    @property
    def pairs(self) -> int:
        """Return the pairs of its conversion."""
        return self.episodes * len(first_steps(self.steps, OFFSET))

    @property
    def frames(self) -> int:
        """Return the frames that its conversion decodes; see ``used_steps``."""
        return self.episodes * len(used_steps(self.steps))

    @property
    def bytes(self) -> int:
        """Return the size of the record files."""
        return sum(file.stat().st_size for file in self.files)


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
    folder = root / case.dataset / VERSION
    folder.mkdir(parents=True)
    distinct = min(shards * per_shard, max(1, _DISTINCT_FRAMES // steps))
    # Fork copies locks held by the caller's threads; spawn does not.
    with ProcessPoolExecutor(num_workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        draw = partial(draw_episode, case=case, steps=steps)
        records = [_encode_episode(number, frames) for number, frames in enumerate(pool.map(draw, range(distinct)))]
    files = []
    for shard in range(shards):
        files.append(folder / f"{case.dataset}-train.tfrecord-{shard:05d}-of-{shards:05d}")
        numbers = range(shard * per_shard, (shard + 1) * per_shard)
        files[-1].write_bytes(b"".join(records[number % distinct] for number in numbers))
    config = root / f"{case.dataset}.yaml"
    config.write_text(yaml.safe_dump({"datasets": {case.dataset: _entry(case)}}, sort_keys=False))
    source = BenchSource(
        case=case, episodes=shards * per_shard, steps=steps, root=root, config=config, files=tuple(files)
    )
    splits = {"train": ([per_shard] * shards, source.bytes)}
    write_metadata(folder, name=case.dataset, version=VERSION, features=_features(case), splits=splits)
    return source


def draw_episode(number: int, *, case: Case, steps: int) -> list[bytes]:
    """Draw one episode and encode its frames as in the case."""
    cv2.setNumThreads(1)
    cv2.ipp.setUseIPP(False)
    scene = Scene(np.random.default_rng([2, number]))
    frames = (scene.colour(step, _CAMERA, height=case.height, width=case.width) for step in range(steps))
    if case.encoding == "jpeg":
        return [simplejpeg.encode_jpeg(frame, quality=95, colorsubsampling="420") for frame in frames]
    pictures = (cv2.cvtColor(frame, cv2.COLOR_RGB2BGR) for frame in frames)
    return [cv2.imencode(".png", picture, _PNG_OPTIONS)[1].tobytes() for picture in pictures]


def read_episodes(files: Sequence[Path], case: Case) -> list[list[bytes]]:
    """Return the encoded frames of all episodes of ``files``; equal frames are one object, to save memory."""
    source = find_source([str(files[0].parents[2])], case.dataset, VERSION)
    parser = EpisodeParser(source.features[f"steps/{_CAMERA}"], ())
    known: dict[bytes, bytes] = {}
    episodes = []
    for path in files:
        with path.open("rb") as file:
            for record in TFRecordFile(file, name=path.name, size=path.stat().st_size):
                if not isinstance(record, bytes):
                    raise record
                frames = [frame for frame in parser.parse(record).frames if isinstance(frame, bytes)]
                episodes.append([known.setdefault(frame, frame) for frame in frames])
    return episodes


def _encode_episode(number: int, frames: Sequence[bytes]) -> bytes:
    rng = np.random.default_rng([3, number])
    steps = len(frames)
    columns = {
        _CAMERA: frames,
        "observation/state": rng.normal(size=(steps, _DIMS)).astype(np.float32),
        "action": rng.normal(size=(steps, _DIMS)).astype(np.float32),
        "language_instruction": [_INSTRUCTION.encode()] * steps,
        "is_first": np.arange(steps) == 0,
        "is_last": np.arange(steps) == steps - 1,
    }
    return encode_tfrecord(encode_example({f"steps/{name}": SampleColumn(values=v) for name, v in columns.items()}))


def _features(case: Case) -> object:
    import tensorflow_datasets as tfds

    vector = tfds.features.Tensor(shape=(_DIMS,), dtype=np.float32)
    image = tfds.features.Image(shape=(case.height, case.width, 3), encoding_format=case.encoding)
    step = {
        "observation": {"image": image, "state": vector},
        "action": vector,
        "language_instruction": tfds.features.Text(),
        "is_first": tfds.features.Scalar(np.bool_),
        "is_last": tfds.features.Scalar(np.bool_),
    }
    return tfds.features.FeaturesDict({"steps": tfds.features.Dataset(step)})


def _entry(case: Case) -> dict[str, object]:
    """Return the dataset's entry as a user writes it in a YAML file."""
    shape = [case.height, case.width, 3]
    return {
        "tfds_name": case.dataset,
        "version": VERSION,
        "description": f"Generated {case.height}x{case.width} {case.encoding.upper()} frames.",
        "cameras": {"image": {"path": _CAMERA, "role": "primary", "storage": case.encoding, "shape": shape}},
        "instruction": {"path": "language_instruction"},
        "action": [{"path": "action", "dims": _DIMS, "quantity": "other", "kind": "displacement"}],
        "state": [{"path": "observation/state", "dims": _DIMS, "quantity": "other", "kind": "absolute"}],
        "offset": OFFSET,
    }
