"""Real ArrayRecord files and the locations of their records, compared with array_record's own reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from xxhash import xxh3_64_intdigest

from convert.errors import ShardError
from convert.shard.record_file import OPTIONS, RecordWriter, find_locations
from stream.format.names import BLOCK, BLOCK_HEADER
from stream.format.record_file import RecordFile


def write(path: Path, records: list[bytes], options: str = OPTIONS) -> None:
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()


def places_of(path: Path, records: list[bytes]) -> dict[str, np.ndarray]:
    return find_locations(path, [len(record) for record in records], [xxh3_64_intdigest(record) for record in records])


def random_records(sizes: list[int]) -> list[bytes]:
    random = np.random.default_rng(len(sizes))
    return [random.bytes(size) for size in sizes]


def check(path: Path, records: list[bytes]) -> dict[str, np.ndarray]:
    with RecordWriter(path, output=path.parent) as writer:
        assert [writer.write(record) for record in records] == list(range(len(records)))
    locations = writer.locations()
    file = RecordFile(str(path))
    rows = list(zip(*(locations[name].tolist() for name in ("position", "num_bytes", "xxh3_64")), strict=True))
    assert [file.read(*row) for row in rows] == records
    assert [read_in_parts(file, *row) for row in rows] == records
    reader = ArrayRecordReader(str(path))
    assert reader.read_all() == records
    assert {"group_size:1", "uncompressed"} <= set(reader.writer_options_string().split(","))
    reader.close()
    return locations


def read_in_parts(file: RecordFile, position: int, num_bytes: int, xxh3_64: int) -> bytes:
    """Read a record into buffers of other sizes than its blocks."""
    content = memoryview(bytearray(num_bytes))
    parts = [content[start : start + 33_333] for start in range(0, num_bytes, 33_333)]
    file.read_into(position, num_bytes, xxh3_64, parts)
    return bytes(content)


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [0],
        [1, 0, 127, 128, 0, 16_383, 16_384, 2],
        [2_097_151, 2_097_152, 5],
        [40_000] * 50,
        [BLOCK - BLOCK_HEADER] * 3,
        [3 * (BLOCK - BLOCK_HEADER)] * 3,
    ],
)
def test_records_of_any_size_are_found(tmp_path: Path, sizes: list[int]) -> None:
    check(tmp_path / "x", random_records(sizes))


def test_records_are_found_however_they_meet_the_blocks(tmp_path: Path) -> None:
    """Each byte of the next chunk is once the first of a block."""
    met: set[int] = set()
    for size in range(BLOCK - 260, BLOCK - 40):
        locations = check(tmp_path / "x", random_records([size, 300, 70_000]))
        met.update(int(position) % BLOCK for position in locations["position"][1:])
    # Behind the header of a block, and directly before the end of one.
    assert {BLOCK_HEADER, BLOCK_HEADER + 1, BLOCK - 1} <= met
    assert min(met) == BLOCK_HEADER


def test_a_record_of_more_blocks_than_one_call_may_read_is_found(tmp_path: Path) -> None:
    check(tmp_path / "x", random_records([100, 40 << 20, 100]))


def test_a_record_that_was_not_written_is_an_error(tmp_path: Path) -> None:
    records = random_records([500, 70_000, 500])
    write(tmp_path / "x", records)
    with pytest.raises(ShardError, match=r"record 2 cannot be read .* unknown layout"):
        places_of(tmp_path / "x", [*records[:2], records[2] + b"more"])
    with pytest.raises(ShardError, match=r"record 1 cannot be read \(its bytes .*is the disk sound"):
        places_of(tmp_path / "x", [records[0], records[1][::-1], records[2]])


@pytest.mark.parametrize("options", ["group_size:1,zstd", "group_size:2,uncompressed", "group_size:1,transpose"])
def test_another_layout_than_ours_is_an_error(tmp_path: Path, options: str) -> None:
    records = [b"a" * 5000, b"b" * 5000]
    write(tmp_path / "x", records, options)
    with pytest.raises(ShardError, match=r"record 0 cannot be read .* unknown layout"):
        places_of(tmp_path / "x", records)


@pytest.mark.parametrize("left", [0, 10, 64, 90, 3000, 70_000])
def test_a_file_that_ends_early_is_an_error(tmp_path: Path, left: int) -> None:
    records = random_records([2000, 100_000, 500])
    write(tmp_path / "x", records)
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:left])
    with pytest.raises(ShardError, match=r"record \d cannot be read"):
        places_of(tmp_path / "x", records)


def test_an_error_inside_is_not_hidden_by_the_closing_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="inside"), RecordWriter(tmp_path / "x", output=tmp_path) as writer:
        writer.write(b"record")
        raise KeyError("inside")


def test_a_full_disk_says_so_and_that_the_same_command_goes_on(tmp_path: Path) -> None:
    with pytest.raises(ShardError) as caught:
        check(Path("/dev/full"), [b"x" * 100_000] * 10)
    assert str(caught.value) == "/dev: the disk is full; make room and run the same command again"


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RecordWriter(tmp_path / "missing" / "x", output=tmp_path)
