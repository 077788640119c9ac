import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.format import (
    FILE_KINDS,
    FormatError,
    dataset_dir,
    decode_record,
    encode_record,
    frame_spans,
    frame_views,
    open_sidecar,
    shard_file,
    shard_stem,
    split_of,
)

FRAMES = st.lists(st.binary(max_size=200), min_size=1, max_size=8)


@given(FRAMES)
def test_frames_come_back_as_they_were_encoded(frames: list[bytes]) -> None:
    assert decode_record(encode_record(frames)) == frames


@given(FRAMES)
def test_spans_point_at_the_frames_without_a_copy(frames: list[bytes]) -> None:
    record = encode_record(frames)
    view = memoryview(record)
    assert [bytes(view[start:stop]) for start, stop in frame_spans(view)] == frames
    views = frame_views(view)
    assert [bytes(frame) for frame in views] == frames
    assert all(frame.obj is record for frame in views)


@given(FRAMES, st.data())
def test_a_record_cut_short_or_made_longer_is_refused(frames: list[bytes], data: st.DataObject) -> None:
    record = encode_record(frames)
    cut = data.draw(st.integers(0, len(record) - 1))
    for damaged in (record[:cut], record + b"x"):
        for read in (decode_record, frame_views):
            with pytest.raises(FormatError, match="record"):
                read(damaged)


@given(st.sampled_from([b"", b"FRM1"]), st.binary(max_size=100))
def test_arbitrary_bytes_are_a_record_or_refused(start: bytes, rest: bytes) -> None:
    try:
        frames = decode_record(start + rest)
    except FormatError:
        return
    assert encode_record(frames) == start + rest


@pytest.mark.parametrize("count", [0, 3, 2**16 + 1, 2**31, 2**32 - 1])
def test_a_number_of_frames_that_the_record_cannot_hold_is_refused_before_anything_is_allocated(count: int) -> None:
    record = b"FRM1" + struct.pack("<I", count) + b"12345678"
    tracemalloc.start()
    with pytest.raises(FormatError, match=f"record of 16 bytes says that it holds {count} frames"):
        frame_spans(record)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_a_length_beyond_the_record_is_refused() -> None:
    record = b"FRM1" + struct.pack("<III", 2, 4, 2**32 - 1) + b"abcd"
    with pytest.raises(FormatError, match="record has 20 bytes, its header adds up to 4294967315"):
        decode_record(record)
    with pytest.raises(FormatError, match="record has 20 bytes, its header adds up to 4294967315"):
        frame_views(record)


@pytest.mark.parametrize("read", [decode_record, frame_views])
def test_other_bytes_are_named_by_how_they_start(read: Callable[[bytes], object]) -> None:
    for rest in (bytes(20), encode_record([b"one", b"three"])[4:]):
        with pytest.raises(FormatError, match=r"record starts with b'JFIF', expected b'FRM1'"):
            read(b"JFIF" + rest)


@pytest.mark.parametrize("count", [0, 2**16 + 1])
def test_a_record_holds_at_least_one_frame_and_not_too_many(count: int) -> None:
    with pytest.raises(FormatError, match=f"a record holds 1 to 65536 frames, got {count}"):
        encode_record([b""] * count)


@given(
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,20}", fullmatch=True), st.integers(0, 99_999), st.integers(1, 99_999)
)
def test_the_split_is_read_back_from_the_name_of_a_shard(split: str, index: int, count: int) -> None:
    assert split_of(shard_stem(split, index, count)) == split


def test_names_of_shards_sort_in_the_order_of_the_source() -> None:
    stems = [shard_stem("train", index, 1024) for index in range(1024)]
    assert stems == sorted(stems)


def test_the_files_of_a_shard_have_the_names_of_the_contract() -> None:
    assert [shard_file(shard_stem("train", 7, 1024), kind) for kind in FILE_KINDS] == [
        "train-00007-of-01024.arrayrecord",
        "train-00007-of-01024.records.arrow",
        "train-00007-of-01024.steps.arrow",
        "train-00007-of-01024.episodes.arrow",
    ]


def test_a_dataset_lies_below_its_name_and_version() -> None:
    assert dataset_dir("data/oxe", "bridge", "0.1.0") == Path("data/oxe/bridge/0.1.0")


def write_sidecar(path: Path) -> bytes:
    table = pa.table(
        {
            "step": pa.array(range(20), pa.int32()),
            "language": pa.array(["open", "close"] * 10).dictionary_encode(),
            "words": pa.array([["a", "b"]] * 20),
            "state": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(60, np.float32)), 3),
        }
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return path.read_bytes()


def test_a_sidecar_is_mapped_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    numbers = np.arange(1_000_000, dtype=np.int64)
    with pa.OSFile(str(path), "wb") as sink:
        table = pa.table({"x": numbers})
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    before = pa.total_allocated_bytes()
    table = open_sidecar(path)
    assert pa.total_allocated_bytes() - before < 10_000
    np.testing.assert_array_equal(table.column("x").to_numpy(), numbers)


def test_a_sidecar_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train-00000-of-00001.steps.arrow"
    content = write_sidecar(path)
    for size in [*range(0, len(content), 7), len(content) - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(FormatError, match=r"train-00000-of-00001\.steps\.arrow: not a complete Arrow IPC file"):
            open_sidecar(path)


def test_a_damaged_sidecar_opens_or_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    content = write_sidecar(path)
    rng = random.Random(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            open_sidecar(path)
        except FormatError:
            refused += 1
    assert refused > 30


def test_a_sidecar_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_sidecar(tmp_path / "missing.arrow")
