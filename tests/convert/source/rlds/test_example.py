"""Records whose numbers are decoded only when they are read."""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorflow_datasets.proto import tf_example_pb2, tf_feature_pb2

from convert.errors import CorruptFrame, MalformedEpisode
from convert.source.features import Feature
from convert.source.rlds import example
from convert.source.rlds.example import count_integers, parse_example, read_floats, read_integers
from convert.source.rlds.parser import EpisodeParser

RAW = Feature(path="steps/image", kind="tensor", level="step", shape=(2, 3, 3), dtype="uint8")
INTEGERS = st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 300)), max_size=60)


def record(**features: tf_feature_pb2.Feature) -> bytes:
    result = {f"steps/{name}": feature for name, feature in features.items()}
    content: bytes = tf_example_pb2.Example(features=tf_feature_pb2.Features(feature=result)).SerializeToString()
    return content


def integers(values: Iterable[int]) -> tf_feature_pb2.Feature:
    return tf_feature_pb2.Feature(int64_list=tf_feature_pb2.Int64List(value=list(values)))


def delimited(field: int, payload: bytes) -> bytes:
    size, length = len(payload), b""
    while size >= 128:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([field << 3 | 2]) + length + bytes([size]) + payload


def record_of(name: str, kind: int, content: bytes) -> bytes:
    """A record of one feature of the steps, whose list has the content on the wire."""
    feature = delimited(1, f"steps/{name}".encode()) + delimited(2, delimited(kind, content))
    return delimited(1, delimited(1, feature))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(INTEGERS)
def test_integers_of_any_size_are_read_in_blocks_of_any_size(
    monkeypatch: pytest.MonkeyPatch, values: list[int]
) -> None:
    monkeypatch.setattr(example, "_BLOCK_BYTES", 11)
    numbers = parse_example(record(x=integers(values)))["steps/x"].int64_list
    assert [number for block in read_integers(numbers, name="x") for number in block.tolist()] == values
    assert count_integers(numbers, name="x") == len(values)


def test_lists_that_are_written_number_by_number_are_read_too() -> None:
    numbers = parse_example(record_of("x", 3, b"\x08\x05\x08\xac\x02"))["steps/x"].int64_list
    assert np.concatenate(list(read_integers(numbers, name="x"))).tolist() == [5, 300]
    floats = np.array([1.5, -2], "<f4")
    content = b"".join(b"\x0d" + number.tobytes() for number in floats)
    assert read_floats(parse_example(record_of("x", 2, content))["steps/x"].float_list, name="x").tolist() == [1.5, -2]


@pytest.mark.parametrize("packed", [b"\x81" * 10 + b"\x01", b"\x01\x81"], ids=["too long", "cut short"])
def test_an_integer_that_no_writer_writes_is_malformed(packed: bytes) -> None:
    with pytest.raises(
        MalformedEpisode, match="steps/image: an integer of more than 10 bytes, or one that is cut short"
    ):
        EpisodeParser([RAW], ()).parse(record_of("image", 3, delimited(1, packed)))


def test_floats_that_are_cut_short_are_malformed() -> None:
    floats = parse_example(record_of("x", 2, delimited(1, bytes(6))))["steps/x"].float_list
    with pytest.raises(MalformedEpisode, match="x: 6 bytes of floats, expected a multiple of 4"):
        read_floats(floats, name="x")


def test_a_raw_frame_with_a_number_that_is_no_pixel_is_corrupt_and_the_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(example, "_BLOCK_BYTES", 13)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 2, 3, 3))
    pixels[1, 0, 2, 1] = 256
    episode = EpisodeParser([RAW], ()).parse(record(image=integers(pixels.ravel().tolist())))
    first, second, third = episode.frames
    assert episode.num_steps == 3
    assert isinstance(second, CorruptFrame)
    assert "256 do not fit uint8" in str(second)
    np.testing.assert_array_equal(np.array([first, third]), pixels[[0, 2]])


METRES = np.arange(24, dtype=np.float32).reshape(4, 2, 3) / 7


def camera(**more: Any) -> Feature:
    arguments: dict[str, Any] = {"kind": "tensor", "level": "step", "shape": (2, 3), "dtype": "float32", **more}
    return Feature(path="steps/depth", **arguments)


def frames(feature: Feature, **lists: Any) -> list[Any]:
    proto = tf_example_pb2.Example()
    stored = proto.features.feature[feature.path]
    for name, values in lists.items():
        getattr(stored, name).value.extend(values)
    return list(EpisodeParser([feature], []).parse(proto.SerializeToString()).frames)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1)])
def test_floats_are_frames(shape: tuple[int, ...]) -> None:
    result = frames(camera(shape=shape), float_list=METRES.ravel())
    np.testing.assert_array_equal(result, METRES.reshape(4, *shape))


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_integers_keep_their_type(dtype: str) -> None:
    numbers = np.arange(24).reshape(4, 2, 3) * 2700
    result = frames(camera(dtype=dtype), int64_list=numbers.ravel())
    assert {frame.dtype for frame in result} == {np.dtype(dtype)}
    np.testing.assert_array_equal(result, numbers)


@pytest.mark.parametrize("encoding", ["zlib", "bytes"])
def test_encoded_tensors_are_frames_and_a_damaged_one_is_a_hole(encoding: str) -> None:
    pack = zlib.compress if encoding == "zlib" else bytes
    stored = [pack(item.tobytes()) for item in METRES]
    stored[1] = stored[1][:10]
    result = frames(camera(encoding=encoding), bytes_list=stored)
    assert isinstance(result[1], CorruptFrame)
    np.testing.assert_array_equal([result[0], *result[2:]], METRES[[0, 2, 3]])


@pytest.mark.parametrize(
    ("feature", "lists", "message"),
    [
        (camera(), {"float_list": range(7)}, "7 values are not whole frames"),
        (camera(dtype="uint16"), {"float_list": range(6)}, "expected uint16, found floats"),
        (camera(shape=(2, None)), {"float_list": range(6)}, "not whole frames"),
        (camera(kind="image", dtype="uint16"), {"float_list": range(6)}, "expected encoded images, found numbers"),
    ],
)
def test_what_does_not_fit_its_declaration_is_refused(feature: Feature, lists: Any, message: str) -> None:
    with pytest.raises(MalformedEpisode, match=message):
        frames(feature, **lists)


@pytest.mark.long
def test_raw_frames_take_about_the_memory_of_their_record(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 128, 24 << 20, dtype=np.uint8).tobytes()
    path = tmp_path / "record"
    path.write_bytes(record_of("image", 3, delimited(1, pixels)))
    program = """if True:
        import sys
        from convert.source.features import Feature
        from convert.source.rlds.parser import EpisodeParser
        from tests.fixtures.faults.memory_limit import peak_bytes

        camera = Feature(path="steps/image", kind="tensor", level="step", shape=(256, 256, 3), dtype="uint8")
        before = peak_bytes()
        record = open(sys.argv[1], "rb").read()
        frames = sum(frame.shape == (256, 256, 3) for frame in EpisodeParser([camera], ()).parse(record).frames)
        print(frames, (peak_bytes() - before) / len(record))
    """
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True)
    frames, times = done.stdout.split()
    assert int(frames) == (24 << 20) // (256 * 256 * 3)
    assert float(times) < 4.5
