import io
import struct
import time
import zlib
from typing import Any, Literal

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from convert.errors import CorruptFrame
from convert.picture import decode_frame
from convert.shard.images import EncodedFrame, FramePolicy, convert_frame, encode_jpeg, resize
from tests.fixtures.datasets.rlds_dataset import jpeg, picture, png
from tests.fixtures.faults.memory_limit import memory_limit

RNG = np.random.default_rng(5)
PIXELS = picture(RNG, (48, 64))
NOISE = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)
NATIVE = FramePolicy(size=None)


def convert(frame: bytes | np.ndarray, policy: FramePolicy = NATIVE, **options: Any) -> EncodedFrame:
    return convert_frame(frame, policy, **{"channels": "rgb", **options})


def decode(data: bytes) -> np.ndarray:
    """Decode with Pillow, which shares no code with the tested functions."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def with_pillow(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def difference(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first.astype(int) - second.astype(int)).mean())


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_that_claims(width: int, height: int) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


def jpeg_that_claims(width: int, height: int) -> bytes:
    data = bytearray(jpeg(PIXELS))
    start = data.index(b"\xff\xc0")
    data[start + 5 : start + 9] = struct.pack(">HH", height, width)
    return bytes(data)


@pytest.mark.parametrize("policy", [NATIVE, FramePolicy(size=(48, 64)), FramePolicy(size=(48, 64), quality=5)])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 30}])
def test_a_colour_jpeg_of_the_wanted_size_passes_through_byte_for_byte(
    policy: FramePolicy, options: dict[str, Any]
) -> None:
    data = with_pillow(Image.fromarray(PIXELS), "JPEG", **options)
    assert convert(data, policy) == EncodedFrame(data=data, size=(48, 64), source_size=(48, 64), passed=True)


TRANSCODED: dict[str, tuple[bytes | np.ndarray, dict[str, Any]]] = {
    "jpeg of another size": (jpeg(PIXELS), {"policy": FramePolicy(size=(24, 32))}),
    "jpeg with swapped channels": (jpeg(PIXELS), {"channels": "bgr"}),
    "gray jpeg": (jpeg(PIXELS[:, :, 0]), {}),
    "jpeg in RGB": (with_pillow(Image.fromarray(PIXELS), "JPEG", keep_rgb=True), {}),
    "jpeg in CMYK": (with_pillow(Image.fromarray(PIXELS).convert("CMYK"), "JPEG"), {}),
    "png": (png(PIXELS), {}),
    "raw": (PIXELS, {}),
}


@pytest.mark.parametrize("case", TRANSCODED)
def test_everything_else_becomes_a_colour_jpeg(case: str) -> None:
    frame, options = TRANSCODED[case]
    done = convert(frame, **options)
    height, width, colours, subsampling = simplejpeg.decode_jpeg_header(done.data)
    assert (height, width, colours, subsampling) == (*done.size, "YCbCr", "420")
    assert not done.passed


@pytest.mark.parametrize("case", ["gray jpeg", "png", "raw", "jpeg in RGB", "jpeg in CMYK"])
def test_what_is_encoded_anew_looks_as_before(case: str) -> None:
    frame, _ = TRANSCODED[case]
    before = decode(frame) if isinstance(frame, bytes) else frame
    assert difference(decode(convert(frame).data), before) < 3


def test_swapped_channels_are_put_right_in_every_kind_of_source() -> None:
    swapped = np.ascontiguousarray(PIXELS[:, :, ::-1])
    for frame in (jpeg(swapped), png(swapped), swapped):
        assert difference(decode(convert(frame, channels="bgr").data), PIXELS) < 3


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
def test_a_png_decodes_to_its_exact_pixels(channels: Literal["rgb", "bgr"]) -> None:
    expected = NOISE if channels == "rgb" else NOISE[:, :, ::-1]
    np.testing.assert_array_equal(decode_frame(png(NOISE), channels=channels), expected)


def test_a_fourth_channel_is_dropped_and_not_blended() -> None:
    rgba = RNG.integers(0, 256, (20, 30, 4), dtype=np.uint8)
    np.testing.assert_array_equal(decode_frame(png(rgba)), rgba[:, :, :3])
    np.testing.assert_array_equal(decode_frame(rgba), rgba[:, :, :3])


def test_sixteen_bits_are_cut_to_the_upper_eight() -> None:
    deep = RNG.integers(0, 2**16, (20, 30, 3)).astype(np.uint16)
    np.testing.assert_array_equal(decode_frame(png(deep)), deep >> 8)
    np.testing.assert_array_equal(decode_frame(png(deep[:, :, 0]))[:, :, 1], deep[:, :, 0] >> 8)


@pytest.mark.parametrize(
    "frame", [png(NOISE[:, :, 0]), NOISE[:, :, 0], NOISE[:, :, :1], NOISE[:, :, [0, 2]]], ids=["png", "2-d", "1", "2"]
)
def test_gray_is_repeated(frame: bytes | np.ndarray) -> None:
    np.testing.assert_array_equal(decode_frame(frame), np.repeat(NOISE[:, :, :1], 3, axis=2))


@pytest.mark.parametrize("mode", ["P", "1", "LA"])
def test_other_kinds_of_png_decode_as_pillow_does(mode: str) -> None:
    image = Image.fromarray(NOISE).convert(mode)
    np.testing.assert_array_equal(decode_frame(with_pillow(image, "PNG")), np.asarray(image.convert("RGB")))


def test_an_orientation_in_the_metadata_does_not_turn_the_frame() -> None:
    exif = Image.Exif()
    exif[274] = 6
    for kind in ("JPEG", "PNG"):
        assert decode_frame(with_pillow(Image.fromarray(PIXELS), kind, exif=exif)).shape == (48, 64, 3)


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_shrinking_by_a_whole_factor_is_the_mean_over_blocks(factor: int) -> None:
    pixels = RNG.integers(0, 256, (8 * factor, 10 * factor, 3), dtype=np.uint8)
    blocks = pixels.reshape(8, factor, 10, factor, 3).mean(axis=(1, 3))
    assert np.abs(resize(pixels, FramePolicy(size=(8, 10))) - blocks).max() <= 0.5


def test_an_axis_that_shrinks_is_averaged_while_the_other_grows() -> None:
    pixels = np.repeat(RNG.integers(0, 256, (16, 1, 3), dtype=np.uint8), 5, axis=1)
    rows = pixels[:, :1].reshape(8, 2, 1, 3).mean(axis=1)
    assert np.abs(resize(pixels, FramePolicy(size=(8, 20))) - rows).max() <= 0.5


def test_growing_interpolates_between_the_pixels() -> None:
    ramp = np.repeat(np.arange(0, 160, 16, dtype=np.uint8)[None, :, None], 3, axis=2)
    grown = resize(np.repeat(ramp, 4, axis=0), FramePolicy(size=(8, 40)))[0, :, 0]
    assert (np.diff(grown.astype(int)) >= 0).all()
    assert (np.diff(grown.astype(int)) <= 5).all()


def test_a_frame_of_the_wanted_size_is_not_resampled() -> None:
    assert resize(NOISE, FramePolicy(size=(20, 30))) is NOISE


def marked(height: int, width: int) -> np.ndarray:
    """Gray but for a red block in the centre and a green one in the upper left corner."""
    pixels = np.full((height, width, 3), 128, np.uint8)
    pixels[height // 2 - 4 : height // 2 + 4, width // 2 - 4 : width // 2 + 4] = (255, 0, 0)
    pixels[:4, :4] = (0, 255, 0)
    return pixels


def centre_of(pixels: np.ndarray, channel: int) -> tuple[float, float] | None:
    remaining = [index for index in range(3) if index != channel]
    rows, columns = np.nonzero((pixels[:, :, channel] > 200) & (pixels[:, :, remaining].max(axis=2) < 100))
    return (float(rows.mean()), float(columns.mean())) if len(rows) else None


@pytest.mark.parametrize(("height", "width"), [(40, 80), (80, 40)])
def test_stretching_keeps_the_whole_picture(height: int, width: int) -> None:
    done = resize(marked(height, width), FramePolicy(size=(40, 40)))
    assert centre_of(done, 0) == (19.5, 19.5)
    corner = centre_of(done, 1)
    assert corner is not None
    assert max(corner) < 4


@pytest.mark.parametrize(("height", "width"), [(40, 80), (80, 40)])
def test_cropping_keeps_the_centre_and_the_proportions(height: int, width: int) -> None:
    pixels = marked(height, width)
    done = resize(pixels, FramePolicy(size=(40, 40), resize="crop"))
    top, left = (height - 40) // 2, (width - 40) // 2
    np.testing.assert_array_equal(done, pixels[top : top + 40, left : left + 40])


@pytest.mark.parametrize(("height", "width"), [(40, 80), (80, 40)])
def test_padding_puts_the_whole_picture_between_equal_black_borders(height: int, width: int) -> None:
    done = resize(np.full((height, width, 3), 200, np.uint8), FramePolicy(size=(40, 40), resize="pad"))
    bright = done.max(axis=2) > 0
    expected = np.zeros((40, 40), np.bool_)
    expected[(slice(10, 30), slice(None)) if height < width else (slice(None), slice(10, 30))] = True
    np.testing.assert_array_equal(bright, expected)
    assert (done[bright] == 200).all()


@given(
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.sampled_from(["stretch", "crop", "pad"]),
)
def test_any_size_becomes_any_other(
    have: tuple[int, int], want: tuple[int, int], how: Literal["stretch", "crop", "pad"]
) -> None:
    assert resize(np.zeros((*have, 3), np.uint8), FramePolicy(size=want, resize=how)).shape == (*want, 3)


def test_optimised_huffman_tables_are_smaller_for_the_same_pixels() -> None:
    options = [cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_JPEG_OPTIMIZE, 0]
    plain = cv2.imencode(".jpg", PIXELS[:, :, ::-1], options)[1].tobytes()
    arguments = encode_jpeg(PIXELS, 95)
    assert len(arguments) < 0.98 * len(plain)
    np.testing.assert_array_equal(decode(arguments), decode(plain))


def test_the_quality_is_that_of_the_policy() -> None:
    sizes = [len(convert(png(PIXELS), FramePolicy(size=None, quality=quality)).data) for quality in (20, 60, 95)]
    assert sizes == sorted(sizes)
    tables = Image.open(io.BytesIO(convert(png(PIXELS), FramePolicy(size=None, quality=60)).data)).quantization  # type: ignore[attr-defined]
    expected = Image.open(io.BytesIO(with_pillow(Image.fromarray(PIXELS), "JPEG", quality=60))).quantization  # type: ignore[attr-defined]
    assert tables == expected


@pytest.mark.parametrize("data", [jpeg(NOISE), png(NOISE)], ids=["jpeg", "png"])
def test_an_image_cut_anywhere_is_corrupt(data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(CorruptFrame):
            convert(data[:size])


def test_a_png_with_a_flipped_bit_is_corrupt_or_the_same_picture() -> None:
    data = png(NOISE)
    for position in range(8, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        try:
            pixels = decode_frame(bytes(damaged))
        except CorruptFrame:
            continue
        np.testing.assert_array_equal(pixels, NOISE)


IMPOSSIBLE = [png_that_claims(60_000, 60_000), png_that_claims(0, 10), png_that_claims(2**31 - 1, 1)]


@pytest.mark.parametrize("data", [*IMPOSSIBLE, jpeg_that_claims(60_000, 60_000)], ids=["png", "empty", "wide", "jpeg"])
def test_an_image_that_claims_an_impossible_size_is_refused_at_once(data: bytes) -> None:
    started = time.thread_time()
    with pytest.raises(CorruptFrame, match=r"image claims \d+x\d+; more than 67108864 pixels or none"):
        convert(data)
    assert time.thread_time() - started < 0.5


@pytest.mark.parametrize("kind", [b"hcff", b"IDAT", b"tEXt"])
def test_a_chunk_that_claims_gigabytes_takes_no_memory(kind: bytes) -> None:
    valid_root = png(NOISE)
    crafted = valid_root[:33] + struct.pack(">I", 0xFFFFFF00) + kind + valid_root[33:]
    with memory_limit(1 << 30), pytest.raises(CorruptFrame, match="the chunk at byte 33 claims 4,294,967,040 bytes"):
        convert(crafted)


@pytest.mark.parametrize("quality", [90, 101], ids=["lossy", "lossless"])
@pytest.mark.parametrize("channels", ["rgb", "bgr"])
def test_webp_is_decoded_to_its_colours(quality: int, channels: Literal["rgb", "bgr"]) -> None:
    data = webp(PIXELS, quality)
    expected = decode(data) if channels == "rgb" else decode(data)[:, :, ::-1]
    assert difference(decode_frame(data, channels=channels), expected) < 1
    assert decode(convert(data).data).shape == PIXELS.shape


@pytest.mark.parametrize("quality", [90, 101], ids=["lossy", "lossless"])
def test_a_webp_that_is_cut_short_is_corrupt(quality: int) -> None:
    data = webp(PIXELS, quality)
    for size in (12, 20, 31, len(data) // 2):
        with pytest.raises(CorruptFrame, match=r"WebP|image claims"):
            convert(data[:size])


@pytest.mark.parametrize(
    "header",
    [
        b"VP8 " + bytes(4) + bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", 16000, 16000),
        b"VP8L" + bytes(4) + b"\x2f" + struct.pack("<I", 15999 | 15999 << 14),
        b"VP8X" + bytes(4) + bytes(4) + (15999).to_bytes(3, "little") * 2,
    ],
    ids=["lossy", "lossless", "extended"],
)
def test_a_webp_that_claims_too_many_pixels_is_refused(header: bytes) -> None:
    with pytest.raises(CorruptFrame, match="image claims 16000x16000; more than 67108864 pixels or none"):
        convert(b"RIFF" + struct.pack("<I", 4 + len(header)) + b"WEBP" + header)


def webp(pixels: np.ndarray, quality: int) -> bytes:
    return cv2.imencode(".webp", pixels[:, :, ::-1], [cv2.IMWRITE_WEBP_QUALITY, quality])[1].tobytes()


@pytest.mark.parametrize(
    "data", [png_that_claims(8000, 8000), png_that_claims(1 << 21, 1), png_that_claims(1, 1 << 21)]
)
def test_an_image_that_claims_more_than_it_has_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptFrame, match="does not decode"):
        convert(data)


def test_a_size_before_the_real_header_is_not_believed() -> None:
    hidden = png_that_claims(30_000, 30_000)[8:]
    for kind in (b"tEXt", b"IHDR"):
        first = chunk(kind, struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0))
        with pytest.raises(CorruptFrame):
            convert(b"\x89PNG\r\n\x1a\n" + first + hidden)


@pytest.mark.parametrize("shape", [(4,), (2, 4, 4, 3), (0, 4, 3), (4, 4, 0)])
def test_a_raw_frame_that_is_no_picture_is_corrupt(shape: tuple[int, ...]) -> None:
    with pytest.raises(CorruptFrame, match="raw frame"):
        convert(np.zeros(shape, np.uint8))
    with pytest.raises(CorruptFrame, match="raw frame is float32"):
        convert(np.zeros((4, 4, 3), np.float32))


def test_bytes_of_another_kind_are_named_by_how_they_start() -> None:
    with pytest.raises(CorruptFrame, match=r"7 bytes that are neither JPEG, PNG nor WebP, starting with b'GIF89a!'"):
        convert(b"GIF89a!")


def test_a_frame_too_wide_for_a_jpeg_is_corrupt() -> None:
    with pytest.raises(CorruptFrame, match=r"frame of shape \(1, 70000, 3\) could not be encoded"):
        convert(np.zeros((1, 70_000, 3), np.uint8))


def convert_or_refuse(frame: bytes) -> None:
    try:
        convert(frame, FramePolicy(size=(16, 16)))
    except CorruptFrame as error:
        assert str(error)


@given(st.sampled_from([b"", b"\xff\xd8\xff", b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n"]), st.binary(max_size=200))
def test_arbitrary_bytes_are_a_frame_or_corrupt(start: bytes, remaining: bytes) -> None:
    convert_or_refuse(start + remaining)


@given(
    st.sampled_from([jpeg(NOISE), png(NOISE), jpeg(NOISE[:, :, 0]), png(PIXELS[:8, :8])]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_a_damaged_image_is_a_frame_or_corrupt(data: bytes, changes: list[tuple[float, int]]) -> None:
    damaged = bytearray(data)
    for path, value in changes:
        damaged[int(path * len(data))] = value
    convert_or_refuse(bytes(damaged))


def test_damage_is_reported_by_the_exception_only(capfd: pytest.CaptureFixture[str]) -> None:
    for data in (jpeg(NOISE), png(NOISE)):
        with pytest.raises(CorruptFrame):
            convert(data[: len(data) // 2])
    assert "WARN" not in capfd.readouterr().err
