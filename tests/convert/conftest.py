"""A conversion to look into and copies of it to damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from convert.errors import EXIT_DAMAGED
from convert.registry.registry import load_registry
from convert.run.command import main as convert
from convert.sample.command import make_sample
from convert.source.rlds.record_files import TFRecordFile, encode_tfrecord
from tests.fixtures.datasets.sampled import sample
from tests.fixtures.faults.conversion_damage import DATASET

__all__ = ["sample"]


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output root with two datasets, made of a source with short episodes, a corrupt frame and an unreadable one."""
    root = tmp_path_factory.mktemp("verify")
    registry = load_registry()
    make_sample(root / "source", [registry.dataset("rt1")], episodes=2, steps=7, shards=1, jobs=1)
    make_sample(root / "source", [registry.dataset(DATASET)], episodes=8, steps=14, vary_steps=True, jobs=1)
    folder = root / "source" / DATASET / "1.0.0"
    corrupt_a_frame(folder / f"{DATASET}-train.tfrecord-00001-of-00002")
    with (folder / f"{DATASET}-val.tfrecord-00000-of-00002").open("r+b") as file:
        file.seek(100)
        file.write(b"damaged")
    arguments = ["--source", str(root / "source"), "--output", str(root / "out"), "--image-size", "64"]
    code = convert(
        ["--datasets", f"{DATASET},rt1", *arguments, "--offset", "3", "--frames", "all", "--num-workers", "1"]
    )
    assert code == EXIT_DAMAGED
    return root / "out"


def corrupt_a_frame(path: Path) -> None:
    """End one JPEG of the primary camera early, in an episode that is long enough for pairs."""
    with path.open("rb") as file:
        records = list(TFRecordFile(file, name=path.name, size=path.stat().st_size))
    complete_bytes = [bytearray(record) for record in records if isinstance(record, bytes)]
    longest = max(complete_bytes, key=len)
    first = longest.index(b"\xff\xd8\xff", longest.index(b"steps/observation/image_0"))
    second = longest.index(b"\xff\xd8\xff", first + 3)
    middle = (first + second) // 2
    longest[middle : middle + 2] = b"\xff\xd9"
    path.write_bytes(b"".join(encode_tfrecord(bytes(record)) for record in complete_bytes))


@pytest.fixture
def root(converted: Path, tmp_path: Path) -> Path:
    """A copy of the conversion to damage."""
    return Path(shutil.copytree(converted, tmp_path / "out"))


@pytest.fixture
def folder(root: Path) -> Path:
    return root / DATASET / "1.0.0"
