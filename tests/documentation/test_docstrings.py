"""Examples in docstrings, in one process: importing all modules in each process of pytest-xdist takes half a minute."""

from __future__ import annotations

import subprocess
import sys

from tests.fixtures.command import REPOSITORY

PACKAGES = ("beam_jobs", "bench", "convert", "pairstream", "stream")


def test_examples_in_docstrings_hold() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-modules", *PACKAGES]
    tested = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout[-5000:] + tested.stderr[-2000:]
    assert " passed" in tested.stdout
