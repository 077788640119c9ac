"""Stored depth maps: what was encoded comes back, and damage is an error."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from convert.shard.depth import encode_depth
from stream.base.errors import FormatError
from stream.format.frame import DEPTH_HEADER, DEPTH_MAGIC, decode_depth, depth_shape

DEPTH = np.random.default_rng(0).integers(0, 4000, (12, 17), dtype=np.uint16)


def decode(data: bytes, shape: tuple[int, int] = (12, 17)) -> np.ndarray:
    out = np.full(shape, 7, np.uint16)
    decode_depth(data, out)
    return out


@given(arrays(np.uint16, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_a_depth_map_comes_back_bitwise(depth: np.ndarray) -> None:
    data = encode_depth(depth)
    assert depth_shape(data) == depth.shape
    np.testing.assert_array_equal(decode(memoryview(data), depth.shape), depth)  # type: ignore[arg-type]


def test_the_layout_is_a_header_and_one_zstd_frame() -> None:
    data = encode_depth(DEPTH.T)
    assert data[:8] == b"DPT1\x11\x00\x0c\x00"
    values = pa.decompress(data[8:], DEPTH.nbytes, codec="zstd", asbytes=True)
    assert values == np.ascontiguousarray(DEPTH.T).astype("<u2").tobytes()


def test_threads_may_decode_at_the_same_time() -> None:
    maps = [np.full((64, 64), number, np.uint16) + np.arange(64, dtype=np.uint16) for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        decoded = list(pool.map(lambda depth: decode(encode_depth(depth), (64, 64)), maps))
    np.testing.assert_array_equal(decoded, maps)


def other_size(height: int, width: int) -> bytes:
    return DEPTH_HEADER.pack(DEPTH_MAGIC, height, width) + encode_depth(DEPTH)[8:]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xd8\xff\xe0 a JPEG", "starts with"),
        *((encode_depth(DEPTH)[:kept], "depth map") for kept in (0, 3, 7, 8, 9, 30, -1)),
        (encode_depth(DEPTH) + b"more", "depth map of"),
        (other_size(17, 12), r"is \(17, 12\), the manifest says \(12, 17\)"),
        (encode_depth(DEPTH)[:8] + encode_depth(DEPTH[:, :5])[8:], "depth map of"),
        (encode_depth(DEPTH)[:8] + encode_depth(np.tile(DEPTH, 2))[8:], "depth map of"),
        (encode_depth(DEPTH)[:8] + b"\0" * 40, "depth map of"),
    ],
)
def test_what_is_no_such_depth_map_is_an_error(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode(data)


@given(st.integers(0, len(encode_depth(DEPTH)) - 1), st.integers(1, 255))
def test_a_changed_byte_is_an_error_or_other_values_of_the_same_size(offset: int, change: int) -> None:
    data = bytearray(encode_depth(DEPTH))
    data[offset] ^= change
    with contextlib.suppress(FormatError):
        assert decode(bytes(data)).shape == DEPTH.shape
