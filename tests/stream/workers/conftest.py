"""A root of two datasets for the tests of slots."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream.loader.open_mixture import OpenMixture
from tests.stream.index_root import open_data, write_dataset


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("protocol")
    write_dataset(root, "arm", {"train": [[5, 4], [6, 9]]})
    write_dataset(root, "hand", {"train": [[8, 7]]}, action=("displacement",) * 4)
    return root


@pytest.fixture(scope="module")
def data(root: Path) -> OpenMixture:
    return open_data(root, {"arm": 1, "hand": 1})
