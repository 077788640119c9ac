"""What pyproject.toml, the constraints and make say of versions is one thing."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.fixtures.oldest_versions import oldest_versions

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def pinned(text: str) -> dict[str, Version]:
    """Versions by library, of lines ``name==version``; pip takes no file with another line."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[^=]+", line)] == []
    pins = (line.partition("==") for line in lines)
    return {re.sub(r"[-_.]+", "-", name).lower(): Version(version.split(";")[0]) for name, _, version in pins}


def test_the_oldest_versions_that_are_tested_are_the_floors() -> None:
    tested = pinned((REPOSITORY / "constraints-oldest.txt").read_text())
    floors = pinned("\n".join(oldest_versions()))
    assert len(floors) > 15
    assert {name: tested[name] for name in floors} == floors


def test_the_versions_of_python_are_those_of_the_classifiers() -> None:
    named = {line.rsplit(" ", 1)[1] for line in PROJECT["classifiers"] if "Python :: 3." in line}
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert named == {f"3.{minor}" for minor in range(50) if allowed.contains(f"3.{minor}.1")}


@pytest.mark.parametrize(
    ("version", "fits"), [("3.10.13", False), ("3.11.7", True), ("3.13.0", True), ("3.14.0", False)]
)
def test_make_takes_the_versions_of_python_that_pip_takes(version: str, fits: bool, tmp_path: Path) -> None:
    assert SpecifierSet(PROJECT["requires-python"]).contains(version) == fits
    python = tmp_path / "python"
    info = tuple(map(int, version.split(".")))
    # Make asks it by `-c`; anything else, such as making a venv, fails.
    python.write_text(
        "#!/usr/bin/env python3\nimport sys\n"
        f"sys.version_info = {info!r}\n"
        "sys.argv[1] == '-c' or sys.exit('made nothing')\n"
        "exec(sys.argv[2])\n"
    )
    python.chmod(0o755)
    command = ["make", "venv", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    refused = f"Python 3.11 to 3.13 is needed, found: {python} is {version}."
    assert (refused not in done.stderr) == fits
    assert ("made nothing" in done.stderr) == fits


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_both_commands_of_the_readme_work_with_each_python(version: str) -> None:
    python = f"python{version}"
    if shutil.which(python) is None or subprocess.run([python, "-c", "import venv"], capture_output=True).returncode:
        pytest.skip(f"no {python} on this machine")
    folder = f"build/{python}"
    given = [f"PYTHON={python}", f"VENV={folder}/venv", f"DEMO={folder}/demo", "JOBS=1"]
    files = ("stream/order/test_splits.py", "stream/frameworks/test_torch.py", "beam_jobs/test_dataflow.py")
    few = f"ARGS={' '.join(f'tests/{file}' for file in files)}"
    for target in (["demo"], ["test", few]):
        done = subprocess.run(["make", *given, *target], cwd=REPOSITORY, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
