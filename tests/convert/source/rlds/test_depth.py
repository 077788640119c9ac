"""Depth in RLDS records: numbers and compressed tensors become frames, and damage has its place."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from tensorflow_datasets.proto import tf_example_pb2

from convert.errors import CorruptFrame, MalformedEpisode
from convert.source.features import Feature
from convert.source.rlds.parser import EpisodeParser

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


def test_an_integer_that_does_not_fit_is_a_hole_of_its_step() -> None:
    numbers = np.arange(24)
    numbers[13] = 65536
    result = frames(camera(dtype="uint16"), int64_list=numbers)
    assert [isinstance(frame, CorruptFrame) for frame in result] == [False, False, True, False]
    assert "do not fit uint16" in str(result[2])


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
