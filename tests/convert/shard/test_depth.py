"""Depth of any kind becomes uint16 millimetres; what is no depth is damage."""

from __future__ import annotations

import io
import re
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from convert.errors import CorruptFrame
from convert.shard.depth import convert_depth, scale_nearest
from convert.shard.images import FramePolicy
from stream.format.frame import decode_depth
from tests.fixtures.datasets.rlds_dataset import jpeg, png

NATIVE = FramePolicy(size=None)
DEPTH = np.random.default_rng(0).integers(1, 4000, (6, 8), dtype=np.uint16)
METRES = (DEPTH / 1000).astype(np.float32)


def convert(frame: Any, policy: FramePolicy = NATIVE, *, scale: float | None = 1.0, is_float: bool = False) -> Any:
    actual = convert_depth(frame, policy, scale=scale, is_float=is_float)
    out = np.empty(actual.size, np.uint16)
    decode_depth(actual.data, out)
    return out


def tiff(values: np.ndarray, **options: Any) -> bytes:
    written = io.BytesIO()
    Image.fromarray(values).save(written, "TIFF", **options)
    return written.getvalue()


def float_png(values: np.ndarray) -> bytes:
    """A float32 image as TFDS stores it: the bits of each float are the four channels of a PNG."""
    written = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(*values.shape, 4), "RGBA").save(
        written, "PNG"
    )
    return written.getvalue()


@pytest.mark.parametrize(
    ("frame", "scale"),
    [
        (DEPTH, 1),
        (DEPTH[:, :, None], 1),
        (np.repeat(DEPTH[:, :, None], 3, axis=2), 1),
        (DEPTH.astype(np.int32), 1),
        (DEPTH.astype(">u2"), 1),
        (DEPTH.astype(np.float64), 1),
        (DEPTH, None),
        (METRES, 1000),
        (METRES[:, :, None], 1000),
        (png(DEPTH), 1),
        (png(np.repeat(DEPTH[:, :, None], 3, axis=2)), 1),
        (tiff(DEPTH), 1),
        (tiff(METRES), 1000),
        (tiff(DEPTH, compression="tiff_lzw"), 1),
    ],
)
def test_depth_of_any_kind_becomes_the_same_millimetres(frame: Any, scale: float | None) -> None:
    np.testing.assert_array_equal(convert(frame, scale=scale), DEPTH)


def test_floats_in_the_channels_of_a_png_are_read_by_their_bits() -> None:
    np.testing.assert_array_equal(convert(float_png(METRES), scale=1000, is_float=True), DEPTH)
    num_missing = METRES.copy()
    num_missing[2, 3], num_missing[0, 0] = np.nan, np.inf
    actual = convert(float_png(num_missing), scale=1000, is_float=True)
    assert actual[2, 3] == actual[0, 0] == 0
    assert (actual == DEPTH).sum() == DEPTH.size - 2


def test_what_is_no_measurement_is_zero() -> None:
    values = np.array([[np.nan, np.inf, -np.inf, -0.001, -3, 0, 65.535, 65.5356, 1e30, 0.0004]], np.float64)
    assert convert(values, scale=1000).tolist() == [[0, 0, 0, 0, 0, 0, 65535, 0, 0, 0]]
    assert convert(np.array([[-1, 0, 65535, 65536, 1 << 40]])).tolist() == [[0, 0, 65535, 0, 0]]


def test_another_unit_is_rounded_to_millimetres() -> None:
    stored = np.array([[0, 1, 2, 1024, 65535]], np.uint16)
    assert convert(stored, scale=1000 / 1024).tolist() == [[0, 1, 2, 1000, 63999]]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (CorruptFrame("it is gone"), "it is gone"),
        (jpeg(np.zeros((6, 8, 3), np.uint8)), "neither PNG nor TIFF"),
        (b"", "neither PNG nor TIFF"),
        (png(np.zeros((6, 8), np.uint8)), "uint8"),
        (png(np.zeros((6, 8, 4), np.uint8)), "uint8"),
        (np.zeros((6, 8), bool), "bool"),
        (np.zeros((6, 8), np.uint8), "uint8"),
        (np.dstack([DEPTH, DEPTH, DEPTH + 1]), "its channels differ"),
        (np.zeros((0, 8), np.uint16), "empty"),
        (np.zeros((6, 8, 0), np.uint16), "empty"),
        (np.zeros(8, np.uint16), "no depth map"),
        (png(DEPTH)[:-30], "PNG"),
        (tiff(DEPTH)[:-20], "TIFF"),
        (tiff(np.zeros((6, 8, 3), np.uint8)), "uint8"),
    ],
)
def test_what_is_no_depth_is_damage(frame: Any, message: str) -> None:
    with pytest.raises(CorruptFrame, match=message):
        convert(frame)


def test_sizes_that_would_take_much_memory_are_damage() -> None:
    header = struct.pack(">IIBBBBB", 1 << 14, 1 << 14, 16, 0, 0, 0, 0)
    chunk = struct.pack(">I4s", len(header), b"IHDR") + header
    bomb = b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", zlib.crc32(chunk[4:]))
    with pytest.raises(CorruptFrame, match="16384x16384"):
        convert(bomb)
    large = tiff(np.zeros((1, 1), np.uint16))
    width = large.index(struct.pack("<HHI", 256, 4, 1))
    with pytest.raises(CorruptFrame, match=re.escape("TIFF") + "|claims"):
        convert(large[: width + 8] + struct.pack("<I", 1 << 30) + large[width + 12 :])


def test_each_value_is_the_one_under_its_centre() -> None:
    values = np.arange(12).reshape(3, 4)
    assert scale_nearest(values, 3, 4).tolist() == values.tolist()
    assert scale_nearest(values, 6, 8)[::2, 1::2].tolist() == values.tolist()
    assert scale_nearest(values, 1, 2).tolist() == [[5, 7]]


@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("size", [(4, 4), (9, 5), (32, 32), (1, 1)])
def test_resizing_makes_no_new_depth(resize: Any, size: tuple[int, int]) -> None:
    actual = convert(DEPTH, FramePolicy(size=size, resize=resize))
    assert actual.shape == size
    assert set(actual.ravel().tolist()) <= {0, *DEPTH.ravel().tolist()}
    assert (resize == "pad") or actual.all()


def test_depth_is_cut_and_padded_as_its_picture_is() -> None:
    assert convert(DEPTH, FramePolicy(size=(6, 6), resize="crop")).tolist() == DEPTH[:, 1:7].tolist()
    padded = convert(DEPTH, FramePolicy(size=(8, 8), resize="pad"))
    assert padded[1:7].tolist() == DEPTH.tolist()
    assert not padded[[0, 7]].any()
