"""Decoding of chunks one after the other: no chunk changes the frames, or the error, of another."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

from convert.shard.images import FramePolicy, convert_frame
from convert.shard.record_file import encode_record
from convert.shard.video import encode_chunk
from stream.base.errors import FormatError
from stream.format import video
from stream.format.frame import CODECS, Codec, StoredCamera, decode_frame
from stream.format.index import SplitIndex
from stream.format.video import VIDEO_CODECS, VideoCodec, coded_sizes, decode_all, decode_chunk
from tests.fixtures.moving_pictures import moving_pictures, psnr

SIZES = ((100, 100), (104, 108), (63, 81), (33, 41), (97, 111))
"""The first two, and the last one, are the same in whole macroblocks of 16 pixels."""
COUNT = 5


def chunk_of(codec: VideoCodec, frames: Sequence[np.ndarray]) -> bytes:
    policy = FramePolicy(size=None, codec=codec, gop=len(frames), crf=12)
    chunk, _ = encode_chunk([convert_frame(frame, policy, channels="rgb") for frame in frames], policy)
    assert chunk is not None
    return chunk


def records_of(codec: Codec, frames: Sequence[np.ndarray]) -> list[bytes]:
    """Return the record of each frame; the frames of a chunk share theirs."""
    if codec in VIDEO_CODECS:
        return [chunk_of(codec, frames)] * len(frames)
    policy = FramePolicy(size=None, codec=codec)
    return [encode_record([convert_frame(frame, policy, channels="rgb").data]) for frame in frames]


def decode_alone(chunk: bytes, size: tuple[int, int]) -> list[np.ndarray]:
    """Decode a chunk by another way: as a file of its own that FFmpeg's demuxer reads."""
    form = "h264" if chunk.startswith(b"\0\0\0\1") else "obu"
    with av.open(io.BytesIO(chunk), "r", format=form) as source:
        frames = [frame.to_ndarray(format="rgb24") for frame in source.decode(video=0)]
    return [np.minimum(frame[: size[0], : size[1]], 254) + 1 for frame in frames]


@pytest.mark.parametrize("codec", CODECS)
def test_frames_of_chunks_in_any_order_are_of_the_size_of_their_chunk(codec: Codec) -> None:
    pictures = [moving_pictures(COUNT, size=size, seed=seed) for seed, size in enumerate(SIZES)]
    records = [records_of(codec, frames) for frames in pictures]
    camera = StoredCamera("image", "primary", SIZES, codec=codec, gop=COUNT if codec in VIDEO_CODECS else 1)
    order = np.random.default_rng(0).permutation([(n, t) for n in range(len(SIZES)) for t in range(COUNT)] * 3)
    # The smaller of two sizes that are the same in macroblocks comes first.
    for number, step in [[0, 0], *order.tolist()]:
        position = step if codec in VIDEO_CODECS else 0
        pixels = decode_frame(camera.frame(records[number][step], position))
        assert pixels.shape == (*SIZES[number], 3)
        likeness = [psnr(pixels, chunk) for chunk in pictures[number]]
        assert likeness[step] == max(likeness) > 30
        if codec in VIDEO_CODECS:
            np.testing.assert_array_equal(pixels, decode_alone(records[number][step], SIZES[number])[step])


@pytest.mark.parametrize("codec", VIDEO_CODECS)
def test_a_damaged_chunk_gives_the_same_after_any_other_chunk_and_again(codec: VideoCodec) -> None:
    chunks = [chunk_of(codec, moving_pictures(3, size=size, seed=seed)) for seed, size in enumerate(SIZES[:2])]
    random = np.random.default_rng(3)
    for turn in range(60):
        damaged = bytearray(chunks[turn % 2])
        # The parameters of the stream are in front.
        at = int(random.integers(4, 60 if turn % 3 else len(damaged)))
        if turn % 5:
            damaged[at] ^= 1 << int(random.integers(8))
        else:
            del damaged[at : at + 20]
        outcomes = []
        for before in (None, None, *chunks):
            if before is not None:
                assert len(list(decode_all(before, SIZES))) == 3
            outcomes.append(outcome(bytes(damaged)))
        assert outcomes == outcomes[:1] * 4, turn


def outcome(chunk: bytes) -> list[str | bytes]:
    """Return the frames of a chunk, and the error that ends them."""
    decoded: list[str | bytes] = []
    try:
        decoded += [pixels.tobytes() for pixels in decode_all(chunk, SIZES)]
    except FormatError as error:
        decoded.append(str(error))
    return decoded


def test_a_frame_that_cannot_be_decoded_gives_the_same_error_again() -> None:
    chunk = chunk_of("h264", moving_pictures(4, size=(64, 80)))
    middle = chunk.rindex(b"\0\0\1")
    damaged = chunk[: middle + 12] + bytes(len(chunk) - middle - 12)
    with pytest.raises(FormatError) as first:
        decode_chunk(damaged, 3, [(64, 80)])
    for _ in range(2):
        with pytest.raises(FormatError) as repeated:
            decode_chunk(damaged, 3, [(64, 80)])
        assert str(repeated.value) == str(first.value)


def test_a_chunk_without_the_parameters_of_its_stream_is_an_error_after_a_complete_one() -> None:
    chunk = chunk_of("h264", moving_pictures(2, size=(64, 80)))
    assert len(list(decode_all(chunk, [(64, 80)]))) == 2
    slices = chunk[:4] + chunk[chunk.index(b"\0\0\1\x65") + 3 :]
    with pytest.raises(FormatError):
        decode_chunk(slices, 0, [(64, 80)])


@pytest.mark.parametrize("codec", VIDEO_CODECS)
@pytest.mark.parametrize("level", [0, 255])
def test_black_and_white_stay_black_and_white(codec: VideoCodec, level: int) -> None:
    frames = [np.full((32, 48, 3), level, np.uint8)] * 2
    for pixels in decode_all(chunk_of(codec, frames), [(32, 48)]):
        assert np.abs(pixels.astype(int) - level).max() <= 1


@pytest.mark.parametrize("codec", VIDEO_CODECS)
def test_frames_that_are_read_in_order_are_decoded_once(codec: VideoCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = chunk_of(codec, moving_pictures(6, size=(32, 48)))
    decode, starts = video._Decoder._decoded, []

    def decode_from_the_start(decoder: video._Decoder, content: bytes) -> Iterator[Any]:
        starts.append(content)
        return decode(decoder, content)

    monkeypatch.setattr(video._Decoder, "_decoded", decode_from_the_start)
    for number in (0, 1, 3, 5):
        decode_chunk(chunk, number, [(32, 48)])
    assert starts == [chunk]
    # An earlier frame, and the same one again, need the frames before them.
    decode_chunk(chunk, 2, [(32, 48)])
    decode_chunk(chunk, 2, [(32, 48)])
    assert starts == [chunk] * 3


@pytest.mark.parametrize("codec", VIDEO_CODECS)
@pytest.mark.parametrize("order", [SIZES[:2], SIZES[1::-1]], ids=["growing", "shrinking"])
def test_a_chunk_whose_frames_change_their_size_is_an_error(
    codec: VideoCodec, order: Sequence[tuple[int, int]]
) -> None:
    joined = b"".join(chunk_of(codec, moving_pictures(2, size=size)) for size in order)
    with pytest.raises(FormatError, match=r"a frame is 1.*, its chunk says 1"):
        list(decode_all(joined, SIZES))


def test_a_frame_whose_damage_the_decoder_conceals_is_an_error() -> None:
    chunk = chunk_of("h264", moving_pictures(2, size=(64, 80)))
    first = chunk.index(b"\0\0\1\x65") + 4
    errors = []
    for bit in range(8 * first, 8 * (first + 180)):
        damaged = bytearray(chunk)
        damaged[bit // 8] ^= 128 >> bit % 8
        try:
            list(decode_all(bytes(damaged), [(64, 80)]))
        except FormatError as error:
            errors.append(str(error))
    # Most flips are errors of the decoder; about one in a hundred is a picture that it has completed by guessing.
    assert f"chunk of {len(chunk)} bytes: frame 0 is damaged" in errors


def test_an_av1_stream_is_cut_before_each_temporal_delimiter() -> None:
    chunk = chunk_of("av1", moving_pictures(4, size=(32, 48)))
    units = list(video._temporal_units(chunk))
    assert b"".join(units) == chunk
    assert [unit[:2] for unit in units] == [b"\x12\0"] * 4
    # An OBU with an extension, one whose size takes two bytes, and one without a size, which holds all that follows.
    units = [b"\x12\0\x36\x08\x03abc", b"\x12\0\x32\x80\x01" + bytes(128), b"\x12\0\x30de\x12\0"]
    assert list(video._temporal_units(b"".join(units))) == units


def test_a_size_is_known_by_the_one_that_is_encoded_or_cannot_be_told_apart() -> None:
    assert coded_sizes([(61, 83), (64, 64), (61, 83)]) == {(62, 84): (61, 83), (64, 64): (64, 64)}
    with pytest.raises(FormatError, match="frames of 61x83 and 62x84 cannot be told apart"):
        coded_sizes([(62, 84), (61, 83)])


def test_rows_of_a_chunk_share_the_number_of_its_record_and_holes_have_their_own() -> None:
    # The first row of each chunk is a hole, which is written after its chunk.
    positions = np.array([200, 100, 100, 400, 300, 300, 50, 60])
    index = SimpleNamespace(
        shards=SimpleNamespace(first_records=np.array([0, 6, 8])),
        records=SimpleNamespace(array={"position": positions}.__getitem__),
    )
    numbers = [SplitIndex.record_number(index, row) for row in range(8)]  # type: ignore[arg-type]
    assert numbers == [1, 0, 0, 3, 2, 2, 0, 1]
