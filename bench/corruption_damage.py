"""Ways to damage a region of a file, or a file as a whole."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from bench.corruption_regions import Region

RegionDamage = Callable[[bytes, Region], bytes]
FileDamage = Callable[[Path, Path, Path], object]


def _flipped(content: bytes, region: Region) -> bytes:
    place = (region.start + region.stop) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def _random(content: bytes, region: Region) -> bytes:
    picked = random.Random(region.start).randbytes(region.stop - region.start)
    return content[: region.start] + picked + content[region.stop :]


REGION_DAMAGES: dict[str, RegionDamage] = {
    "one bit flipped": _flipped,
    "zeroed": lambda content, region: (
        content[: region.start] + bytes(region.stop - region.start) + content[region.stop :]
    ),
    "random bytes": _random,
    "cut out": lambda content, region: content[: region.start] + content[region.stop :],
    "doubled": lambda content, region: content[: region.stop] + content[region.start :],
    "truncated there": lambda content, region: content[: (region.start + region.stop) // 2],
}


def _swap(path: Path, other: Path, older: Path) -> None:
    ours, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(ours)


def _same_size(path: Path, other: Path, older: Path) -> None:
    ours, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes((theirs + ours[len(theirs) :])[: len(ours)])


FILE_DAMAGES: dict[str, FileDamage] = {
    "swapped with another shard's": _swap,
    "another shard's, of its size": _same_size,
    "an older conversion's": lambda path, other, older: shutil.copyfile(older, path),
    "empty": lambda path, other, older: path.write_bytes(b""),
    "deleted": lambda path, other, older: path.unlink(),
}
"""Each takes the file, that of another shard, and that of a conversion with other parameters."""


def mend(sound: Path, root: Path, paths: tuple[Path, ...]) -> None:
    """Put files of ``root`` back as they are below ``sound``."""
    for path in paths:
        shutil.copyfile(sound / path.relative_to(root), path)
