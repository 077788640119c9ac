"""The peers of `peers.yaml`, and their virtual environments, one each, so that their requirements cannot collide."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.measure.child import BenchFailed

VENVS = "build/peers"
_FOLDER = Path(__file__).resolve().parent
_MARK = "installed"


class InstallFailed(BenchFailed):
    """A peer that pip did not install; the message quotes pip."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A loader that is compared.

    Attributes:
        name: Name of the peer.
        adapter: Module and class that serve its requests (`bench.peers.protocol`).
        what: Classes that it uses.
        resume: ``yes``, ``no`` or ``partly``, from its documentation.
        replay: ``yes``, ``no`` or ``partly``, from its documentation.
        source: Documentation of both.
        own: Whether it runs in this repository's environment.
        copies: Whether it makes a copy of the pairs.
        variants: Variants, each a point.
        note: Remark for readers of the table.
    """

    name: str
    adapter: str
    what: str
    resume: str = "-"
    replay: str = "-"
    source: str = ""
    own: bool = False
    copies: bool = True
    variants: tuple[str, ...] = ("",)
    note: str = ""

    @property
    def module(self) -> str:
        """Return the module of its adapter."""
        return self.adapter.partition(":")[0]

    def requirements(self) -> list[tuple[Path, bool]]:
        """Return the files for pip to install, and whether to install dependencies too."""
        files = {_FOLDER / "requirements" / f"{self.name}{end}": depends for end, depends in _ENDS.items()}
        return [(path, depends) for path, depends in files.items() if path.is_file()]

    def python(self, venvs: Path) -> Path:
        """Return the path of the interpreter of its environment, which may not exist."""
        return venvs / self.name / "bin" / "python"

    def install(self, venvs: Path) -> None:
        """Make the environment, unless it exists with the same requirements.

        Raises:
            InstallFailed: Making the environment or pip failed; the environment is removed.
        """
        folder = venvs / self.name
        wanted = "".join(path.read_text() for path, _ in self.requirements())
        mark = folder / _MARK
        if mark.is_file() and mark.read_text() == wanted:
            print(f"{self.name}: is installed in {folder}", flush=True)
            return
        print(f"{self.name}: installing into {folder}", flush=True)
        try:
            self._run([sys.executable, "-m", "venv", "--clear", str(folder)])
            for path, depends in self.requirements():
                pip = [str(self.python(venvs)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
                self._run([*pip, *([] if depends else ["--no-deps"]), "-r", str(path)])
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        mark.write_text(wanted)

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            said = [line.strip() for line in done.stdout.splitlines() if line.strip()]
            reason = next((line for line in said if line.startswith("ERROR")), said[-1] if said else "no output")
            raise InstallFailed(f"{self.name}: {' '.join(reason.split())}")


_ENDS = {".txt": True, ".nodeps.txt": False}
"""Files with requirements, and whether their dependencies are installed too."""

PEERS: dict[str, Peer] = {
    name: Peer(name=name, **{**about, "variants": tuple(about.get("variants", ("",)))})
    for name, about in yaml.safe_load((_FOLDER / "peers.yaml").read_text()).items()
}
"""By name."""
