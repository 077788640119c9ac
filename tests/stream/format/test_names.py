import struct
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convert.jobs import shard_stem
from convert.shard.record_file import encode_record
from stream.base.errors import FormatError
from stream.format.names import (
    DERIVED,
    TABLE_KINDS,
    TableKind,
    decode_record,
    frame_views,
    shard_file,
    split_of,
    table_file,
)
from stream.format.schema import FIRST_FIELDS, feature_column

FRAMES = st.lists(st.binary(max_size=200), min_size=1, max_size=8)


@given(FRAMES, st.data())
def test_views_are_the_frames_without_a_copy_and_another_length_is_refused(
    frames: list[bytes], data: st.DataObject
) -> None:
    record = encode_record(frames)
    views = frame_views(record)
    assert [bytes(frame) for frame in views] == decode_record(record) == frames
    assert all(frame.obj is record for frame in views)
    cut = data.draw(st.integers(0, len(record) - 1))
    for damaged in (record[:cut], record + b"x"):
        with pytest.raises(FormatError, match="record"):
            frame_views(damaged)


@given(st.sampled_from([b"", b"FRM1"]), st.binary(max_size=100))
def test_arbitrary_bytes_are_a_record_or_refused(start: bytes, tail: bytes) -> None:
    try:
        frames = decode_record(start + tail)
    except FormatError:
        return
    assert encode_record(frames) == start + tail


@pytest.mark.parametrize("count", [0, 3, 2**16 + 1, 2**31, 2**32 - 1])
def test_a_number_of_frames_that_the_record_cannot_hold_is_refused_before_anything_is_allocated(count: int) -> None:
    record = b"FRM1" + struct.pack("<I", count) + b"12345678"
    tracemalloc.start()
    with pytest.raises(FormatError, match=f"record of 16 bytes says that it holds {count} frames"):
        frame_views(record)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_a_length_beyond_the_record_and_other_bytes_are_refused() -> None:
    record = b"FRM1" + struct.pack("<III", 2, 4, 2**32 - 1) + b"abcd"
    with pytest.raises(FormatError, match="record has 20 bytes, its header adds up to 4294967315"):
        frame_views(record)
    for tail in (bytes(20), encode_record([b"one", b"three"])[4:]):
        with pytest.raises(FormatError, match=r"record starts with b'JFIF', expected b'FRM1'"):
            frame_views(b"JFIF" + tail)


@pytest.mark.parametrize("count", [0, 2**16 + 1])
def test_a_record_holds_at_least_one_frame_and_not_too_many(count: int) -> None:
    with pytest.raises(FormatError, match=f"a record holds 1 to 65536 frames, got {count}"):
        encode_record([b""] * count)


@given(
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,20}", fullmatch=True), st.integers(0, 99_999), st.integers(1, 99_999)
)
def test_the_split_is_read_back_from_the_name_of_a_shard(split: str, index: int, count: int) -> None:
    assert split_of(shard_stem(split, index, count)) == split


def test_the_files_of_a_split_have_the_names_of_the_contract() -> None:
    assert shard_file(shard_stem("train", 7, 1024)) == "train-00007-of-01024.arrayrecord"
    assert [table_file(kind) for kind in TABLE_KINDS] == ["episodes.arrow", "steps.arrow", "records.arrow"]


@pytest.mark.parametrize("kind", TABLE_KINDS)
def test_no_feature_has_the_name_of_a_column_of_the_format(kind: TableKind) -> None:
    reserved = {field.name for field in FIRST_FIELDS[kind]} | (set(DERIVED) if kind == "steps" else set())
    columns = {feature_column(kind, name) for name in (*reserved, "observation/state", "reward")}
    assert columns == {f"{name}_" for name in reserved} | {"observation/state", "reward"}


@pytest.mark.parametrize("kind", TABLE_KINDS)
def test_no_column_of_texts_or_lists_ends_at_two_gigabytes(kind: TableKind) -> None:
    """Types with offsets of 32 bits end at 2 GB."""
    for field in FIRST_FIELDS[kind]:
        of = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        assert not pa.types.is_string(of)
