from pathlib import Path

import pytest
from array_record.python.array_record_module import ArrayRecordReader

from convert.errors import ShardError
from convert.shard.record_file import RecordWriter


def write(path: Path, records: list[bytes]) -> None:
    with RecordWriter(path, output=path.parent) as writer:
        for record in records:
            writer.write(record)


@pytest.mark.parametrize("records", [[], [b"one"], [b"", b"x" * 100_000, b"three"]])
def test_records_are_read_back_one_by_one(tmp_path: Path, records: list[bytes]) -> None:
    path = tmp_path / "x.arrayrecord"
    write(path, records)
    reader = ArrayRecordReader(str(path))
    assert reader.num_records() == len(records)
    assert [reader.read(i, i + 1)[0] for i in range(len(records))] == records
    reader.close()


def test_each_record_is_a_chunk_of_its_own_and_not_compressed(tmp_path: Path) -> None:
    write(tmp_path / "x", [b"a" * 1000, b"b" * 1000])
    reader = ArrayRecordReader(str(tmp_path / "x"))
    options = reader.writer_options_string().split(",")
    assert {"group_size:1", "uncompressed"} <= set(options)
    reader.close()
    assert b"a" * 1000 in (tmp_path / "x").read_bytes()


def test_an_error_inside_is_not_hidden_by_the_closing_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="inside"), RecordWriter(tmp_path / "x", output=tmp_path) as writer:
        writer.write(b"record")
        raise KeyError("inside")


def test_a_full_disk_says_so_and_that_the_same_command_goes_on(tmp_path: Path) -> None:
    with pytest.raises(ShardError) as caught:
        write(Path("/dev/full"), [b"x" * 100_000] * 10)
    assert str(caught.value) == "/dev: the disk is full; make room and run the same command again"


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RecordWriter(tmp_path / "missing" / "x", output=tmp_path)
