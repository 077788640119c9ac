"""Real files, mapped by the kernel."""

from __future__ import annotations

import errno
import gc
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stream.mapped_file import map_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a file"
    path.write_bytes(bytes(range(256)) * 100)
    return path


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_it_has_the_bytes_of_the_file_and_no_handle(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    mapped = map_file(str(path))
    assert len(os.listdir("/proc/self/fd")) == before
    assert (mapped.size, mapped.to_pybytes()) == (25_600, path.read_bytes())


def test_it_is_there_as_long_as_anything_made_of_it(path: Path) -> None:
    mapped = map_file(str(path))
    part = np.frombuffer(mapped.slice(256), np.uint8)[10:20]
    del mapped
    gc.collect()
    assert is_mapped(path)
    assert part.tolist() == list(range(10, 20))
    del part
    assert not is_mapped(path)


def test_it_cannot_be_written_to(path: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        np.frombuffer(map_file(str(path)), np.uint8)[0] = 1


def test_an_empty_file_has_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    assert map_file(str(tmp_path / "x")).to_pybytes() == b""


@pytest.mark.parametrize("name", ["missing", "."])
def test_what_cannot_be_mapped_is_named(tmp_path: Path, name: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError) as raised:
        map_file(str(tmp_path / name))
    assert raised.value.filename == str(tmp_path / name)
    assert raised.value.errno in (errno.ENOENT, errno.ENODEV)
    assert len(os.listdir("/proc/self/fd")) == before


def test_too_little_address_space_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), hard))
    try:
        with pytest.raises(OSError) as raised:
            map_file(str(tmp_path / "large"))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert (raised.value.errno, raised.value.filename) == (errno.ENOMEM, str(tmp_path / "large"))


def test_the_end_of_the_interpreter_is_silent(path: Path) -> None:
    # Modules are emptied from the last that was imported to the first.
    code = "import sys, numpy, stream.mapped_file as m; numpy.kept = m, m.map_file(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
