"""Files mapped one behind the other are read as one array."""

from __future__ import annotations

import errno
import mmap
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stream.storage.region
from stream.storage.region import Region
from tests.fixtures.faults.memory_limit import memory_limit
from tests.fixtures.faults.open_files import open_files

PAGE = mmap.PAGESIZE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("region")


def write_files(folder: Path, sizes: list[int]) -> list[Path]:
    """Write files of random bytes."""
    random = np.random.default_rng(len(sizes))
    paths = [folder / f"{number}-{size}" for number, size in enumerate(sizes)]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(random.bytes(size))
    return paths


def mappings(folder: Path) -> int:
    """Count the mapped files of a folder."""
    return len(re.findall(rf" {folder}/", Path("/proc/self/maps").read_text()))


def resident(path: Path) -> int:
    """Return the bytes of a mapped file whose pages are mapped too."""
    _, *parts = Path("/proc/self/smaps").read_text().split(f" {path}\n")
    return sum(1024 * int(re.findall(r"Rss: +([0-9]+) kB", part)[0]) for part in parts)


SIZES = st.one_of(st.integers(0, 100), st.integers(PAGE - 1, PAGE + 1), st.integers(0, 5 * PAGE))


@given(st.lists(SIZES, max_size=12))
def test_each_file_lies_at_its_start_and_the_rest_is_zero(folder: Path, sizes: list[int]) -> None:
    paths = write_files(folder, sizes)
    region = Region([str(path) for path in paths])
    result = region.view("u1")
    assert not result[:PAGE].any()
    expected = np.zeros(len(result), np.uint8)
    for path, start in zip(paths, region.starts, strict=True):
        content = np.frombuffer(path.read_bytes(), np.uint8)
        assert start % PAGE == 0
        assert not expected[start : start + len(content)].any()
        expected[start : start + len(content)] = content
    np.testing.assert_array_equal(result, expected)


def test_it_holds_no_file_open_and_cannot_be_written_to(tmp_path: Path) -> None:
    paths = write_files(tmp_path, [10, 20])
    region = Region([str(path) for path in paths])
    assert not set(map(str, paths)) & set(open_files())
    with pytest.raises(ValueError, match="read-only"):
        region.view("u1")[0] = 1


def test_the_files_are_mapped_until_the_last_view_is_gone(tmp_path: Path) -> None:
    paths = write_files(tmp_path, [10, 2 * PAGE, 0])
    part = Region([str(path) for path in paths]).view("<i4")[PAGE // 4 + 1 : PAGE // 4 + 3]
    assert mappings(tmp_path) == 2
    assert part.tobytes() == paths[0].read_bytes()[4:] + bytes(2)
    del part
    assert mappings(tmp_path) == 0


def test_spans_that_are_read_ahead_are_mapped_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream.storage.region, "_CHUNK", 4 * PAGE)
    monkeypatch.setattr(stream.storage.region, "_PAUSE_S", 0)
    paths = write_files(tmp_path, [64 * PAGE] * 3)
    region = Region([str(path) for path in paths])
    _, start, _ = region.starts
    region.read_ahead([(start + 10 * PAGE + 5, start + 30 * PAGE), (start + 40 * PAGE, start + 40 * PAGE + 1)])
    for thread in threading.enumerate():
        if thread.name == "stream-map":
            thread.join(60)
    assert [resident(path) for path in paths] == [0, 21 * PAGE, 0]


def test_few_bytes_are_not_read_ahead(tmp_path: Path) -> None:
    [path] = write_files(tmp_path, [64 * PAGE])
    before = set(threading.enumerate())
    Region([str(path)]).read_ahead([(0, 64 * PAGE)])
    assert "stream-map" not in [thread.name for thread in set(threading.enumerate()) - before]


def test_a_file_that_takes_the_place_of_another_does_not_change_what_is_mapped(tmp_path: Path) -> None:
    [path] = write_files(tmp_path, [100])
    content, region = path.read_bytes(), Region([str(path)])
    (tmp_path / "new").write_bytes(bytes(100))
    (tmp_path / "new").rename(path)
    assert region.view("u1")[PAGE : PAGE + 100].tobytes() == content


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    [path] = write_files(tmp_path, [10])
    with pytest.raises(OSError) as raised:
        Region([str(path), str(tmp_path / "missing")])
    assert (raised.value.errno, raised.value.filename) == (errno.ENOENT, str(tmp_path / "missing"))
    assert str(path) not in open_files()
    del raised
    assert mappings(tmp_path) == 0


def test_too_little_address_space_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    with memory_limit(1 << 30), pytest.raises(OSError) as raised:
        Region([str(tmp_path / "large")])
    assert raised.value.errno == errno.ENOMEM
