"""A small root without labels, made once, and copies of it to change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stream
from stream.format.catalog import Catalog
from stream.format.index import open_index
from tests.stream.index_root import write_dataset

Action = Callable[[Path], Any]
LENGTHS = {"train": [[5, 4], [6]], "val": [[3]]}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    write_dataset(root, "demo", LENGTHS)
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "root"))


def attach(value: float) -> Action:
    """Return what gives two steps a label, ``value`` to episode 0, step 1."""
    table = {"episode": [0, 1], "step": [1, 2], "value": [value, 1.0]}
    return lambda root: stream.add_labels(root, "demo", table, split="train", overwrite=True)


def remove(root: Path) -> None:
    stream.remove_labels(root, "demo", "value")


def value_of(root: Path) -> float | None:
    """Return the label of episode 0, step 1, as a loader would see it."""
    steps = open_index(Catalog(root).open("demo"), "train").steps
    return float(steps.array("value")[1]) if "value" in steps.columns else None
