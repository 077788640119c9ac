"""What `import stream` costs and brings along."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import stream

STREAM = Path(__file__).resolve().parents[2] / "stream"


def python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=STREAM.parent).stdout


FRAMEWORKS = ("tensorflow", "apache_beam", "tensorflow_datasets", "torch", "jax")
HEAVY = (*FRAMEWORKS, "cv2", "convert", "fsspec", "s3fs", "gcsfs")
WORKER = (*HEAVY, "grain", "pydantic", "pyarrow", "array_record", "asyncio")


def test_the_loader_brings_nothing_that_grain_does_not() -> None:
    listed = f"[m for m in {HEAVY} if m in sys.modules]"
    use = "stream.make_loader, stream.samples, stream.Normalize"
    assert python(f"import sys, grain, stream; own = {listed}; {use}; print(own == {listed})") == "True\n"


@pytest.mark.parametrize(
    ("modules", "unused"),
    [
        ("stream", HEAVY),
        ("pairstream.export.command", (*HEAVY, "grain", "av")),
        ("pairstream.fetch", (*HEAVY, "grain")),
        ("stream.worker, stream.statistics.affine, stream.base.random_numbers", WORKER),
    ],
)
def test_importing_brings_no_framework_and_nothing_that_is_not_used(modules: str, unused: tuple[str, ...]) -> None:
    """What a worker with transforms imports is in ``test_loader``."""
    assert python(f"import sys, {modules}; print([m for m in {unused} if m in sys.modules])") == "[]\n"


def test_object_stores_are_known_to_two_modules_only() -> None:
    libraries = ("fsspec", "s3fs", "gcsfs", "obstore", "botocore", "google.auth")
    names = [f"{word} {library}" for library in libraries for word in ("import", "from")]
    folders = [STREAM.parent / name for name in ("stream", "convert", "beam_jobs")]
    importers = {
        path.name
        for folder in folders
        for path in folder.rglob("*.py")
        if any(name in path.read_text() for name in names)
    }
    assert importers == {"object_reads.py", "object_stores.py"}


def test_no_exported_name_is_that_of_a_module() -> None:
    # Importing `stream.digest` would put the module in the place of the function.
    modules = {path.stem for path in STREAM.glob("*.py")}
    assert not modules & set(stream.__all__)


def test_grain_is_used_by_its_public_interface() -> None:
    private = re.compile(r"grain\._|_assert_not_closed|has_child|\b_stats\b")
    assert [path.name for path in STREAM.rglob("*.py") if private.search(path.read_text())] == []
