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
from convert.source.files.source import FileEpisode, FileKind, FileReader, FilesShard, NumberedEpisode, open_files
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


def open_shard(folder: Path, num_files: int, *, num_given: int) -> FilesShard:
    paths = [folder / f"{number}.bin" for number in range(num_files)]
    for path in paths:
        path.write_bytes(b"x")
    source = open_files(str(folder), paths, Short(num_given), dataset_name="short", entry_facts={})
    (shard,) = source.shards("train")
    return shard


@pytest.mark.parametrize("files", [1, 2])
def test_an_episode_that_the_reader_does_not_give_is_damaged(files: int, tmp_path: Path) -> None:
    shard = open_shard(tmp_path, files, num_given=2)
    with shard.open(ReadRequest(cameras=()), [shard.every]) as reader:
        result = {(name, position): content for name, position, _, content in reader}
    assert list(result) == [(f"{file}.bin", number) for file in range(files) for number in range(4)]
    for (name, number), content in result.items():
        assert isinstance(content, DamagedEpisode) == (number >= 2)
        assert number < 2 or str(content) == f"{name}: ends before episode 2"


def test_a_range_of_a_shard_of_several_files_begins_and_ends_within_files(tmp_path: Path) -> None:
    shard = open_shard(tmp_path, 3, num_given=4)
    for spans in ([(3, 6)], [(1, 2), (9, 11)]):
        with shard.open(ReadRequest(cameras=()), spans) as reader:
            result = [(name, position) for name, position, *_ in reader]
        expected = [number for start, stop in spans for number in range(start, stop)]
        assert result == [(f"{number // 4}.bin", number % 4) for number in expected]
