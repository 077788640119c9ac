"""Commands as users start them, of `bench.session`, and damaged datasets to give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.session import REPOSITORY, TIMEOUT, Command, Result, is_alive, run, start, tree, wait_until
from convert.tfrecord import encode_tfrecord
from tests.rlds_dataset import RldsDataset, demo_episode, demo_features, serialise, write_dataset

__all__ = ["LIGHT", "REPOSITORY", "TIMEOUT", "Command", "Result", "is_alive", "run", "start", "tree", "wait_until"]

LIGHT = "import sys; sys.modules.update(jax=None, orbax=None)"
"""First line of programs that need Grain alone, which otherwise spends three seconds on importing these."""


def flip(path: Path, position: int) -> None:
    """Flip all bits of one byte of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def with_corrupt_frame(record: bytes, number: int) -> bytes:
    """A record whose JPEG of that number (a step, where there is one camera) ends soon after its header."""
    start = -1
    for _ in range(number + 1):
        start = record.index(b"\xff\xd8\xff", start + 1)
    pixels = record.index(b"\xff\xda", start) + 20
    return record[:pixels] + b"\xff\xd9" + record[pixels + 2 :]


def write_damaged_dataset(root: Path) -> RldsDataset:
    """Nine shards in two splits with all that can be wrong with episodes: short, empty, malformed, unreadable ones,
    a corrupt frame, a truncated file, and one that goes on after its declared records."""

    def shards(count: int, seed: int) -> list[list[Any]]:
        lengths = (6, 2, 0, 9)
        return [[demo_episode(n, seed=seed + 4 * i + j) for j, n in enumerate(lengths)] for i in range(count)]

    splits = {"train": shards(6, 0), "val": shards(3, 100)}
    splits["train"][1][3] = with_corrupt_frame(serialise(demo_features(), demo_episode(9, seed=50)), 4)
    splits["val"][0][1] = b"not an example"
    dataset = write_dataset(root, splits=splits)
    flip(dataset.shard("train", 2, count=6), 300)
    truncated = dataset.shard("train", 4, count=6)
    truncated.write_bytes(truncated.read_bytes()[:-50])
    with dataset.shard("val", 2, count=3).open("ab") as file:
        file.write(encode_tfrecord(serialise(demo_features(), demo_episode(3, seed=60))))
    return dataset
