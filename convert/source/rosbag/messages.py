"""Values of messages: fields by their path, pictures, and the features of a layout in an open bag."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
from rosbags.interfaces import Nodetype

from convert.errors import CorruptFrame, MalformedEpisode
from convert.picture import PICTURES
from convert.source.rosbag.bag import Bag, Message
from convert.source.rosbag.layout import Layout, Stream
from stream.base.errors import closest

RAW, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
_VIDEO = ("CompressedVideo", "FFMPEGPacket")
_DEPTH_HEADER = 12
"""Bytes before the PNG of compressed depth."""


class _Encoding(NamedTuple):
    """The pixels of an encoding.

    Attributes:
        dtype: dtype of the ``stored`` values of a pixel; 16 bits of colours are cut to 8.
        colours: Slice of red, green and blue, or OpenCV's code for the conversion to RGB; None for depth.
    """

    dtype: str
    stored: int
    colours: slice | int | None = None


_ORDERS: dict[str, tuple[int, slice | int]] = {
    "rgb": (3, slice(0, 3)),
    "bgr": (3, slice(2, None, -1)),
    "rgba": (4, slice(0, 3)),
    "bgra": (4, slice(2, None, -1)),
    "bayer_rggb": (1, cv2.COLOR_BayerRGGB2RGB),
    "bayer_bggr": (1, cv2.COLOR_BayerBGGR2RGB),
    "bayer_gbrg": (1, cv2.COLOR_BayerGBRG2RGB),
    "bayer_grbg": (1, cv2.COLOR_BayerGRBG2RGB),
}
_ENCODINGS = {
    **{f"{order}{bits}": _Encoding(f"uint{bits}", *pixels) for order, pixels in _ORDERS.items() for bits in (8, 16)},
    # A camera's own name, and that of ROS 1, for the same bytes.
    **dict.fromkeys(("uyvy", "yuv422"), _Encoding("uint8", 2, cv2.COLOR_YUV2RGB_UYVY)),
    **dict.fromkeys(("yuyv", "yuv422_yuy2"), _Encoding("uint8", 2, cv2.COLOR_YUV2RGB_YUY2)),
    **dict.fromkeys(("mono8", "8UC1"), _Encoding("uint8", 1, slice(0, 1))),
    **dict.fromkeys(("mono16", "16UC1"), _Encoding("uint16", 1)),
    "32FC1": _Encoding("float32", 1),
}
"""Encodings of sensor_msgs/image_encodings.hpp. 8UC3 and 8UC4 are missing, as they do not define which value is red."""


class PictureForm(NamedTuple):
    """Shape and dtype of a picture; None where unknown before decoding."""

    shape: tuple[int | None, ...]
    dtype: str


def is_picture(kind: str) -> bool:
    """Return whether the messages of a type are pictures; MalformedEpisode if they are pieces of a video."""
    if kind.rpartition("/")[2] in _VIDEO:
        raise MalformedEpisode(f"{kind} is a video, which is not read from bags; record CompressedImage instead")
    return kind in (RAW, COMPRESSED)


def picture_form(message: Any, encoding: str | None) -> PictureForm:
    """Return the shape and dtype of a picture; MalformedEpisode if its encoding is not known."""
    if hasattr(message, "encoding"):
        pixel_format = _find(encoding or message.encoding)
        image_size = (message.height, message.width)
        if pixel_format.colours is None:
            return PictureForm(image_size, pixel_format.dtype)
        return PictureForm((*image_size, 1 if pixel_format.colours == slice(0, 1) else 3), "uint8")
    is_depth = _is_depth(message)
    if is_depth and "32FC1" in message.format:
        raise MalformedEpisode(f"compressed depth of format {message.format!r} is not read, only 16UC1")
    return PictureForm((None, None), "uint16") if is_depth else PictureForm((None, None, 3), "uint8")


def read_picture(message: Any, encoding: str | None) -> np.ndarray | bytes:
    """Return a raw picture as uint8 [H, W, 1 or 3] in RGB or depth [H, W], or a compressed picture unchanged.

    A message without a picture, or with too few bytes for it, raises CorruptFrame.
    """
    if hasattr(message, "encoding"):
        return _pixels(message, encoding)
    data = message.data.tobytes()[_DEPTH_HEADER if _is_depth(message) and "compressedDepth" in message.format else 0 :]
    if not data.startswith(PICTURES):
        raise CorruptFrame(f"{message.format!r:.80}: the data are not JPEG, PNG or WebP")
    return data


def _is_depth(message: Any) -> bool:
    return "compressedDepth" in message.format or message.format.startswith(("16UC1", "mono16", "32FC1"))


def _find(encoding: str) -> _Encoding:
    if encoding not in _ENCODINGS:
        advice = "if the pixels are one of these, name it as encoding in the layout, else record CompressedImage"
        raise MalformedEpisode(
            f"pictures of encoding {encoding!r:.80} are not read, only {', '.join(_ENCODINGS)}; {advice}"
        )
    return _ENCODINGS[encoding]


def _pixels(message: Any, encoding: str | None) -> np.ndarray:
    encoding_name = encoding or message.encoding
    pixel_format = _find(encoding_name)
    dtype = np.dtype(pixel_format.dtype).newbyteorder(">" if message.is_bigendian else "<")
    row_bytes = message.width * pixel_format.stored * dtype.itemsize
    row_stride = message.step or row_bytes
    description = f"a picture of {message.height} x {message.width} {encoding_name} with {row_stride} bytes a row"
    if not row_bytes or not message.height or row_stride < row_bytes or len(message.data) < message.height * row_stride:
        raise CorruptFrame(f"{description} has {len(message.data)} bytes")
    if encoding and row_stride >= 2 * row_bytes:
        raise MalformedEpisode(f"{description} should have {row_bytes}; its message says {message.encoding!r:.80}")
    pixel_rows = message.data[: message.height * row_stride].reshape(message.height, row_stride)[:, :row_bytes]
    pixels = np.ascontiguousarray(pixel_rows).view(dtype).astype(pixel_format.dtype, copy=False)
    pixels = pixels.reshape(message.height, message.width, pixel_format.stored)
    if pixel_format.colours is None:
        return pixels[:, :, 0]
    if isinstance(pixel_format.colours, slice):
        pixels = pixels[:, :, pixel_format.colours]
    else:
        try:
            pixels = np.asarray(cv2.cvtColor(pixels, pixel_format.colours))
        except cv2.error as error:
            raise CorruptFrame(f"{description}: {' '.join(str(error).split())[:200]}") from None
    return np.ascontiguousarray(pixels // 256 if dtype.itemsize == 2 else pixels, np.uint8)


JOINT_STATE = "sensor_msgs/msg/JointState"
_MAIN = {
    "JointState": "position",
    "TransformStamped": "transform",
    "PoseWithCovariance": "pose",
    "PoseWithCovarianceStamped": "pose.pose",
    "Odometry": "pose.pose",
    "TwistWithCovariance": "twist",
    "TwistWithCovarianceStamped": "twist.twist",
}
"""Main field of a type that has several."""
_NUMBERS = {name: name for name in ("bool", "float32", "float64")} | {
    "byte": "uint8",
    "char": "uint8",
    "octet": "uint8",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""dtype of the numbers of a message."""
_PATH_PART = re.compile(r"(\w+)((?:\[\d+\])*)")
Read = Callable[[Any], Any]
"""Returns a number, an array or a text of a message, or None where the message lacks the feature."""


class Field(NamedTuple):
    """A field of a message type; ``dtype`` is numpy's name or ``string``, ``names`` those of its values, if any."""

    read: Read
    dtype: str
    names: tuple[str, ...] = ()


def has_header(typestore: Any, message_type: str) -> bool:
    """Return whether the messages of a type have a header with a stamp."""
    return dict(typestore.fielddefs[message_type][1]).get("header") == (Nodetype.NAME, "std_msgs/msg/Header")


def find_field(typestore: Any, message_type: str, field_path: str | None) -> Field:
    """Return a field of a message type such as geometry_msgs/msg/PoseStamped.

    Args:
        field_path: Path such as ``pose.position.x`` or ``data[3]``, None for the main field. The path may end at a
            message of only numbers, such as a pose: its numbers then follow in the order of their definition.

    Raises:
        MalformedEpisode: There is no such field, or it has neither numbers nor a text.
    """
    field_path = field_path or main_field(typestore, message_type)
    context = f"{message_type}: field {field_path!r}" if field_path else message_type
    node_type: Any = (Nodetype.NAME, message_type)
    read_steps: list[Read] = []
    for path_part in field_path.split(".") if field_path else ():
        match = _PATH_PART.fullmatch(path_part)
        if not match:
            fault = f"{path_part!r} is not the name of a field; write for example pose.position.x"
            raise MalformedEpisode(f"field {field_path!r}: {fault}")
        name, fields = match[1], _fields(typestore, node_type)
        if name not in fields:
            raise MalformedEpisode(
                f"{message_type} has no field {field_path!r}; {closest(name, fields, noun='fields')}"
            )
        node_type = fields[name]
        read_steps.append(_attribute(name))
        for index in re.findall(r"\d+", match[2]):
            if node_type[0] not in (Nodetype.ARRAY, Nodetype.SEQUENCE):
                raise MalformedEpisode(f"{context}: {name} is not an array, so it has no [{index}]")
            node_type = node_type[1][0]
            read_steps.append(_item(int(index), field_path))
    return _leaf(typestore, node_type, read_steps, context=context)


def main_field(typestore: Any, message_type: str) -> str:
    """Return the path of a type's main field, empty for the complete message."""
    type_name = message_type.rpartition("/")[2]
    field_names = [field_name for field_name, _ in typestore.fielddefs[message_type][1] if field_name != "header"]
    if type_name in _MAIN:
        return _MAIN[type_name]
    return "data" if "data" in field_names else field_names[0] if len(field_names) == 1 else ""


def pick_joints(field: Field, joint_names: Sequence[str], *, strict: bool) -> Field:
    """Return the field of a JointState with the values of these joints, in this order.

    If ``strict``, messages need exactly these names. Otherwise those without any come from another part of the robot.
    """
    chosen = list(joint_names)

    def read(message: Any) -> Any:
        names, values = list(message.name), field.read(message)
        if strict and names != chosen:
            first = f"the first one had {', '.join(chosen)}; give those to take as names"
            raise MalformedEpisode(f"a JointState has the joints {', '.join(names)}, {first}")
        if not strict and not set(names) & set(chosen):
            return None
        if missing_names := sorted(set(chosen) - set(names)):
            raise MalformedEpisode(f"a JointState lacks {', '.join(missing_names)}; it has {', '.join(names)}")
        if len(values) != len(names):
            raise MalformedEpisode(f"a JointState has {len(names)} names and {len(values)} values; name another field")
        return np.array([values[names.index(name)] for name in chosen])

    return Field(read, field.dtype, tuple(chosen))


def _fields(typestore: Any, node_type: Any) -> dict[str, Any]:
    return dict(typestore.fielddefs[node_type[1]][1]) if node_type[0] == Nodetype.NAME else {}


def _attribute(name: str) -> Read:
    attribute = f"{name}_" if keyword.iskeyword(name) else name
    return lambda message: getattr(message, attribute)


def _item(item_index: int, field_path: str) -> Read:
    def read(values: Any) -> Any:
        if item_index < len(values):
            return values[item_index]
        raise MalformedEpisode(f"field {field_path!r}: a message has {len(values)} values, so none at [{item_index}]")

    return read


def _chain(read_steps: Sequence[Read]) -> Read:
    def read(message: Any) -> Any:
        for read_step in read_steps:
            message = read_step(message)
        return message

    return read


def _leaf(typestore: Any, node_type: Any, read_steps: Sequence[Read], *, context: str) -> Field:
    node, node_details = node_type
    read = _chain(read_steps)
    if node == Nodetype.NAME:
        leaves = list(_numbers_of(typestore, node_type, []))
        if leaves and None not in leaves:
            number_leaves = [leaf for leaf in leaves if leaf is not None]
            read_numbers = [_chain([_attribute(name) for name in path]) for path, _ in number_leaves]
            dtype = np.result_type(*(leaf_dtype for _, leaf_dtype in number_leaves)).name
            names = tuple(".".join(path) for path, _ in number_leaves)
            return Field(lambda message: np.array([part(read(message)) for part in read_numbers]), dtype, names)
    elif node == Nodetype.BASE and node_details[0] == "string":
        return Field(read, "string")
    else:
        base, base_details = node_type if node == Nodetype.BASE else node_details[0]
        if base == Nodetype.BASE and base_details[0] in _NUMBERS:
            return Field(read, _NUMBERS[base_details[0]])
    hint = "it is not a number"
    if node == Nodetype.NAME:
        hint = closest("", _fields(typestore, node_type), noun="fields")
    raise MalformedEpisode(f"{context} has other content than numbers; name a field of numbers or a text; {hint}")


def _numbers_of(typestore: Any, node_type: Any, parent_path: list[str]) -> Iterator[tuple[list[str], str] | None]:
    """Yield path and dtype of each number of a message, None for other content; headers are left out."""
    for field_name, field_type in _fields(typestore, node_type).items():
        if field_type == (Nodetype.NAME, "std_msgs/msg/Header"):
            continue
        if field_type[0] == Nodetype.NAME:
            yield from _numbers_of(typestore, field_type, [*parent_path, field_name])
        elif field_type[0] == Nodetype.BASE and field_type[1][0] in _NUMBERS:
            yield [*parent_path, field_name], _NUMBERS[field_type[1][0]]
        else:
            yield None


_BY_JOINT = ("position", "velocity", "effort")


class OpenStream(NamedTuple):
    """A feature of an open bag, see ``Stream``; pictures have no field."""

    stream: Stream
    field: Field | None
    holds: bool
    nearest: bool


class Streams:
    """The features of a layout in an open bag by name (``open``), and the topics with stamps to use (``headers``)."""

    def __init__(self, bag: Bag, layout: Layout, joints: Mapping[str, tuple[str, ...]]) -> None:
        """Look up every feature; MalformedEpisode names one without its topic or field.

        Args:
            joints: Joints that the features without declared names have to have.
        """
        self.open: dict[str, OpenStream] = {}
        self.headers: set[str] = set()
        for feature_name, stream in layout.features.items():
            try:
                self.open[feature_name] = _open(bag, stream, layout, joints.get(feature_name, ()))
            except MalformedEpisode as error:
                raise MalformedEpisode(f"{feature_name}: {error}") from None
        for topic in {layout.clock, *(stream.topic for stream in layout.features.values())}:
            if layout.stamps == "header" and has_header(bag.types, bag.message_type(topic)):
                self.headers.add(topic)

    def stamp(self, message: Message) -> int:
        """Return the time of a message in nanoseconds."""
        if message.topic not in self.headers:
            return message.received
        stamp = message.content.header.stamp
        return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def first_joints(bag: Bag, layout: Layout) -> dict[str, tuple[str, ...]]:
    """Return the joints of the first message of each feature of JointStates that has no names in the layout."""
    joints_by_feature = {}
    for feature_name, stream in layout.features.items():
        if not stream.names and stream.topic in bag.topics and _by_joint(bag, stream):
            message: Any = next(bag.messages([stream.topic]), None)
            if message and message.content.name:
                joints_by_feature[feature_name] = tuple(message.content.name)
    return joints_by_feature


def _by_joint(bag: Bag, stream: Stream) -> bool:
    message_type = bag.message_type(stream.topic)
    return message_type == JOINT_STATE and (stream.field or main_field(bag.types, message_type)) in _BY_JOINT


def _open(bag: Bag, stream: Stream, layout: Layout, joints: tuple[str, ...]) -> OpenStream:
    message_type = bag.message_type(stream.topic)
    nearest = stream.take == "nearest" or (stream.take is None and stream.topic == layout.clock)
    if is_picture(message_type) and stream.field is None:
        if stream.hold or stream.names:
            raise MalformedEpisode(f"{stream.topic} has pictures, which take neither hold nor names")
        return OpenStream(stream, None, False, nearest)
    if stream.encoding:
        raise MalformedEpisode(f"{stream.topic} has {message_type}, which takes no encoding; leave it out")
    field = find_field(bag.types, message_type, stream.field)
    if _by_joint(bag, stream) and (stream.names or joints):
        field = pick_joints(field, stream.names or joints, strict=not stream.names)
    elif stream.names:
        field = field._replace(names=stream.names)
    return OpenStream(stream, field, stream.hold or field.dtype == "string", nearest)
