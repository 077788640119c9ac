"""Ways to damage a region of a file, or a file as a whole."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from bench.corruption.regions import Region

RegionDamage = Callable[[bytes, Region], bytes]
FileDamage = Callable[[Path, Path, Path], object]


def put(path: Path, content: bytes) -> None:
    """Put a file in the place of another, which whoever has it open or mapped keeps: the end of a mapped file that is
    written over in place is a bus error for whoever looks at it."""
    fresh = path.with_name(f".{path.name}.fresh")
    fresh.write_bytes(content)
    fresh.replace(path)


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
    put(path, theirs)
    put(other, ours)


def _same_size(path: Path, other: Path, older: Path) -> None:
    ours, theirs = path.read_bytes(), other.read_bytes()
    put(path, (theirs + ours[len(theirs) :])[: len(ours)])


FILE_DAMAGES: dict[str, FileDamage] = {
    "swapped with another's": _swap,
    "another's, of its size": _same_size,
    "an older conversion's": lambda path, other, older: put(path, older.read_bytes()),
    "empty": lambda path, other, older: put(path, b""),
    "deleted": lambda path, other, older: path.unlink(),
}
"""Each takes the file, that of another shard or split, and that of a conversion with other parameters."""


def mend(sound: Path, root: Path, paths: tuple[Path, ...]) -> None:
    """Put files of ``root`` back as they are below ``sound``."""
    for path in paths:
        put(path, (sound / path.relative_to(root)).read_bytes())
