"""The source datasets that `bench.convert` converts: real TFDS directories, made once for each run of the benchmark.

One camera, an action and a state of seven values, an instruction. Shards are equally large and each worker gets
several. The pictures move and look natural, so that they are as large as real ones; a pool of distinct frames is
repeated until there are enough.
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


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of source. pairs: how many by default, so that a conversion takes about 20 s on two cores."""

    name: str
    encoding: Literal["png", "jpeg"]
    height: int
    width: int
    transcoded: bool
    pairs: int

    @property
    def dataset(self) -> str:
        """The name of the dataset that is made of it."""
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
class Shape:
    """How much there is of a source: shards, episodes in each, steps of each episode."""

    shards: int
    episodes_per_shard: int
    steps: int

    @property
    def episodes(self) -> int:
        """Episodes in all."""
        return self.shards * self.episodes_per_shard

    @property
    def pairs(self) -> int:
        """Pairs that a conversion gives."""
        return self.episodes * len(first_steps(self.steps, OFFSET))

    @property
    def frames(self) -> int:
        """Frames that a conversion has to look at; see ``used_steps``."""
        return self.episodes * len(used_steps(self.steps))


@dataclass(frozen=True, kw_only=True)
class BenchSource:
    """A source that was made. root: what ``--source`` is given; config: the YAML file for ``--config``."""

    case: Case
    shape: Shape
    root: Path
    config: Path
    files: tuple[Path, ...]

    @property
    def bytes(self) -> int:
        """Size of the record files."""
        return sum(file.stat().st_size for file in self.files)


def shape_of_pairs(pairs: int, *, steps: int, num_workers: int) -> Shape:
    """Return the smallest shape with equally large shards that gives at least ``pairs`` pairs.

    >>> shape_of_pairs(3_520, steps=60, num_workers=2)
    Shape(shards=8, episodes_per_shard=8, steps=60)
    """
    return shape_of_episodes(math.ceil(pairs / len(first_steps(steps, OFFSET))), steps=steps, num_workers=num_workers)


def shape_of_episodes(episodes: int, *, steps: int, num_workers: int) -> Shape:
    """Return a shape with at least ``episodes`` episodes and up to four shards a worker.

    >>> shape_of_episodes(5, steps=8, num_workers=2)
    Shape(shards=4, episodes_per_shard=2, steps=8)
    """
    shards = num_workers * min(SHARDS_PER_WORKER, max(1, episodes // num_workers))
    return Shape(shards=shards, episodes_per_shard=math.ceil(episodes / shards), steps=steps)


def used_steps(steps: int) -> list[int]:
    """Return the steps of an episode whose frame is in a pair.

    >>> used_steps(8)
    [0, 1, 2, 5, 6, 7]
    """
    return sorted({start + offset for start in first_steps(steps, OFFSET) for offset in (0, OFFSET)})


def make_source(case: Case, shape: Shape, *, root: Path, num_workers: int) -> BenchSource:
    """Write ``root/<dataset>/<version>`` and ``root/<dataset>.yaml``; drawing takes ``num_workers`` processes."""
    import tensorflow_datasets as tfds

    folder = root / case.dataset / VERSION
    folder.mkdir(parents=True)
    distinct = min(shape.episodes, max(1, _DISTINCT_FRAMES // shape.steps))
    # Fork copies the locks of whatever threads the caller has; spawn does not.
    with ProcessPoolExecutor(num_workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        draw = partial(draw_episode, case=case, steps=shape.steps)
        records = [_encode_episode(number, frames) for number, frames in enumerate(pool.map(draw, range(distinct)))]
    files = []
    for shard in range(shape.shards):
        path = folder / f"{case.dataset}-train.tfrecord-{shard:05d}-of-{shape.shards:05d}"
        with path.open("wb") as file:
            for episode in range(shape.episodes_per_shard):
                file.write(records[(shard * shape.episodes_per_shard + episode) % distinct])
        files.append(path)
    split = tfds.core.SplitInfo(
        name="train",
        shard_lengths=[shape.episodes_per_shard] * shape.shards,
        num_bytes=sum(path.stat().st_size for path in files),
        filename_template=tfds.core.ShardedFileTemplate(
            data_dir=folder, dataset_name=case.dataset, split="train", filetype_suffix="tfrecord"
        ),
    )
    tfds.folder_dataset.write_metadata(
        data_dir=folder, features=_features(case), split_infos=[split], version=VERSION, check_data=False
    )
    config = root / f"{case.dataset}.yaml"
    config.write_text(yaml.safe_dump({"datasets": {case.dataset: _entry(case)}}, sort_keys=False))
    return BenchSource(case=case, shape=shape, root=root, config=config, files=tuple(files))


def draw_episode(number: int, *, case: Case, steps: int) -> list[bytes]:
    """Draw one episode and encode its frames as the case wants them."""
    cv2.setNumThreads(1)
    cv2.ipp.setUseIPP(False)
    scene = Scene(np.random.default_rng([2, number]))
    frames = (scene.colour(step, _CAMERA, height=case.height, width=case.width) for step in range(steps))
    if case.encoding == "jpeg":
        return [simplejpeg.encode_jpeg(frame, quality=95, colorsubsampling="420") for frame in frames]
    # One filter and short matches decode quicker than most real files, so that the converter's own share is not hidden.
    options = [
        cv2.IMWRITE_PNG_COMPRESSION,
        1,
        cv2.IMWRITE_PNG_FILTER,
        cv2.IMWRITE_PNG_FILTER_SUB,
        cv2.IMWRITE_PNG_STRATEGY,
        cv2.IMWRITE_PNG_STRATEGY_RLE,
    ]
    return [cv2.imencode(".png", cv2.cvtColor(frame, cv2.COLOR_RGB2BGR), options)[1].tobytes() for frame in frames]


def read_episodes(files: Sequence[Path], case: Case) -> list[list[bytes]]:
    """Return the encoded frames of all episodes of ``files``; equal frames are one object, to take little memory."""
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
    flags = np.zeros((2, steps), np.bool_)
    flags[0, 0] = flags[1, -1] = True
    columns = {
        f"steps/{_CAMERA}": SampleColumn(values=frames),
        "steps/observation/state": SampleColumn(values=rng.normal(size=(steps, _DIMS)).astype(np.float32)),
        "steps/action": SampleColumn(values=rng.normal(size=(steps, _DIMS)).astype(np.float32)),
        "steps/language_instruction": SampleColumn(values=[_INSTRUCTION.encode()] * steps),
        "steps/is_first": SampleColumn(values=flags[0]),
        "steps/is_last": SampleColumn(values=flags[1]),
    }
    return encode_tfrecord(encode_example(columns))


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
    """The dataset as a user would describe it in a YAML file."""
    return {
        "tfds_name": case.dataset,
        "version": VERSION,
        "description": f"Generated {case.height}x{case.width} {case.encoding.upper()} frames.",
        "cameras": {
            "image": {
                "path": _CAMERA,
                "role": "primary",
                "storage": case.encoding,
                "shape": [case.height, case.width, 3],
            }
        },
        "instruction": {"path": "language_instruction"},
        "action": [{"path": "action", "dims": _DIMS, "quantity": "other", "mode": "delta"}],
        "state": [{"path": "observation/state", "dims": _DIMS, "quantity": "other", "mode": "absolute"}],
        "offset": OFFSET,
    }
