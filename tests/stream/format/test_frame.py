"""Frames of colour say themselves what they are."""

from __future__ import annotations

import numpy as np
import pytest

from convert.shard.images import encode_jpeg
from convert.shard.record_file import encode_record
from stream.base.errors import FormatError
from stream.format.frame import RAW_MAGIC, RawRecord, as_jpeg, decode_frame, encode_raw, frame_shape

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 10, 3), np.uint8)
RAW, JPEG = encode_raw(PIXELS), encode_jpeg(PIXELS, 95)


def test_raw_pixels_come_back_as_they_were() -> None:
    out = np.zeros_like(PIXELS)
    decode_frame(RAW, out)
    np.testing.assert_array_equal(out, PIXELS)
    np.testing.assert_array_equal(decode_frame(memoryview(RAW)), PIXELS)
    np.testing.assert_array_equal(decode_frame(encode_raw(PIXELS[:, ::-1])), PIXELS[:, ::-1])


def test_a_frame_tells_its_size_and_is_a_jpeg_or_becomes_one() -> None:
    assert frame_shape(RAW) == frame_shape(JPEG) == (6, 10)
    assert as_jpeg(JPEG) is JPEG
    assert np.abs(decode_frame(as_jpeg(RAW, 100)).astype(int) - PIXELS).mean() < 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (RAW_MAGIC, "shorter than its header"),
        (RAW[:-1], "says that it is 6x10"),
        (RAW + b"x", "says that it is 6x10"),
        (JPEG[:100], "."),
        (b"", "."),
        (b"something else", "."),
    ],
)
def test_what_is_no_frame_is_an_error(data: bytes, message: str) -> None:
    for read in (frame_shape, decode_frame):
        if (read, data) != (frame_shape, JPEG[:100]):
            with pytest.raises(FormatError, match=message):
                read(data)


def test_a_frame_of_another_size_and_a_side_beyond_16_bits_are_refused() -> None:
    for data in (RAW, JPEG):
        with pytest.raises(FormatError, match=r"\(10, 6, 3\)"):
            decode_frame(data, np.zeros((10, 6, 3), np.uint8))
    with pytest.raises(FormatError, match="1x65536"):
        encode_raw(np.zeros((1, 65_536, 3), np.uint8))


def _filled(record: bytes, count: int) -> list[np.ndarray]:
    frames = [np.zeros_like(PIXELS) for _ in range(count)]
    raw = RawRecord(frames)
    start = 0
    for part in raw.parts:
        part[:] = record[start : start + len(part)]
        start += len(part)
    raw.check()
    return frames


def test_the_parts_of_a_raw_record_fill_its_frames_and_other_frames_are_an_error() -> None:
    first, second = _filled(encode_record([RAW, encode_raw(PIXELS[::-1])]), 2)
    np.testing.assert_array_equal(first, PIXELS)
    np.testing.assert_array_equal(second, PIXELS[::-1])
    frames = encode_raw(np.zeros((10, 6, 3), np.uint8))
    with pytest.raises(FormatError, match="does not hold 2 raw frames of 6x10"):
        _filled(encode_record([RAW, frames]), 2)
