"""The command in its own process, as a user starts it."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.fixtures.command import REPOSITORY

PATIENCE_S = 120
"""Seconds after which a page or the end of the command counts as hanging, on a busy machine too."""


@dataclass(frozen=True)
class Site:
    """A running ``pairstream browse``: its process, first address ending with ``/``, and file of marks."""

    process: subprocess.Popen[str]
    address: str
    marks: Path


def start_site(root: Path, marks: Path, *, change: str = "") -> Site:
    """Start the command on a free port, and wait until its pages can be asked for.

    ``change`` is Python that the process runs first, to make a part of it slow.
    """
    program = ["-c", f"{change}\nfrom pairstream.__main__ import main\nmain()"] if change else ["-m", "pairstream"]
    command = [sys.executable, *program, "browse", str(root), "--port", "0", "--no-open"]
    process = subprocess.Popen(
        [*command, "--marks", str(marks)], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate()[1])
    return Site(process, line.partition(" is at ")[2].split(" ")[0], marks)


def end_site(site: Site, *, sent: int = signal.SIGINT) -> None:
    """End the command as Ctrl-C does; it says nothing."""
    site.process.send_signal(sent)
    try:
        out, err = site.process.communicate(timeout=PATIENCE_S)
    finally:
        site.process.kill()
    assert (site.process.returncode, out, err) == (0, "", "")
