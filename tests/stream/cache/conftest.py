"""A small converted root, and stores and web servers that have it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from convert.plan import ConvertConfig
from convert.shard.images import FramePolicy
from stream.storage.object_reads import object_reads
from tests.fixtures.datasets.rlds_dataset import convert_dataset, demo_episode, write_dataset
from tests.fixtures.object_stores import Store, object_store, upload_tree
from tests.fixtures.servers.clock import Clock

SHARDS = 6


@pytest.fixture(scope="session")
def small_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a root of one dataset: six shards of train and one of val, two episodes each, and the list of it."""
    folder = tmp_path_factory.mktemp("small")
    shards = [
        [demo_episode(steps, seed=2 * shard + steps, size=(96, 128)) for steps in (12, 9)]
        for shard in range(SHARDS + 1)
    ]
    dataset = write_dataset(folder / "source", splits={"train": shards[:SHARDS], "val": shards[SHARDS:]})
    convert_dataset(dataset.conversion(folder / "oxe", ConvertConfig(policy=FramePolicy(size=None))))
    listed = {"datasets": [{"dataset": "demo", "version": "1.0.0"}]}
    (folder / "oxe" / "info.json").write_text(json.dumps(listed))
    return folder / "oxe"


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with object_store("s3", tmp_path_factory.mktemp("s3") / "log") as running:
        yield running


@pytest.fixture(scope="session")
def bucket(s3: Store, small_root: Path) -> str:
    """Return the address of the small root in a bucket that no test changes."""
    url = f"{s3.new_bucket()}/oxe"
    upload_tree(small_root, url)
    return url


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def oxe_like(tmp_path: Path) -> Path:
    """Return a root of a dataset of the same name."""
    dataset = write_dataset(tmp_path / "source", splits={"train": [[demo_episode(8, seed=77, size=(96, 128))]]})
    convert_dataset(dataset.conversion(tmp_path / "other", ConvertConfig(policy=FramePolicy(size=None))))
    return tmp_path / "other"


@pytest.fixture
def clock() -> Clock:
    """The clock of the reads of this process."""
    return Clock(object_reads())
