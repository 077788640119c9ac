"""Tests of reading records at the locations of the index."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from hypothesis import given, settings
from hypothesis import strategies as st

from convert.shard.record_file import RecordWriter
from stream.base.errors import FormatError
from stream.format.names import BLOCK
from stream.format.record_file import RecordFile
from tests.fixtures.faults.open_files import open_files

SIZES = [10, 50_000, 70_000, 200_000, 0, 65_536]
Location = tuple[int, int, int]
"""Position, size and checksum of a record."""


def write_records(path: Path, records: list[bytes]) -> list[Location]:
    """Write records, and return the place of each."""
    with RecordWriter(path, output=path.parent) as writer:
        for record in records:
            writer.write(record)
    locations = writer.locations()
    columns = (locations[name].tolist() for name in ("position", "num_bytes", "xxh3_64"))
    return list(zip(*columns, strict=True))


@pytest.fixture(scope="module")
def records() -> list[bytes]:
    random = np.random.default_rng(0)
    return [random.bytes(size) for size in SIZES]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.arrayrecord"


@pytest.fixture
def locations(path: Path, records: list[bytes]) -> list[Location]:
    return write_records(path, records)


def handles(path: Path) -> int:
    """Return how often this process has a file open."""
    return open_files().count(str(path))


@settings(max_examples=30)
@given(st.lists(st.one_of(st.integers(0, 300), st.integers(BLOCK - 200, BLOCK + 200), st.integers(0, 300_000))))
def test_records_of_any_size_are_those_of_array_record(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    path = tmp_path_factory.mktemp("any") / "x.arrayrecord"
    random = np.random.default_rng(len(sizes))
    records = [random.bytes(size) for size in sizes]
    file_places = write_records(path, records)
    file = RecordFile(str(path))
    assert [bytes(file.read(*location)) for location in file_places] == records
    reader = ArrayRecordReader(str(path))
    assert reader.read_all() == records
    reader.close()


def test_threads_read_at_the_same_time(path: Path, locations: list[Location], records: list[bytes]) -> None:
    file = RecordFile(str(path))
    chosen = np.random.default_rng(1).integers(0, len(records), 2000).tolist()
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda record: file.read(*locations[record]), chosen)
        assert all(data == records[record] for record, data in zip(chosen, results, strict=True))


def test_every_byte_of_a_record_is_looked_at(path: Path, locations: list[Location], records: list[bytes]) -> None:
    content = path.read_bytes()
    file = RecordFile(str(path))
    start, size, _ = locations[0]
    for location in range(start, start + size):
        path.write_bytes(content[:location] + bytes([content[location] ^ 1]) + content[location + 1 :])
        with pytest.raises(FormatError, match="its bytes are not those that were written"):
            file.read(*locations[0])
        assert file.read(*locations[1]) == records[1]


def test_the_headers_of_blocks_in_a_record_are_no_part_of_it(
    path: Path, locations: list[Location], records: list[bytes]
) -> None:
    content = bytearray(path.read_bytes())
    content[2 * BLOCK : 2 * BLOCK + 24] = bytes(24)
    path.write_bytes(content)
    file = RecordFile(str(path))
    assert [file.read(*location) for location in locations] == records


def test_a_file_that_ends_in_a_record_is_an_error(path: Path, locations: list[Location], records: list[bytes]) -> None:
    os.truncate(path, locations[3][0] + 100_000)
    file = RecordFile(str(path))
    assert file.read(*locations[2]) == records[2]
    for record in (3, 5):
        with pytest.raises(FormatError, match="cannot be read"):
            file.read(*locations[record])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": -1}, r"cannot be read \(the index says 70,000 bytes at -1\)"),
        ({"num_bytes": -5}, r"cannot be read \(the index says -5 bytes"),
        ({"num_bytes": 1 << 40}, r"cannot be read \(the index says 1,099,511,627,776 bytes"),
        ({"num_bytes": 69_999}, "its bytes are not those that were written"),
        ({"num_bytes": 0}, "its bytes are not those that were written"),
        ({"position": 0}, "its bytes are not those that were written"),
        ({"position": 1 << 40}, "its bytes are not those that were written"),
        ({"xxh3_64": 7}, "its bytes are not those that were written"),
    ],
)
def test_a_wrong_place_is_an_error(path: Path, locations: list[Location], change: dict[str, int], message: str) -> None:
    location = dict(zip(("position", "num_bytes", "xxh3_64"), locations[2], strict=True)) | change
    with pytest.raises(FormatError, match=message):
        RecordFile(str(path)).read(**location)
    for position in ((1 << 63) - 1, (1 << 63) - 70_000, 1 << 62):
        with pytest.raises((FormatError, OSError)):
            RecordFile(str(path)).read(position, 70_000, 0)


def test_it_closes_with_its_last_user(path: Path, locations: list[Location]) -> None:
    files = [RecordFile(str(path)) for _ in range(3)]
    data = files[0].read(*locations[1])
    assert handles(path) == 3
    del files[1:]
    assert handles(path) == 1
    files.clear()
    assert handles(path) == 0
    assert len(data) == SIZES[1]


def test_the_end_of_the_interpreter_is_silent(path: Path, locations: list[Location]) -> None:
    # Modules are emptied in reverse order of import, so this module's file goes after `os`.
    code = "import sys, numpy, stream.format.record_file as m; numpy.kept = m, m.RecordFile(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_missing_file_a_folder_and_a_file_of_another_size_are_refused(
    path: Path, locations: list[Location], tmp_path: Path
) -> None:
    with pytest.raises(FormatError, match=rf"^{tmp_path}/missing: missing.*run the same `python -m convert.run`"):
        RecordFile(str(tmp_path / "missing"))
    with pytest.raises((FormatError, OSError), match=str(tmp_path)):
        RecordFile(str(tmp_path), 10)
    size = path.stat().st_size
    for other in (size - 1, size + 1):
        with pytest.raises(FormatError, match=rf"^{path}: {size:,} bytes, the manifest says {other:,}"):
            RecordFile(str(path), other)
    assert handles(path) == 0
