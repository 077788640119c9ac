"""Virtual environments of the peers, one each, so that their requirements cannot collide."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.peers.list import Peer

_MARK = "installed"


class InstallFailed(RuntimeError):
    """A peer that pip did not install; the message quotes pip."""


def install(peer: Peer, venvs: Path, say: Callable[[str], None]) -> None:
    """Make the environment of a peer, unless it exists with the same requirements.

    Raises:
        InstallFailed: Making the environment or pip failed; the environment is removed.
    """
    folder = venvs / peer.name
    wanted = "".join(path.read_text() for path, _ in peer.requirements())
    mark = folder / _MARK
    if mark.is_file() and mark.read_text() == wanted:
        say(f"{peer.name}: is installed in {folder}")
        return
    say(f"{peer.name}: installing into {folder}")
    try:
        _run([sys.executable, "-m", "venv", "--clear", str(folder)], peer)
        for path, depends in peer.requirements():
            pip = [str(peer.python(venvs)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run([*pip, *([] if depends else ["--no-deps"]), "-r", str(path)], peer)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    mark.write_text(wanted)


def _run(command: list[str], peer: Peer) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        said = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        reason = next((line for line in said if line.startswith("ERROR")), said[-1] if said else "no output")
        raise InstallFailed(f"{peer.name}: {' '.join(reason.split())}")
