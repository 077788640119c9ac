"""The start of every command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pairstream.__main__ import COMMANDS

_INTERRUPTED = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, *others):
        if name == "numpy":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.parametrize("command", [*(f"pairstream {name}" for name in COMMANDS), "convert.run", "convert.registry"])
def test_ctrl_c_while_a_command_is_imported_is_one_line(tmp_path: Path, command: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(_INTERRUPTED)
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    arguments, variables = [sys.executable, "-m", *command.split(), "--help"], {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(arguments, capture_output=True, text=True, env=variables)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
