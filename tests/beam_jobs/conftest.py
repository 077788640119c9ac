"""A source with all kinds of damage, and its conversion by one process without a runner."""

from __future__ import annotations

import pytest

from convert.errors import EXIT_DAMAGED
from convert.run.command import main
from tests.fixtures.command import tree, write_damaged_dataset
from tests.fixtures.datasets.rlds_dataset import RldsDataset
from tests.fixtures.same_conversion import SHARDS, arguments


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> RldsDataset:
    """Nine shards in two splits, with everything in them that can be wrong with an episode."""
    return write_damaged_dataset(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="session")
def in_memory(dataset: RldsDataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the files that one process writes."""
    output = tmp_path_factory.mktemp("in-memory")
    assert main([*arguments(dataset, output), "--num-workers", "1"]) == EXIT_DAMAGED
    files = tree(output)
    assert {"demo/1.0.0/dataset.json", "demo/1.0.0/quarantine.jsonl"} < set(files)
    assert sum(name.endswith(".arrayrecord") for name in files) == SHARDS
    return files
