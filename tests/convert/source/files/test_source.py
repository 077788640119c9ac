"""The reader that all kinds of files share: every wanted episode comes, whatever the reader of the kind does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.errors import DamagedEpisode
from convert.source.files.plain import PlainEpisode
from convert.source.files.source import FileEpisode, FileKind, FileReader, NumberedEpisode, open_files
from convert.source.protocol import ReadRequest

PICTURES = np.zeros((3, 4, 6, 3), np.uint8)


@dataclass(frozen=True)
class Short(FileKind):
    """Files said to have four episodes, whose reader gives fewer."""

    num_given: int

    @property
    def recipe(self) -> Any:
        """Nothing."""
        return []

    def survey(self, path: Path) -> dict[str, list[FileEpisode]]:
        """Return four episodes."""
        return {"": [FileEpisode(number, 3) for number in range(4)]}

    @contextlib.contextmanager
    def open(self, path: Path) -> Iterator[ShortReader]:
        """Open a file."""
        yield ShortReader(self.num_given)


@dataclass(frozen=True)
class ShortReader(FileReader):
    """The episodes of a file, of which the last are not given."""

    num_given: int

    def episodes(self, numbers: Sequence[int] | None) -> Iterator[NumberedEpisode]:
        """Yield some."""
        for number in numbers or ():
            if number < self.num_given:
                yield number, PlainEpisode({"front": PICTURES}, {})


@pytest.mark.parametrize("files", [1, 2])
def test_an_episode_that_the_reader_does_not_give_is_damaged(files: int, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.bin" for number in range(files)]
    for path in paths:
        path.write_bytes(b"x")
    source = open_files(str(tmp_path), paths, Short(2), dataset_name="short", entry_facts={})
    (shard,) = source.shards("train")
    request = ReadRequest(cameras=tuple(item for item in source.features.values() if item.kind == "image"))
    with shard.open(request, [shard.every]) as reader:
        result = [(name, position, content) for name, position, _, content in reader]
    every = [(path.name, number) for path in paths for number in range(4)]
    assert [(name, position) for name, position, _ in result] == every
    damaged = {
        (name, position): str(content) for name, position, content in result if isinstance(content, DamagedEpisode)
    }
    assert list(damaged) == [(name, number) for name, number in every if number >= 2]
    assert damaged["0.bin", 2] == "0.bin: ends before episode 2"


def test_a_range_of_a_shard_of_several_files_begins_and_ends_within_files(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.bin" for number in range(3)]
    for path in paths:
        path.write_bytes(b"x")
    source = open_files(str(tmp_path), paths, Short(4), dataset_name="short", entry_facts={})
    (shard,) = source.shards("train")
    for spans in ([(3, 6)], [(1, 2), (9, 11)]):
        with shard.open(ReadRequest(cameras=()), spans) as reader:
            result = [(name, position) for name, position, *_ in reader]
        expected = [number for start, stop in spans for number in range(start, stop)]
        assert result == [(f"{number // 4}.bin", number % 4) for number in expected]
