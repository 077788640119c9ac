"""A small dataset to convert with the command in this process; a module that wants it imports its fixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

from convert.run import main
from tests.command import Result
from tests.rlds_dataset import RldsDataset, demo_episode, write_dataset

SHARDS = 5
PAIRS = 7


class Convert(Protocol):
    """Runs the command in this process, by default of ``dataset`` into ``output``."""

    def __call__(self, *more: str, output: Path = ..., dataset: RldsDataset = ...) -> Result: ...


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    """Five shards in two splits, each with an episode of nine steps, which gives seven pairs."""
    episodes = [[demo_episode(9, seed=i)] for i in range(SHARDS)]
    return write_dataset(tmp_path_factory.mktemp("source"), splits={"train": episodes[:3], "val": episodes[3:]})


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def folder(output: Path) -> Path:
    return output / "demo" / "1.0.0"


@pytest.fixture
def convert(dataset: RldsDataset, output: Path, capsys: pytest.CaptureFixture[str]) -> Convert:
    def command(*more: str, output: Path = output, dataset: RldsDataset = dataset) -> Result:
        common = ["--datasets", "demo", "--source", str(dataset.root), "--output", str(output), "--num-workers", "1"]
        code = main([*common, "--config", str(dataset.registry()), "--image-size", "native", *more])
        return Result(code, *capsys.readouterr())

    return command
