"""Values of messages: fields by path, and pictures of every encoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from convert.errors import CorruptFrame, SourceError
from convert.source.rosbag.dataset import find
from tests.convert.source.rosbag.bags import START, Form, Sent, Types, jpeg, read_one, write

POSE = [1.0, 2.0, 3.0, 0.1, 0.2, 0.3, 0.9]


def read_feature(tmp_path: Path, form: Form, kind: str, contents: list[Any], **stream: Any) -> tuple[Any, Any]:
    """The feature of the type and its values, from messages of 10 Hz."""
    sent = [Sent("/x", kind, START, START + n * 100_000_000, content) for n, content in enumerate(contents)]
    path = write(tmp_path / "bag", form, sent)
    layout = {"rate": 10, "clock": "/x", "stamps": "receive", "features": {"x": {"topic": "/x", **stream}}}
    source = find(str(path), [], layout)
    result = read_one(source)
    return source.features["steps/x"], result.cameras.get("x", result.steps.get("x"))


def _messages(types: Types) -> dict[str, tuple[str, Any, str | None, Any, str]]:
    """By name: the type, a message, the field, its value and its dtype."""
    header, pose = types.header(START), types.pose(POSE)
    geometry = "geometry_msgs/msg/"

    def vector(*numbers: float) -> Any:
        return types.make(f"{geometry}Vector3", **dict(zip("xyz", numbers, strict=True)))

    twist = types.make(f"{geometry}Twist", linear=vector(1, 2, 3), angular=vector(4, 5, 6))
    turn = types.make(f"{geometry}Quaternion", x=0.1, y=0.2, z=0.3, w=0.9)
    transform = types.make(f"{geometry}Transform", translation=vector(1, 2, 3), rotation=turn)
    zeros = np.zeros(36)
    odometry = types.make(
        "nav_msgs/msg/Odometry",
        header=header,
        child_frame_id="b",
        pose=types.make(f"{geometry}PoseWithCovariance", pose=pose, covariance=zeros),
        twist=types.make(f"{geometry}TwistWithCovariance", twist=twist, covariance=zeros),
    )
    stamped = types.make(f"{geometry}PoseStamped", header=header, pose=pose)
    moved = types.make(f"{geometry}TransformStamped", header=header, child_frame_id="b", transform=transform)
    layout = types.make("std_msgs/msg/MultiArrayLayout", dim=[], data_offset=0)
    numbers = types.make("std_msgs/msg/Float64MultiArray", layout=layout, data=np.array([1.5, 2.5, 3.5]))
    joints = types.joints(START, [1, 2, 3])
    start = types.make("builtin_interfaces/msg/Duration", sec=0, nanosec=0)
    nothing = dict.fromkeys(("velocities", "accelerations", "effort"), np.zeros(0))
    point_values = {"positions": np.array([7.0, 8.0]), **nothing, "time_from_start": start}
    point = types.make("trajectory_msgs/msg/JointTrajectoryPoint", **point_values)
    points = types.make("trajectory_msgs/msg/JointTrajectory", header=header, joint_names=["a"], points=[point])
    return {
        "pose": (f"{geometry}PoseStamped", stamped, None, POSE, "float64"),
        "x of a pose": (f"{geometry}PoseStamped", stamped, "pose.position.x", 1.0, "float64"),
        "transform": (f"{geometry}TransformStamped", moved, None, POSE, "float64"),
        "odometry": ("nav_msgs/msg/Odometry", odometry, None, POSE, "float64"),
        "speed of odometry": ("nav_msgs/msg/Odometry", odometry, "twist.twist", [1, 2, 3, 4, 5, 6], "float64"),
        "covariance": ("nav_msgs/msg/Odometry", odometry, "pose.covariance", zeros.tolist(), "float64"),
        "twist": (f"{geometry}Twist", twist, None, [1, 2, 3, 4, 5, 6], "float64"),
        "array": ("std_msgs/msg/Float64MultiArray", numbers, None, [1.5, 2.5, 3.5], "float64"),
        "item": ("std_msgs/msg/Float64MultiArray", numbers, "data[2]", 3.5, "float64"),
        "velocity": ("sensor_msgs/msg/JointState", joints, "velocity", [10, 20, 30], "float64"),
        "trajectory": ("trajectory_msgs/msg/JointTrajectory", points, "points[0].positions", [7, 8], "float64"),
        "bool": ("std_msgs/msg/Bool", types.make("std_msgs/msg/Bool", data=True), None, True, "bool"),
        "uint16": ("std_msgs/msg/UInt16", types.make("std_msgs/msg/UInt16", data=65535), None, 65535, "uint16"),
        "float32": ("std_msgs/msg/Float32", types.make("std_msgs/msg/Float32", data=0.5), None, 0.5, "float32"),
        "text": ("std_msgs/msg/String", types.make("std_msgs/msg/String", data="é"), None, "é", "string"),
    }


@pytest.mark.parametrize("form", ["ros1", "mcap"])
@pytest.mark.parametrize("name", _messages(Types("mcap")))
def test_numbers_and_texts_are_taken_by_the_path_of_their_field(tmp_path: Path, form: Form, name: str) -> None:
    kind, message, field, expected, dtype = _messages(Types(form))[name]
    feature, values = read_feature(tmp_path, form, kind, [message] * 2, **({"field": field} if field else {}))
    assert feature.dtype == dtype and feature.shape == np.shape(expected)
    assert [value.tolist() if hasattr(value, "tolist") else value for value in values] == [expected] * 2


RANDOM = np.random.default_rng(0)
COLOURS = RANDOM.integers(0, 256, (4, 5, 4), np.uint8)
DEEP = COLOURS.astype(np.uint16) * 256 + RANDOM.integers(0, 256, COLOURS.shape, np.uint16)
DEPTHS = RANDOM.integers(0, 65536, (4, 5), np.uint16)
METRES = RANDOM.random((4, 5), np.float32)
ENCODINGS: dict[str, tuple[np.ndarray, np.ndarray]] = {
    "rgb8": (COLOURS[..., :3], COLOURS[..., :3]),
    "bgr8": (COLOURS[..., 2::-1], COLOURS[..., :3]),
    "rgba8": (COLOURS, COLOURS[..., :3]),
    "bgra8": (COLOURS[..., [2, 1, 0, 3]], COLOURS[..., :3]),
    "rgb16": (DEEP[..., :3], COLOURS[..., :3]),
    "bgr16": (DEEP[..., 2::-1], COLOURS[..., :3]),
    "rgba16": (DEEP, COLOURS[..., :3]),
    "bgra16": (DEEP[..., [2, 1, 0, 3]], COLOURS[..., :3]),
    "mono8": (COLOURS[..., :1], COLOURS[..., :1]),
    "8UC1": (COLOURS[..., :1], COLOURS[..., :1]),
    "16UC1": (DEPTHS, DEPTHS),
    "mono16": (DEPTHS, DEPTHS),
    "32FC1": (METRES, METRES),
}


@pytest.mark.parametrize("big", [False, True], ids=["little", "big"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_raw_pictures_of_every_encoding_are_read_without_the_ends_of_their_rows(
    tmp_path: Path, encoding: str, big: bool
) -> None:
    stored, expected = ENCODINGS[encoding]
    types = Types("mcap")
    messages = [types.image(START, stored, encoding, pad=pad, big=big) for pad in (0, 3)]
    feature, frames = read_feature(tmp_path, "mcap", "sensor_msgs/msg/Image", messages)
    assert (feature.kind, feature.shape, feature.dtype) == ("image", expected.shape, expected.dtype.name)
    for frame in frames:
        assert frame.dtype == expected.dtype and np.array_equal(frame, expected)


QUARTERS = np.array([[[230, 190, 40], [20, 60, 150]], [[90, 20, 200], [10, 250, 30]]])
BLOCKS = np.kron(QUARTERS, np.ones((16, 16, 1))).astype(np.uint8)
"""Four areas of one colour each, in which neither the pattern of a sensor nor shared chroma loses anything."""


def mosaic(pattern: str, scale: int) -> np.ndarray:
    """The pixels behind the colour filter of a sensor, whose pattern names the colours of two rows of two."""
    result = np.zeros(BLOCKS.shape[:2], np.uint16 if scale > 1 else np.uint8)
    for number, colour in enumerate(pattern):
        row, column = divmod(number, 2)
        result[row::2, column::2] = BLOCKS[row::2, column::2, "rgb".index(colour)] * np.uint16(scale)
    return result


def shared_chroma(*, luma_first: bool) -> np.ndarray:
    """Y of each pixel, and by turns U and V, of ITU-R BT.601 in the range of video."""
    red, green, blue = np.moveaxis(BLOCKS / 255, 2, 0)
    luma = 16 + 65.481 * red + 128.553 * green + 24.966 * blue
    chroma = 128 - 37.797 * red - 74.203 * green + 112 * blue
    chroma[:, 1::2] = (128 + 112 * red - 93.786 * green - 18.214 * blue)[:, 1::2]
    pair = (luma, chroma) if luma_first else (chroma, luma)
    return np.stack(pair, axis=2).round().astype(np.uint8)


OF_CAMERAS: dict[str, np.ndarray] = {
    **{f"bayer_{pattern}8": mosaic(pattern, 1) for pattern in ("rggb", "bggr", "gbrg", "grbg")},
    **{f"bayer_{pattern}16": mosaic(pattern, 256) for pattern in ("rggb", "bggr", "gbrg", "grbg")},
    **dict.fromkeys(("uyvy", "yuv422"), shared_chroma(luma_first=False)),
    **dict.fromkeys(("yuyv", "yuv422_yuy2"), shared_chroma(luma_first=True)),
}


@pytest.mark.parametrize("encoding", OF_CAMERAS)
def test_pictures_as_a_sensor_gives_them_become_colours(tmp_path: Path, encoding: str) -> None:
    messages = [Types("mcap").image(START, OF_CAMERAS[encoding], encoding, pad=pad) for pad in (0, 6)]
    feature, frames = read_feature(tmp_path, "mcap", "sensor_msgs/msg/Image", messages)
    assert (feature.kind, feature.shape, feature.dtype) == ("image", (32, 32, 3), "uint8")
    for frame in frames:
        differences = np.abs(frame.astype(int) - BLOCKS).reshape(2, 16, 2, 16, 3)
        assert differences[:, 2:-2, :, 2:-2].max() <= 3


def test_an_encoding_that_is_not_read_is_one_error_with_the_topic_and_the_encodings(tmp_path: Path) -> None:
    messages = [Types("mcap").image(START, COLOURS[..., :3], "8UC3")]
    message = "x: /x: pictures of encoding '8UC3' are not read, only rgb8, rgb16, bgr8, .*bayer_rggb8.*yuv422_yuy2"
    with pytest.raises(SourceError, match=message):
        read_feature(tmp_path, "mcap", "sensor_msgs/msg/Image", messages)


def test_an_odd_width_of_pixels_that_share_chroma_is_a_corrupt_frame(tmp_path: Path) -> None:
    messages = [Types("mcap").image(START, COLOURS[..., :2], "yuyv")]
    _, frames = read_feature(tmp_path, "mcap", "sensor_msgs/msg/Image", messages)
    assert isinstance(frames[0], CorruptFrame) and "/x: a picture of 4 x 5 yuyv with 10 bytes a row" in str(frames[0])


def test_an_encoding_of_the_layout_with_half_of_the_bytes_is_not_taken_for_the_true_one(tmp_path: Path) -> None:
    messages = [Types("mcap").image(START, OF_CAMERAS["yuv422_yuy2"], "yuv422_yuy2")]
    _, frames = read_feature(tmp_path, "mcap", "sensor_msgs/msg/Image", messages, encoding="mono8")
    assert isinstance(frames[0], CorruptFrame)
    assert "32 x 32 mono8 with 64 bytes a row should have 32; its message says 'yuv422_yuy2'" in str(frames[0])


def test_compressed_pictures_pass_as_they_are(tmp_path: Path) -> None:
    types, kind = Types("mcap"), "sensor_msgs/msg/CompressedImage"
    png = cv2.imencode(".png", COLOURS[..., :3])[1].tobytes()
    data = [jpeg(0), png, b"not a picture"]
    feature, frames = read_feature(tmp_path, "mcap", kind, [types.compressed(START, item) for item in data])
    assert (feature.shape, feature.dtype) == ((None, None, 3), "uint8")
    assert frames[:2] == data[:2]
    assert isinstance(frames[2], CorruptFrame) and "/x: 'rgb8; jpeg compressed bgr8': the data are no" in str(frames[2])


@pytest.mark.parametrize(
    ("form", "before"), [("16UC1; compressedDepth png", b"\0" * 12), ("16UC1; png compressed ", b"")]
)
def test_compressed_depth_is_the_png_behind_its_header(tmp_path: Path, form: str, before: bytes) -> None:
    types = Types("mcap")
    png = cv2.imencode(".png", DEPTHS)[1].tobytes()
    messages = [types.compressed(START, before + png, form)]
    feature, frames = read_feature(tmp_path, "mcap", "sensor_msgs/msg/CompressedImage", messages)
    assert (feature.kind, feature.shape, feature.dtype) == ("image", (None, None), "uint16")
    assert np.array_equal(np.asarray(cv2.imdecode(np.frombuffer(frames[0], np.uint8), cv2.IMREAD_UNCHANGED)), DEPTHS)


def test_a_picture_with_too_few_bytes_is_a_corrupt_frame(tmp_path: Path) -> None:
    types = Types("mcap")
    complete, short = (types.image(START, COLOURS[..., :3], "rgb8") for _ in range(2))
    short.data = short.data[:-1]
    _, frames = read_feature(tmp_path, "mcap", "sensor_msgs/msg/Image", [complete, short, complete])
    assert [isinstance(frame, CorruptFrame) for frame in frames] == [False, True, False]
    assert str(frames[1]) == "/x: a picture of 4 x 5 rgb8 with 15 bytes a row has 59 bytes"


def test_an_encoding_that_the_layout_names_goes_before_that_of_the_messages(tmp_path: Path) -> None:
    messages = [Types("mcap").image(START, COLOURS[..., :3], "8UC3")]
    _, frames = read_feature(tmp_path, "mcap", "sensor_msgs/msg/Image", messages, encoding="bgr8")
    assert np.array_equal(frames[0], COLOURS[..., 2::-1])
