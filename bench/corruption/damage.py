"""Ways to damage a region of a file, or a complete file."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from bench.corruption.regions import Region


def put(path: Path, content: bytes) -> None:
    """Replace a file; programs that have the old one open or mapped keep it.

    Shortening a mapped file in place would end its readers with a bus error.
    """
    fresh = path.with_name(f".{path.name}.fresh")
    fresh.write_bytes(content)
    fresh.replace(path)


def mend(sound: Path, root: Path, paths: tuple[Path, ...]) -> None:
    """Replace files of ``root`` by those below ``sound``."""
    for path in paths:
        put(path, (sound / path.relative_to(root)).read_bytes())


def _flip(content: bytes, region: Region) -> bytes:
    place = (region.start + region.stop) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def _fill(content: bytes, region: Region, values: bytes) -> bytes:
    return content[: region.start] + values + content[region.stop :]


REGION_DAMAGES: dict[str, Callable[[bytes, Region], bytes]] = {
    "one bit flipped": _flip,
    "zeroed": lambda content, region: _fill(content, region, bytes(region.size)),
    "random bytes": lambda content, region: _fill(content, region, random.Random(region.start).randbytes(region.size)),
    "cut out": lambda content, region: _fill(content, region, b""),
    "doubled": lambda content, region: _fill(content, region, 2 * content[region.start : region.stop]),
    "truncated there": lambda content, region: content[: (region.start + region.stop) // 2],
}


def _swap(path: Path, other: Path, older: Path) -> None:
    ours, theirs = path.read_bytes(), other.read_bytes()
    put(path, theirs)
    put(other, ours)


def _same_size(path: Path, other: Path, older: Path) -> None:
    ours, theirs = path.read_bytes(), other.read_bytes()
    put(path, (theirs + ours[len(theirs) :])[: len(ours)])


FILE_DAMAGES: dict[str, Callable[[Path, Path, Path], object]] = {
    "swapped with another's": _swap,
    "another's, of its size": _same_size,
    "an older conversion's": lambda path, other, older: put(path, older.read_bytes()),
    "empty": lambda path, other, older: put(path, b""),
    "deleted": lambda path, other, older: path.unlink(),
}
"""Each takes the file, the file of another shard or split, and the file of a conversion with other parameters."""
