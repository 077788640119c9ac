"""Plain values become features and episodes; what does not fit the first episode is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convert.errors import CorruptFrame, DamagedEpisode, MalformedEpisode
from convert.shard.images import encode_jpeg
from convert.source.episode import Episode
from convert.source.files.plain import PlainEpisode, infer_features, read_plain
from convert.source.protocol import ReadRequest
from convert.source.python.dataset import flatten

PIXELS = np.arange(3 * 4 * 6 * 3, dtype=np.uint8).reshape(3, 4, 6, 3)
JPEGS = [encode_jpeg(pixels, 95) for pixels in PIXELS]


def plain(*, episode: dict[str, Any] | None = None, **steps: Any) -> PlainEpisode:
    return PlainEpisode(steps, episode or {})


def read(result: PlainEpisode, first: PlainEpisode | None = None) -> Episode:
    features = infer_features(first or result).values()
    cameras = tuple(item for item in features if item.kind == "image")
    request = ReadRequest(cameras=cameras, features=tuple(item for item in features if item not in cameras))
    return read_plain(result, request)


@pytest.mark.parametrize(
    ("values", "kind", "shape", "dtype"),
    [
        (PIXELS, "image", (4, 6, 3), "uint8"),
        (PIXELS[..., :1], "image", (4, 6, 1), "uint8"),
        (JPEGS, "image", (None, None, 3), "uint8"),
        (PIXELS.astype(np.int64), "tensor", (4, 6, 3), "int64"),
        (np.zeros((3, 7), ">f8"), "tensor", (7,), "float64"),
        (np.zeros((3, 7), np.uint8), "tensor", (7,), "uint8"),
        ([1.5, 2, 3], "tensor", (), "float64"),
        ([True, False, True], "tensor", (), "bool"),
        (["a", "b", "c"], "tensor", (), "string"),
        (np.array([b"a", b"b", b"c"]), "tensor", (), "string"),
        (np.array([b"a", b"b", b"c"], object), "tensor", (), "string"),
    ],
)
def test_a_value_tells_its_feature(values: Any, kind: str, shape: tuple[int, ...], dtype: str) -> None:
    (feature,) = infer_features(plain(x=values)).values()
    assert (feature.path, feature.kind, feature.level) == ("steps/x", kind, "step")
    assert (feature.shape, feature.dtype) == (shape, dtype)


@pytest.mark.parametrize("value", [5, 2.5, True, "text", b"text", np.float32(1), np.arange(4)])
def test_a_value_of_the_episode_is_one_row(value: Any) -> None:
    (column,) = read(plain(x=[1, 2], episode={"it": value})).episode.values()
    expected = value.decode() if isinstance(value, bytes) else value
    assert column.rows == 1 and column.values is not None
    assert np.array_equal(np.array(column.values).squeeze(), expected)


def test_numbers_texts_and_pictures_come_as_they_were() -> None:
    numbers = np.linspace(0, 1, 21).reshape(3, 7)
    result = read(plain(image=PIXELS, jpeg=JPEGS, action=numbers, text=["a", "", "ü"]))
    assert result.num_steps == 3
    action = result.steps["action"].values
    assert isinstance(action, np.ndarray) and action.dtype == np.float64
    assert np.array_equal(action, numbers.ravel())
    assert result.steps["text"].values == ["a", "", "ü"]
    images, jpegs = result.cameras
    assert images is not None and jpegs is not None
    assert not isinstance(images, DamagedEpisode) and not isinstance(jpegs, DamagedEpisode)
    assert np.array_equal(np.array(list(images)), PIXELS)
    assert list(jpegs) == JPEGS


class Chunked:
    """An array on a disk that is read in slices; some cannot be read."""

    shape, dtype, chunks = PIXELS.shape, PIXELS.dtype, (2, 4, 6, 3)

    def __init__(self) -> None:
        self.asked: list[slice] = []

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, part: slice) -> np.ndarray:
        self.asked.append(part)
        if part.start == 2:
            raise OSError("the checksum is wrong")
        return PIXELS[part]


def test_pictures_on_a_disk_are_read_by_chunks_and_what_cannot_be_read_is_a_hole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("convert.source.files.plain._BLOCK", 1)
    array = Chunked()
    (camera,) = infer_features(plain(image=PIXELS)).values()
    (frames,) = read_plain(plain(image=array), ReadRequest(cameras=(camera,))).cameras
    assert not array.asked
    assert frames is not None and not isinstance(frames, DamagedEpisode)
    result = list(frames)
    assert [(part.start, part.stop) for part in array.asked] == [(0, 2), (2, 3)]
    assert np.array_equal(np.array(result[:2]), PIXELS[:2])
    assert len(result) == 3 and isinstance(result[2], CorruptFrame)
    assert "steps/image: cannot be read (the checksum is wrong)" in str(result[2])


FIRST = plain(image=PIXELS, action=np.zeros((3, 2), np.float32), number=[1, 2, 3], text=["a", "b", "c"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"action": np.zeros((2, 2), np.float32)}, "action has 2 values and image has 3, expected one a step"),
        ({"action": np.zeros((3, 5), np.float32)}, r"float32 \(5,\), in other episodes it is float32 \(2,\)"),
        ({"number": [1, 2, 2.5]}, "number is float64, which does not fit the int64 of other episodes"),
        ({"number": [1, 2, float("nan")]}, "number is float64, which does not fit the int64"),
        ({"text": [1, 2, 3]}, r"text is int64 \(\), in other episodes it is string \(\)"),
        ({"action": [[1, 2], [1], [2]]}, "action has values of differing shapes"),
        ({"action": [{}, {}, {}]}, "action is object, expected numbers"),
        ({"action": 5}, "action is int 5, expected an array or a list with a value for each step"),
        ({"image": PIXELS.astype(float)}, r"image is float64 \(3, 4, 6, 3\), expected pixels of uint8"),
    ],
)
def test_an_episode_that_differs_from_the_first_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedEpisode, match=message):
        read(PlainEpisode({**FIRST.steps, **changed}, {}), FIRST)


def test_a_number_of_another_type_that_fits_is_taken_and_nan_stays_nan() -> None:
    numbers = {"action": np.full((3, 2), np.nan), "number": np.array([1, 2, 3], np.int16)}
    steps = read(PlainEpisode({**FIRST.steps, **numbers}, {}), FIRST).steps
    action, number = steps["action"].values, steps["number"].values
    assert isinstance(action, np.ndarray) and action.dtype == np.float32 and np.isnan(action).all()
    assert isinstance(number, np.ndarray) and number.tolist() == [1, 2, 3]


def test_what_an_episode_lacks_is_absent_and_a_picture_that_is_none_is_a_corrupt_frame() -> None:
    result = read(plain(number=[1, 2]), FIRST)
    assert (result.num_steps, result.steps["action"].values, result.cameras) == (2, None, [None])
    (frames,) = read(plain(jpeg=[JPEGS[0], None]), plain(jpeg=JPEGS)).cameras
    first, second = list(frames)  # type: ignore[arg-type]
    assert first == JPEGS[0] and isinstance(second, CorruptFrame)


def test_nested_names_are_joined() -> None:
    assert flatten({"a": {"b": 1, "c": {"d": 2}}, 5: 3}, context="steps") == {"a/b": 1, "a/c/d": 2, "5": 3}
    with pytest.raises(MalformedEpisode, match=r"steps is list \[1\], expected a mapping"):
        flatten([1], context="steps")
