"""A folder that is expensive to fill, filled once for all processes of a test run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def run_folder(factory: pytest.TempPathFactory) -> Path:
    """The temporary folder that all processes of this test run see."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@contextlib.contextmanager
def shared_folder(folder: Path, fill: Callable[[Path], None]) -> Iterator[Path]:
    """Fill a folder, or wait until another process has; the last process that leaves removes it.

    Args:
        folder: not there yet, or filled by another process that called this.
        fill: called with the empty folder, by the first process that comes.
    """
    done = folder / ".filled"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        folder.with_name(f"{folder.name}.gate").open("w") as gate,
        folder.with_name(f"{folder.name}.users").open("w") as users,
    ):
        fcntl.flock(gate, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            fill(folder)
            done.touch()
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield folder
        finally:
            fcntl.flock(gate, fcntl.LOCK_EX)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
