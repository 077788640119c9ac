"""The features of a layout in an open bag: how to take the value of each from the messages of its topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from convert.errors import MalformedEpisode
from convert.source.rosbag.bag import Bag, Message
from convert.source.rosbag.fields import JOINT_STATE, Field, find_field, has_header, main_field, pick_joints
from convert.source.rosbag.layout import Layout, Stream
from convert.source.rosbag.pictures import is_picture

_BY_JOINT = ("position", "velocity", "effort")


class OpenStream(NamedTuple):
    """A feature of an open bag.

    Attributes:
        field: Field of the messages, None for pictures.
        holds: Whether a value holds until the next one.
        nearest: Whether the nearest message stands for a step, not the last.
    """

    stream: Stream
    field: Field | None
    holds: bool
    nearest: bool


class Streams:
    """The features of a layout in an open bag.

    Attributes:
        open: Features by name.
        headers: Topics whose messages have a stamp of their own that is to be taken.
    """

    def __init__(self, bag: Bag, layout: Layout, joints: Mapping[str, tuple[str, ...]]) -> None:
        """Look up every feature.

        Args:
            joints: Joints that the features without declared names have to have.

        Raises:
            MalformedEpisode: The bag lacks a topic, or its messages a field; names the feature.
        """
        self.open: dict[str, OpenStream] = {}
        self.headers: set[str] = set()
        for name, stream in layout.features.items():
            try:
                self.open[name] = _open(bag, stream, layout, joints.get(name, ()))
            except MalformedEpisode as error:
                raise MalformedEpisode(f"{name}: {error}") from None
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
    """Return the joints of the first message of each feature of JointStates that has no names in the layout.

    Raises:
        DamagedEpisode: The bag cannot be read.
    """
    found = {}
    for name, stream in layout.features.items():
        if not stream.names and stream.topic in bag.topics and _by_joint(bag, stream):
            message: Any = next(bag.messages([stream.topic]), None)
            if message and message.content.name:
                found[name] = tuple(message.content.name)
    return found


def _by_joint(bag: Bag, stream: Stream) -> bool:
    kind = bag.message_type(stream.topic)
    return kind == JOINT_STATE and (stream.field or main_field(bag.types, kind)) in _BY_JOINT


def _open(bag: Bag, stream: Stream, layout: Layout, joints: tuple[str, ...]) -> OpenStream:
    kind = bag.message_type(stream.topic)
    nearest = stream.take == "nearest" or (stream.take is None and stream.topic == layout.clock)
    if is_picture(kind) and stream.field is None:
        if stream.hold or stream.names:
            raise MalformedEpisode(f"{stream.topic} has pictures, which take neither hold nor names")
        return OpenStream(stream, None, False, nearest)
    if stream.encoding:
        raise MalformedEpisode(f"{stream.topic} has {kind}, which takes no encoding; leave it out")
    field = find_field(bag.types, kind, stream.field)
    if _by_joint(bag, stream) and (stream.names or joints):
        field = pick_joints(field, stream.names or joints, strict=not stream.names)
    elif stream.names:
        field = field._replace(names=stream.names)
    return OpenStream(stream, field, stream.hold or field.dtype == "string", nearest)
