"""Records are read from where they are known to lie, and nothing else is taken for one."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from convert.record_file import RecordWriter
from stream.format import FormatError
from stream.record_reader import RecordFile, RecordMemory
from tests.open_files import open_files

SIZES = [10, 50_000, 70_000, 200_000, 0, 65_536]


@pytest.fixture(scope="module")
def records() -> list[bytes]:
    random = np.random.default_rng(0)
    return [random.bytes(size) for size in SIZES]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.arrayrecord"


@pytest.fixture
def places(path: Path, records: list[bytes]) -> dict[str, np.ndarray]:
    with RecordWriter(path, output=path.parent) as writer:
        for record in records:
            writer.write(record)
    return writer.places()


def handles(path: Path) -> int:
    """How often this process has a file open."""
    return open_files().count(str(path))


def test_records_are_read_in_any_order(path: Path, places: dict[str, np.ndarray], records: list[bytes]) -> None:
    file = RecordFile(str(path), **places)
    for record in [5, 0, 3, 3, 1, 4, 2]:
        assert file.read(record) == records[record]


def test_records_are_read_to_memory_that_is_used_again(
    path: Path, places: dict[str, np.ndarray], records: list[bytes]
) -> None:
    file, memory = RecordFile(str(path), **places), RecordMemory()
    lengths = []
    for order in ([4, 5, 0, 3, 3, 1, 4, 2], [2, 4], [1] * 50, [0, 3]):
        # All of them at once: none is written over by the next, nor when the memory becomes larger.
        assert list(map(bytes, [file.read(record, memory=memory) for record in order])) == [
            records[record] for record in order
        ]
        lengths.append(len(memory))
        memory.clear()
    assert lengths[0] == lengths[1] < lengths[2] == lengths[3]
    first = memory.take(10)
    memory.clear()
    memory.take(20)[:] = bytes(range(20))
    assert bytes(first) == bytes(range(10))


def test_threads_read_at_the_same_time(path: Path, places: dict[str, np.ndarray], records: list[bytes]) -> None:
    file = RecordFile(str(path), **places)
    chosen = np.random.default_rng(1).integers(0, len(records), 2000).tolist()
    with ThreadPoolExecutor(8) as pool:
        assert all(data == records[record] for record, data in zip(chosen, pool.map(file.read, chosen), strict=True))


def test_every_byte_of_a_record_is_looked_at(path: Path, places: dict[str, np.ndarray], records: list[bytes]) -> None:
    content = path.read_bytes()
    file = RecordFile(str(path), **places)
    start, size = int(places["position"][0]), SIZES[0]
    for place in range(start, start + size):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(FormatError, match="its bytes are not those that were written"):
            file.read(0)
        assert file.read(1) == records[1]


def test_the_headers_of_blocks_in_a_record_are_no_part_of_it(
    path: Path, places: dict[str, np.ndarray], records: list[bytes]
) -> None:
    content = bytearray(path.read_bytes())
    content[131_072 : 131_072 + 24] = bytes(24)
    path.write_bytes(content)
    file = RecordFile(str(path), **places)
    assert [file.read(record) for record in range(len(records))] == records


def test_a_file_that_ends_in_a_record_is_an_error(path: Path, places: dict[str, np.ndarray]) -> None:
    os.truncate(path, int(places["position"][3]) + 100_000)
    file = RecordFile(str(path), **places)
    for record in (3, 5):
        with pytest.raises(FormatError, match="cannot be read"):
            file.read(record)


def test_a_record_beyond_the_last_is_an_error(path: Path, places: dict[str, np.ndarray]) -> None:
    with pytest.raises(FormatError, match="there are 6 records"):
        RecordFile(str(path), **places).read(6)


def test_it_closes_with_its_last_user(path: Path, places: dict[str, np.ndarray]) -> None:
    files = [RecordFile(str(path), **places) for _ in range(3)]
    assert handles(path) == 3
    del files[1:]
    assert handles(path) == 1
    files.clear()
    assert handles(path) == 0


def test_the_end_of_the_interpreter_is_silent(path: Path, places: dict[str, np.ndarray]) -> None:
    # Modules are emptied from the last that was imported to the first, so this one's file goes after `os` there.
    code = """
import sys, numpy, stream.record_reader
numpy.kept = stream.record_reader, stream.record_reader.RecordFile(sys.argv[1], *numpy.load(sys.argv[2]))
"""
    np.save(path.with_suffix(".npy"), np.stack([values.astype(np.uint64) for values in places.values()]))
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(path.with_suffix(".npy"))], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_file_that_is_not_there_is_named(tmp_path: Path, places: dict[str, np.ndarray]) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        RecordFile(str(tmp_path / "missing"), **places)
    assert raised.value.errno == errno.ENOENT and raised.value.filename == str(tmp_path / "missing")
