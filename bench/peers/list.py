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


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A loader that is compared; `peers.yaml` describes the fields."""

    name: str
    adapter: str
    what: str
    resume: str = "-"
    replay: str = "-"
    source: str = ""
    own: bool = False
    environment: str = ""
    interpreter: str = ""
    copies: bool = True
    exact: bool = True
    note: str = ""

    @property
    def module(self) -> str:
        """Return the module of its adapter."""
        return f"bench.peers.loaders.{self.adapter.partition(':')[0]}"

    @property
    def requirements(self) -> Path:
        """Return the file for pip to install."""
        return _FOLDER / "requirements" / f"{self.environment or self.name}.txt"

    @property
    def versions(self) -> str:
        """Return the packages of its environment with their versions, "" for those of this repository."""
        lines = [] if self.own else self.requirements.read_text().splitlines()
        return ", ".join(line.replace("==", " ") for line in lines if not line.startswith("#"))

    def python(self, venvs: Path) -> Path:
        """Return the path of the interpreter of its environment, which may not exist."""
        return venvs / (self.environment or self.name) / "bin" / "python"

    def install(self, venvs: Path) -> None:
        """Make the environment, unless it exists with the same requirements."""
        folder, requirements = self.python(venvs).parent.parent, self.requirements.read_text()
        mark = folder / _MARK
        if mark.is_file() and mark.read_text() == requirements:
            print(f"{self.name}: is installed in {folder}", flush=True)
            return
        print(f"{self.name}: installing into {folder}", flush=True)
        try:
            self._run([self.interpreter or sys.executable, "-m", "venv", "--clear", str(folder)])
            pip = [str(self.python(venvs)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            self._run([*pip, "-r", str(self.requirements)])
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        mark.write_text(requirements)

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            said = [line.strip() for line in done.stdout.splitlines() if line.strip()]
            reason = next((line for line in said if line.startswith("ERROR")), said[-1] if said else "no output")
            raise BenchFailed(f"{self.name}: {' '.join(reason.split())}")


STUDIES: dict[str, dict[str, Peer]] = {
    study: {name: Peer(name=name, **fields) for name, fields in peers.items()}
    for study, peers in yaml.safe_load((_FOLDER / "peers.yaml").read_text()).items()
}
"""Peers of each study, by name."""
PEERS = STUDIES["windows"] | STUDIES["pairs"]
"""Peers of these studies, which have environments."""
