"""Numbers and texts of messages, by the path of a field and the definition of the message type."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from rosbags.interfaces import Nodetype

from convert.errors import MalformedEpisode
from stream.base.errors import closest

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
_STEP = re.compile(r"(\w+)((?:\[\d+\])*)")
Read = Callable[[Any], Any]
"""Takes a message and returns a number, an array, a text, or None where the message has nothing of the feature."""


class Field(NamedTuple):
    """A field of a message type.

    Attributes:
        dtype: Name of numpy's, or ``string``.
        names: Names of its values, empty where they have none.
    """

    read: Read
    dtype: str
    names: tuple[str, ...] = ()


def has_header(types: Any, kind: str) -> bool:
    """Return whether the messages of a type have a header with a stamp."""
    return dict(types.fielddefs[kind][1]).get("header") == (Nodetype.NAME, "std_msgs/msg/Header")


def find_field(types: Any, kind: str, path: str | None) -> Field:
    """Return a field of a message type.

    Args:
        types: Store of message types.
        kind: Type, such as geometry_msgs/msg/PoseStamped.
        path: Path such as ``pose.position.x`` or ``data[3]``, None for the main field. The path may end at a message
            of numbers alone, such as a pose: its numbers then follow in the order of their definition.

    Raises:
        MalformedEpisode: There is no such field, or it has neither numbers nor a text.
    """
    path = path or main_field(types, kind)
    desc: Any = (Nodetype.NAME, kind)
    reads: list[Read] = []
    for step in path.split(".") if path else ():
        match = _STEP.fullmatch(step)
        if not match:
            raise MalformedEpisode(f"field {path!r}: {step!r} is no name of a field; write such as pose.position.x")
        fields = _fields(types, desc)
        if match[1] not in fields:
            raise MalformedEpisode(f"{kind} has no field {path!r}; {closest(match[1], fields, noun='fields')}")
        desc = fields[match[1]]
        reads.append(_attribute(match[1]))
        for index in re.findall(r"\d+", match[2]):
            if desc[0] not in (Nodetype.ARRAY, Nodetype.SEQUENCE):
                raise MalformedEpisode(f"{kind}: field {path!r}: {match[1]} is no array, so it has no [{index}]")
            desc = desc[1][0]
            reads.append(_item(int(index), path))
    return _leaf(types, desc, reads, where=f"{kind}: field {path!r}" if path else kind)


def main_field(types: Any, kind: str) -> str:
    """Return the path of a type's main field, empty for the message as a whole."""
    name = kind.rpartition("/")[2]
    fields = [each for each, _ in types.fielddefs[kind][1] if each != "header"]
    if name in _MAIN:
        return _MAIN[name]
    return "data" if "data" in fields else fields[0] if len(fields) == 1 else ""


def pick_joints(field: Field, names: Sequence[str], *, strict: bool) -> Field:
    """Return the field of a JointState with the values of these joints, in this order.

    Args:
        strict: Whether the messages have to have exactly these names in this order. Otherwise a message without any of
            them is passed over, as it is from another part of the robot.
    """
    chosen = list(names)

    def read(message: Any) -> Any:
        found, values = list(message.name), field.read(message)
        if strict and found != chosen:
            raise MalformedEpisode(
                f"a JointState has the joints {', '.join(found)}, the first one had {', '.join(chosen)}; give those "
                "to take as names"
            )
        if not strict and not set(found) & set(chosen):
            return None
        if absent := sorted(set(chosen) - set(found)):
            raise MalformedEpisode(f"a JointState lacks {', '.join(absent)}; it has {', '.join(found)}")
        if len(values) != len(found):
            raise MalformedEpisode(f"a JointState has {len(found)} names and {len(values)} values; name another field")
        return np.array([values[found.index(name)] for name in chosen])

    return Field(read, field.dtype, tuple(chosen))


def _fields(types: Any, desc: Any) -> dict[str, Any]:
    return dict(types.fielddefs[desc[1]][1]) if desc[0] == Nodetype.NAME else {}


def _attribute(name: str) -> Read:
    attribute = f"{name}_" if keyword.iskeyword(name) else name
    return lambda message: getattr(message, attribute)


def _item(index: int, path: str) -> Read:
    def read(values: Any) -> Any:
        if index >= len(values):
            raise MalformedEpisode(f"field {path!r}: a message has {len(values)} values, so none at [{index}]")
        return values[index]

    return read


def _chain(reads: Sequence[Read]) -> Read:
    def read(message: Any) -> Any:
        for each in reads:
            message = each(message)
        return message

    return read


def _leaf(types: Any, desc: Any, reads: Sequence[Read], *, where: str) -> Field:
    node, about = desc
    read = _chain(reads)
    if node == Nodetype.BASE:
        if about[0] == "string":
            return Field(read, "string")
        if about[0] in _NUMBERS:
            return Field(read, _NUMBERS[about[0]])
    elif node in (Nodetype.ARRAY, Nodetype.SEQUENCE):
        inner = about[0]
        if inner[0] == Nodetype.BASE and inner[1][0] in _NUMBERS:
            return Field(read, _NUMBERS[inner[1][0]])
    else:
        leaves = list(_numbers_of(types, desc, []))
        if leaves and all(leaf is not None for leaf in leaves):
            found = [leaf for leaf in leaves if leaf is not None]
            parts = [_chain([_attribute(name) for name in path]) for path, _ in found]
            dtype = np.result_type(*(kind for _, kind in found)).name
            names = tuple(".".join(path) for path, _ in found)
            return Field(lambda message: np.array([part(read(message)) for part in parts]), dtype, names)
    inside = closest("", _fields(types, desc), noun="fields") if node == Nodetype.NAME else "it is no number"
    raise MalformedEpisode(f"{where} has other things than numbers; name a field of numbers or a text; {inside}")


def _numbers_of(types: Any, desc: Any, path: list[str]) -> Iterator[tuple[list[str], str] | None]:
    """Yield path and dtype of each number of a message, None for anything else than a number; without headers."""
    for name, inner in _fields(types, desc).items():
        if inner == (Nodetype.NAME, "std_msgs/msg/Header"):
            continue
        if inner[0] == Nodetype.NAME:
            yield from _numbers_of(types, inner, [*path, name])
        elif inner[0] == Nodetype.BASE and inner[1][0] in _NUMBERS:
            yield [*path, name], _NUMBERS[inner[1][0]]
        else:
            yield None
