"""TFRecord and ArrayRecord files: records, checksums, and damage."""

from __future__ import annotations

import io
import shutil
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convert.errors import DamagedRecord
from convert.plan import ConvertConfig
from convert.source.rlds.record_files import TFRecordFile, encode_tfrecord, masked_crc32c
from stream.format.manifest import Manifest
from tests.fixtures.datasets.rlds_dataset import RldsDataset, convert_dataset, demo_episode, write_dataset

RECORDS = [b"first", b"", b"the third record", b"last" * 50]
FRAME = 16


def open_records(content: bytes) -> TFRecordFile:
    return TFRecordFile(io.BytesIO(content), name="file-00000-of-00001", size=len(content))


def read(content: bytes) -> list[bytes | DamagedRecord]:
    return list(open_records(content))


def encode(records: list[bytes]) -> bytes:
    return b"".join(map(encode_tfrecord, records))


def flip(content: bytes, position: int, *, bit: int = 0) -> bytes:
    return content[:position] + bytes([content[position] ^ (1 << bit)]) + content[position + 1 :]


def start_of(index: int) -> int:
    return sum(FRAME + len(record) for record in RECORDS[:index])


def damage(items: list[bytes | DamagedRecord]) -> DamagedRecord:
    (result,) = [item for item in items if isinstance(item, DamagedRecord)]
    return result


def test_it_reads_and_encodes_what_tensorflow_writes(tmp_path: Path) -> None:
    import tensorflow as tf

    path = tmp_path / "by_tensorflow"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in RECORDS:
            writer.write(record)
    assert path.read_bytes() == encode(RECORDS)
    assert read(path.read_bytes()) == RECORDS


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_records_come_back_as_they_were_encoded(records: list[bytes]) -> None:
    assert read(encode(records)) == records


@pytest.mark.parametrize("index", range(4))
def test_a_flipped_bit_in_the_data_or_its_checksum_spoils_that_record_only(index: int) -> None:
    items = read(flip(encode(RECORDS), start_of(index) + 12))
    assert [item for item in items if isinstance(item, bytes)] == RECORDS[:index] + RECORDS[index + 1 :]
    result = damage(items)
    assert not result.rest
    assert str(result) == (
        f"file-00000-of-00001: wrong checksum of record {index} at byte {start_of(index)} ({len(RECORDS[index])} bytes)"
    )


@pytest.mark.parametrize("byte", range(12))
def test_a_flipped_bit_in_the_length_or_its_checksum_spoils_the_rest(byte: int) -> None:
    items = read(flip(encode(RECORDS), start_of(2) + byte, bit=3))
    assert items[:2] == RECORDS[:2]
    result = damage(items)
    assert (result.rest, len(items)) == (True, 3)
    assert "wrong checksum of the length of record 2" in str(result)


def test_a_file_cut_anywhere_gives_whole_records_and_then_one_clear_error() -> None:
    content = encode(RECORDS)
    boundaries = [start_of(index) for index in range(len(RECORDS) + 1)]
    for size in range(len(content)):
        items = read(content[:size])
        complete = sum(boundary <= size for boundary in boundaries) - 1
        assert items[:complete] == RECORDS[:complete]
        if size in boundaries:
            assert len(items) == complete
            continue
        result = damage(items)
        assert items[-1] is result
        assert result.rest
        assert f"ends inside record {complete}, which starts at byte {boundaries[complete]}" in str(result)


@pytest.mark.parametrize("claimed", [2**31, 2**40, 2**63, 2**64 - 1])
def test_a_claimed_length_beyond_the_file_is_not_allocated(claimed: int) -> None:
    length = struct.pack("<Q", claimed)
    content = length + struct.pack("<I", masked_crc32c(length)) + b"data"
    tracemalloc.start()
    items = read(content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert damage(items).rest
    assert peak < 1_000_000


@given(st.binary(max_size=200))
def test_arbitrary_bytes_end_in_at_most_one_error(content: bytes) -> None:
    items = read(content)
    assert sum(isinstance(item, DamagedRecord) for item in items) <= 1


def test_the_digest_depends_on_content_and_order() -> None:
    digests = set()
    for records in (RECORDS, RECORDS, RECORDS[::-1], RECORDS[:-1], [*RECORDS, b""], []):
        file = open_records(encode(records))
        list(file)
        digests.add(file.digest)
    assert len(digests) == 5


class Watched(io.BytesIO):
    """A file that counts the bytes that are read of it."""

    count = 0

    def read(self, size: int | None = -1) -> bytes:
        result = super().read(size)
        self.count += len(result)
        return result


def test_a_record_that_is_not_wanted_is_not_read_and_the_digest_covers_it() -> None:
    records = [bytes([number]) * 10_000 for number in range(5)]
    content = encode(records)
    file = Watched(content)
    reader = TFRecordFile(file, name="f", size=len(content))
    assert list(reader.read(lambda number: number == 3)) == [None, None, None, records[3], None]
    assert file.count < 11_000
    complete = open_records(content)
    list(complete)
    assert reader.digest == complete.digest


@pytest.mark.parametrize("size", [-9, -15, -20_000])
def test_a_file_that_ends_inside_a_record_that_is_not_wanted_ends_with_an_error(size: int) -> None:
    content = encode([bytes(10_000)] * 3)[:size]
    items = list(TFRecordFile(io.BytesIO(content), name="f", size=len(content)).read(lambda number: False))
    assert items[-1] is not None
    assert damage([item for item in items if item is not None]).rest


EPISODES = [demo_episode(steps, seed=steps) for steps in (5, 9, 7)]


def converted(dataset: RldsDataset) -> Manifest:
    return convert_dataset(dataset.conversion(dataset.root / "out", ConvertConfig(layout="frames")))


@pytest.fixture
def dataset(tmp_path: Path) -> RldsDataset:
    return write_dataset(tmp_path / "arrays", splits={"train": [EPISODES]}, kind="array_record")


def test_the_same_episodes_give_the_same_records_as_from_tfrecord(dataset: RldsDataset, tmp_path: Path) -> None:
    same = converted(write_dataset(tmp_path / "plain", splits={"train": [EPISODES]})).splits["train"]
    result = converted(dataset).splits["train"]
    assert [shard.file for shard in result.shards] == [shard.file for shard in same.shards]
    assert result.index["steps"] == same.index["steps"]


def damage_the_first_record(dataset: RldsDataset) -> None:
    content = bytearray(dataset.shard().read_bytes())
    content[content.index(b"steps/")] ^= 1
    dataset.shard().write_bytes(content)


def test_a_damaged_record_costs_its_episode_alone_and_a_cut_short_file_all(dataset: RldsDataset) -> None:
    damage_the_first_record(dataset)
    manifest = converted(dataset)
    assert (manifest.records, manifest.left_out) == (9 + 7, {"unreadable": 1})
    shutil.rmtree(dataset.root / "out")
    dataset.shard().write_bytes(dataset.shard().read_bytes()[:-2000])
    manifest = converted(dataset)
    assert (manifest.records, manifest.left_out) == (0, {"unreadable": 3})


def test_a_file_that_was_repaired_or_replaced_is_noticed(dataset: RldsDataset) -> None:
    complete = dataset.shard().read_bytes()
    damage_the_first_record(dataset)
    conversion = dataset.conversion(dataset.root / "out", ConvertConfig(layout="frames"))
    (entry,) = convert_dataset(conversion).splits["train"].shards
    (job,) = conversion.jobs

    def differs() -> bool:
        request, digest = conversion.plan.wanted, entry.source_digest
        return job.shard.differs(request, job.spans, digest=digest, left_out=entry.left_out)

    assert not differs()
    dataset.shard().write_bytes(complete)
    assert differs()
    remaining = [demo_episode(steps, seed=100 + steps) for steps in (5, 9, 7)]
    write_dataset(dataset.root, splits={"train": [remaining]}, kind="array_record")
    damage_the_first_record(dataset)
    assert differs()
