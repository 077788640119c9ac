"""Every region of every file damaged, one at a time: the loader raises, or gives what it gave before."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stream.base.errors import FormatError, StreamError
from stream.format.names import TABLE_KINDS
from stream.frameworks.grain import SampleSource
from stream.loader.comparison import digest
from tests.fixtures.parameters import long_but

NAMES = ("bridge", "kuka")
KINDS = ("arrayrecord", *TABLE_KINDS, "dataset.json")
Damage = Callable[[bytes, int, int], bytes]

DAMAGES: dict[str, Damage] = {
    "flipped": lambda data, start, stop: data[:start] + bytes([data[start] ^ 0x40]) + data[start + 1 :],
    "zeroed": lambda data, start, stop: data[:start] + bytes(stop - start) + data[stop:],
    "random": lambda data, start, stop: data[:start] + random.Random(start).randbytes(stop - start) + data[stop:],
    "cut out": lambda data, start, stop: data[:start] + data[stop:],
    "truncated": lambda data, start, stop: data[:start],
    "doubled": lambda data, start, stop: data[:stop] + data[start:],
}


@pytest.fixture(scope="module")
def root(oxe_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of two datasets, to damage and repair."""
    folder = tmp_path_factory.mktemp("corruption")
    for name in NAMES:
        shutil.copytree(oxe_root / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def digests(root: Path) -> list[str]:
    """Return the hashes of the undamaged files."""
    return read_all(root)


def read_all(root: Path) -> list[str]:
    """Return a hash of each sample of ``bridge``; raises the errors of the loader."""
    source = SampleSource(root, "bridge", split="train", columns=["is_first"], action=3)
    return [digest(source[position]) for position in range(len(source))]


def paths(root: Path, kind: str) -> list[Path]:
    """Return the files of a kind of ``bridge``'s training split, in order."""
    (folder,) = (root / "bridge").iterdir()
    patterns = {"dataset.json": "dataset.json", "arrayrecord": "train/*.arrayrecord"}
    return sorted(folder.glob(patterns.get(kind, f"train/{kind}.arrow")))


def places(size: int, count: int) -> Iterator[tuple[int, int]]:
    """Return ranges of a file: its first and last bytes, and some of every region between."""
    length = max(1, min(512, size // count))
    picker = random.Random(size)
    starts = {0, 8, size - 1, size - length, *(size * i // count + picker.randrange(length) for i in range(count))}
    for start in sorted(starts):
        if 0 <= start < size:
            yield start, min(size, start + length)


@pytest.mark.parametrize("damage", long_but(["flipped", "truncated"], DAMAGES))
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_region_is_an_error_or_has_no_effect(root: Path, digests: list[str], kind: str, damage: str) -> None:
    path = paths(root, kind)[0]
    undamaged = path.read_bytes()
    raised = 0
    try:
        for start, stop in places(len(undamaged), 24 if kind == "arrayrecord" else 12):
            damaged = DAMAGES[damage](undamaged, start, stop)
            if damaged == undamaged:
                continue
            path.write_bytes(damaged)
            try:
                assert read_all(root) == digests, f"{path.name}: bytes {start} to {stop} {damage}"
            except StreamError as error:
                raised += 1
                assert path.name.split(".")[0] in str(error) or "dataset.json" in str(error)
    finally:
        path.write_bytes(undamaged)
    assert raised
    assert read_all(root) == digests


@pytest.mark.parametrize("kind", ["arrayrecord", *TABLE_KINDS])
@pytest.mark.parametrize("replacement", ["another dataset's", "of the same size"])
def test_a_file_in_the_place_of_another_is_an_error(root: Path, kind: str, replacement: str) -> None:
    path = paths(root, kind)[0]
    undamaged = path.read_bytes()
    content = next((root / "kuka").rglob(path.name)).read_bytes()
    if replacement == "of the same size":
        content = (content + undamaged[len(content) :])[: len(undamaged)]
    try:
        path.write_bytes(content)
        with pytest.raises((StreamError, FormatError), match=path.name.split(".")[0]):
            read_all(root)
    finally:
        path.write_bytes(undamaged)
