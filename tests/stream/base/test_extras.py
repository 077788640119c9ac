"""Tests of processes without the library of an extra, or that are interrupted while they import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pairstream.__main__ import COMMANDS

REPOSITORY = Path(__file__).resolve().parents[3]
BLOCK = """
import os, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["MISSING"].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


INTERRUPT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, *others):
        if name == "numpy":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
"""


def python(folder: Path, missing: str, *arguments: str, hook: str = BLOCK) -> tuple[int, str]:
    """Run Python without some modules, and return the exit code and standard error."""
    (folder / "sitecustomize.py").write_text(hook)
    variables = {**os.environ, "PYTHONPATH": f"{folder}:{REPOSITORY}", "MISSING": missing}
    done = subprocess.run([sys.executable, *arguments], env=variables, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_while_a_command_is_imported_is_one_line(tmp_path: Path, name: str) -> None:
    assert python(tmp_path, "", "-m", "pairstream", name, "--help", hook=INTERRUPT) == (130, "interrupted\n")


LIBRARIES = ("apache_beam", "google_crc32c", "psutil", "tensorflow_datasets")


@pytest.mark.parametrize(
    ("command", "library"),
    [
        *((command, "cv2") for command in ("run", "verify", "doctor", "sample")),
        *(("run", module) for module in LIBRARIES),
    ],
)
def test_a_command_without_its_extra_says_so_in_one_line(tmp_path: Path, command: str, library: str) -> None:
    code, message = python(tmp_path, library, "-m", f"convert.{command}", "--help")
    assert code == 2
    assert message.startswith(
        f"error: this command needs {library}, which is not installed; install pairstream[convert]:"
    )
    assert message.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("stream.torch", "torch", "torch"),
        ("stream.frameworks.lightning", "torch", "torch"),
        ("stream.frameworks.lightning", "lightning,pytorch_lightning", "lightning"),
        ("stream.jax", "jax", "jax"),
    ],
)
def test_importing_a_module_without_its_extra_names_the_extra(
    tmp_path: Path, module: str, library: str, extra: str
) -> None:
    code, message = python(tmp_path, library, "-c", f"import {module}")
    assert code == 1
    last = message.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ")
    assert f"needs {library.partition(',')[0]}, which is not installed; install pairstream[{extra}]:" in last


@pytest.mark.parametrize(
    ("url", "library", "extra"),
    [("s3://b/oxe", "botocore", "s3"), ("gs://b/oxe", "google-auth", "gcs"), ("https://b/oxe", "obstore", "remote")],
)
def test_an_object_store_without_its_extra_names_the_extra(tmp_path: Path, url: str, library: str, extra: str) -> None:
    code, message = python(
        tmp_path, library.partition("-")[0], "-m", "pairstream", "fetch", url, "local", "--mixture", "bridge"
    )
    assert code == 2
    assert f"needs {library}, which is not installed; install pairstream[{extra}]:" in message
    assert message.count("\n") == 1


def test_streaming_needs_none_of_the_extras(tmp_path: Path) -> None:
    without = "cv2,apache_beam,tensorflow_datasets,google_crc32c,psutil,torch,jax,lightning,obstore,botocore"
    code, message = python(tmp_path, without, "-c", "import stream as s; s.make_loader, s.SampleSource, s.Normalize")
    assert code == 0, message
