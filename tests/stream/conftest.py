"""Converted datasets to load from, in both layouts, made once for all processes of a test run."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.command import run
from tests.fixtures.datasets.oxe29_sample import NAMES, SELECTED
from tests.fixtures.shared_folder import run_folder, shared_folder


def _make(folder: Path) -> None:
    """All 29 datasets, of 4 training episodes in 2 shards each, at 64x64."""
    longer = [name for name in NAMES if SELECTED[name].offset == 10]
    for steps, names in (("10", [name for name in NAMES if name not in longer]), ("14", longer)):
        options = ("--datasets", ",".join(names), "--output", str(folder / "source"))
        _command("pairstream", "sample", *options, "--episodes", "4", "--steps", steps, "--jobs", "2")
    chosen = ("--datasets", "oxe29", "--source", str(folder / "source"), "--output", str(folder / "oxe"))
    _command("convert.run", *chosen, "--image-size", "64", "--num-workers", "2")


def _make_frames(folder: Path, source: Path) -> None:
    """Every frame of every camera of the same datasets, once."""
    chosen = ("--datasets", "oxe29", "--source", str(source), "--output", str(folder / "frames"), "--num-workers", "2")
    _command("convert.run", *chosen, "--layout", "frames", "--cameras", "all", "--image-size", "64")


def _command(module: str, *arguments: str) -> None:
    done = run(*arguments, module=module)
    assert done.code == 0, f"{module} {arguments}: {done.err}"


@pytest.fixture(scope="session")
def oxe_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a converted root with the 29 datasets of oxe29; not to be written to.

    PAIRSTREAM_TEST_OXE names one that is there already, to save its making while tests are written.
    """
    if ready := os.environ.get("PAIRSTREAM_TEST_OXE"):
        yield Path(ready)
        return
    with shared_folder(run_folder(tmp_path_factory) / "stream-oxe", _make) as folder:
        yield folder / "oxe"


@pytest.fixture(scope="session")
def frames_root(oxe_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the datasets of ``oxe_root`` in the layout ``frames``, all cameras; not to be written to.

    PAIRSTREAM_TEST_FRAMES names one that is there already.
    """
    if ready := os.environ.get("PAIRSTREAM_TEST_FRAMES"):
        yield Path(ready)
        return
    make = functools.partial(_make_frames, source=oxe_root.parent / "source")
    with shared_folder(run_folder(tmp_path_factory) / "stream-frames", make) as folder:
        yield folder / "frames"
