"""Chunks of video are a function of their frames, one after the other, and what plays video plays them."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.frame import PictureType

from convert.shard.images import EncodedFrame, FramePolicy
from convert.shard.video import CRF, encode_chunk
from stream.base.errors import FormatError
from stream.format.video import VIDEO_CODECS, VideoCodec, decode_all, decode_chunk, video_codec
from tests.fixtures.moving_pictures import moving_pictures, psnr

SIZE = (64, 80)


def encode(
    codec: VideoCodec, frames: Sequence[np.ndarray | None], *, crf: int | None = None
) -> tuple[bytes, list[bool]]:
    def encoded(pixels: np.ndarray | None) -> EncodedFrame | None:
        if pixels is None:
            return None
        height, width, _ = pixels.shape
        return EncodedFrame(data=b"", size=(height, width), source_size=(height, width), passed=False, video=pixels)

    policy = FramePolicy(codec=codec, gop=len(frames), crf=crf or CRF[codec])
    chunk, held = encode_chunk(map(encoded, frames), policy)
    assert chunk is not None
    return chunk, held


@pytest.fixture(scope="module", params=VIDEO_CODECS)
def codec(request: pytest.FixtureRequest) -> VideoCodec:
    return request.param


@pytest.fixture(scope="module")
def chunk(codec: VideoCodec) -> bytes:
    return encode(codec, moving_pictures(8), crf=18)[0]


def test_a_chunk_has_its_frames_in_order_and_as_bright_as_they_were(codec: VideoCodec, chunk: bytes) -> None:
    frames = moving_pictures(8)
    decoded = list(decode_all(chunk, [SIZE]))
    assert video_codec(chunk) == codec
    assert len(decoded) == len(frames)
    for number, (frame, pixels) in enumerate(zip(frames, decoded, strict=True)):
        assert psnr(frame, pixels) > 35
        assert psnr(frame, pixels) == max(psnr(item, pixels) for item in frames), number
        assert np.abs((pixels.astype(float) - frame).mean(axis=(0, 1))).max() < 1


def test_the_same_frames_give_the_same_bytes_and_nothing_about_the_encoder(codec: VideoCodec, chunk: bytes) -> None:
    assert encode(codec, moving_pictures(8), crf=18)[0] == chunk
    assert b"x264" not in chunk


def test_a_hole_shows_the_frame_before_or_the_first_one(codec: VideoCodec) -> None:
    first, second, third = moving_pictures(3)
    chunk, held = encode(codec, [None, first, None, second, third, None])
    assert held == [False, True, False, True, True, False]
    decoded = decode_all(chunk, [SIZE])
    for frame, pixels in zip([first, first, first, second, third, third], decoded, strict=True):
        assert psnr(frame, pixels) > 35


def test_holes_alone_are_no_chunk() -> None:
    assert encode_chunk([None, None], FramePolicy(codec="h264", gop=2, crf=18)) == (None, [False, False])


@pytest.mark.parametrize("size", [(63, 81), (64, 17), (5, 3), (1, 1)])
def test_odd_and_small_frames_keep_their_size(codec: VideoCodec, size: tuple[int, int]) -> None:
    frames = moving_pictures(2, size=size)
    chunk, _ = encode(codec, frames)
    for frame, pixels in zip(frames, decode_all(chunk, [(256, 256), size]), strict=True):
        assert pixels.shape == frame.shape
        assert psnr(frame, pixels) > 20


@pytest.mark.parametrize("count", [1, 64])
def test_a_chunk_has_one_frame_or_many(codec: VideoCodec, count: int) -> None:
    frames = moving_pictures(count, size=(32, 32))
    chunk, _ = encode(codec, frames)
    assert len(list(decode_all(chunk, [(32, 32)]))) == count


@pytest.mark.parametrize(
    ("number", "sizes", "text"),
    [(8, [SIZE], "holds 8 frames, expected 9 or more"), (0, [(64, 64)], "a frame is 64x80, the manifest says 64x64")],
)
def test_another_frame_than_there_is_is_an_error(
    chunk: bytes, number: int, sizes: list[tuple[int, int]], text: str
) -> None:
    with pytest.raises(FormatError, match=text):
        decode_chunk(chunk, number, sizes)


def test_what_is_no_chunk_is_an_error() -> None:
    with pytest.raises(FormatError, match="4 bytes that are not a chunk of video, starting with b'FRM1'"):
        decode_chunk(b"FRM1", 0, [SIZE])


def test_a_chunk_says_its_colours_and_has_one_key_frame_whatever_it_shows(codec: VideoCodec) -> None:
    # A camera that switches to another scene.
    chunk, _ = encode(codec, [*moving_pictures(5), *moving_pictures(6, seed=9)])
    with av.open(io.BytesIO(chunk), "r", format={"h264": "h264", "av1": "obu"}[codec]) as source:
        frames = list(source.decode(video=0))
    assert [PictureType(frame.pict_type) for frame in frames] == [PictureType.I] + [PictureType.P] * 10
    assert [frame.key_frame for frame in frames] == [True] + [False] * 10
    for frame in frames:
        assert frame.format.name == "yuv420p"
        # BT.601 and the limited range, in the numbers of ITU-T H.273.
        assert (frame.colorspace, frame.color_range) == (5, 1)


@pytest.mark.skipif(shutil.which("ffprobe") is None, reason="needs ffmpeg")
def test_ffmpeg_plays_a_chunk_and_knows_its_colours(codec: VideoCodec, chunk: bytes, tmp_path: Path) -> None:
    path = tmp_path / "chunk"
    path.write_bytes(chunk)
    form = {"h264": "h264", "av1": "obu"}[codec]
    command = ["ffprobe", "-v", "error", "-f", form, "-count_frames", "-show_streams", "-of", "json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (stream,) = json.loads(done.stdout)["streams"]
    assert stream["codec_name"] == codec
    assert stream["nb_read_frames"] == "8"
    assert (stream["pix_fmt"], stream["color_range"], stream["color_space"]) == ("yuv420p", "tv", "bt470bg")
    assert not done.stderr


def test_an_encoder_leaves_the_scheduling_of_the_process_as_it_is(codec: VideoCodec) -> None:
    """Root may make threads real-time, and SVT-AV1 does: without this a conversion in a container stops all else."""
    program = (
        "import contextlib, os, numpy as np\n"
        "from tests.convert.shard.test_video import encode\n"
        f"encode({codec!r}, [np.zeros((64, 64, 3), np.uint8)] * 3)\n"
        "schedulers = set()\n"
        "for thread in os.listdir('/proc/self/task'):\n"
        "    with contextlib.suppress(ProcessLookupError):  # one of the encoder may end meanwhile\n"
        "        schedulers.add(os.sched_getscheduler(int(thread)))\n"
        "print(schedulers)"
    )
    folder = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{{{os.SCHED_OTHER}}}", done.stderr
