"""A layout to correct, made of the topics of a bag."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convert.errors import DamagedEpisode, MalformedEpisode, SourceError
from convert.source.describe import camera_names, camera_roles
from convert.source.rosbag.bag import Bag, list_topics, open_bag
from convert.source.rosbag.fields import find_field, has_header
from convert.source.rosbag.names import find_bags
from convert.source.rosbag.pictures import COMPRESSED, Look, is_picture, look_at

_PARTS = re.compile(r"/(image_raw|image_rect|image_color|image|raw|compressed|compressedDepth|color|rgb)(?=/|$)")
"""Parts of the names of topics that cameras share."""
_ACTION = re.compile(r"command|cmd|target|action|goal|leader|master")
_PASSED = re.compile(r"/(tf|tf_static|rosout|rosout_agg|parameter_events|diagnostics|clock)$|camera_info|/theora")
_MEASURED = 200
"""Messages that the rate of a topic is measured by."""


class Draft(NamedTuple):
    """A layout as YAML would have it, and a remark on parts of it by path, such as ``features.action/command``."""

    layout: dict[str, Any]
    comments: dict[str, str]


def draft(place: str, roots: Sequence[str]) -> Draft:
    """Return a layout for the first bag that can be read.

    Raises:
        SourceError: There are no bags, or none that can be read or has pictures or numbers.
    """
    fault = ""
    for path in find_bags(place, roots)[1]:
        try:
            with open_bag(path) as bag:
                return _draft(bag, path)
        except DamagedEpisode as error:
            fault = fault or f"{path.name}: {error}"
    raise SourceError(f"rosbag:{place}: no bag can be read; {fault}")


def _draft(bag: Bag, path: Path) -> Draft:
    pictures, numbers, others = _sort(bag)
    features: dict[str, dict[str, Any]] = {}
    comments: dict[str, str] = {}
    by_camera = {_PARTS.sub("", topic) or topic: topic for topic in pictures}
    for name, camera in camera_names(list(by_camera)).items():
        features[f"observation/{name}"] = {"topic": by_camera[camera]}
        look = pictures[by_camera[camera]]
        if look.dtype != "uint8":
            size = "" if None in look.shape else f" {' x '.join(map(str, look.shape))}"
            comments[f"features.observation/{name}"] = f"depth, {look.dtype}{size}"
    for topic, about in numbers.items():
        vector = "language" if about == "text" else "action" if _ACTION.search(topic) else "state"
        name = vector if about == "text" and vector not in features else f"{vector}{topic}"
        features[name] = {"topic": topic}
        comments[f"features.{name}"] = about
    if not features:
        raise MalformedEpisode(f"has no pictures and no numbers; it has {'; '.join(list_topics(bag)) or 'no topics'}")
    colours = [topic for topic, look in pictures.items() if look.dtype == "uint8"]
    roles = dict(zip(colours, camera_roles(colours), strict=True))
    clock = next((topic for topic, role in roles.items() if role == "primary"), next(iter({**pictures, **numbers})))
    headers = has_header(bag.types, bag.message_type(clock))
    rate = _rate(bag, clock)
    comments |= {
        "rate": f"Hz, of {clock} as it was received",
        "clock": "every other topic gives its last value at or before each step",
        "stamps": "of the headers; receive takes when messages were received" if headers else f"{clock} has no header",
    }
    if others:
        comments["features"] = f"not taken: {', '.join(others)}"
    if not any(name.startswith("action") for name in features):
        comments["features"] = "; ".join(filter(None, (comments.get("features"), "no topic looks like an action")))
    layout = {"rate": rate, "clock": clock, "stamps": "header" if headers else "receive", "features": features}
    return Draft(layout, {"": f"topics of {path.name}: {'; '.join(list_topics(bag))}", **comments})


def _sort(bag: Bag) -> tuple[dict[str, Look], dict[str, str], list[str]]:
    """Return topics: those of pictures, colours first, those of numbers or texts with a remark, and the others."""
    pictures: dict[str, tuple[str, Look]] = {}
    numbers: dict[str, str] = {}
    others: list[str] = []
    for topic, about in bag.topics.items():
        if _PASSED.search(topic) or not about.messages:
            continue
        try:
            kind = bag.message_type(topic)
            if is_picture(kind):
                camera = _PARTS.sub("", topic) or topic
                # Of a picture that is there twice the compressed one: it passes as it is.
                if camera not in pictures or kind == COMPRESSED:
                    pictures[camera] = topic, look_at(next(bag.messages([topic])).content, None)
                continue
            field = find_field(bag.types, kind, None)
            names = _names(bag, topic) or field.names
            told = f": {', '.join(names)}" if names else ""
            numbers[topic] = "text" if field.dtype == "string" else f"{kind}{told}"
        except MalformedEpisode:
            others.append(f"{topic} ({about.type})")
    return dict(sorted(pictures.values(), key=lambda each: each[1].dtype != "uint8")), numbers, others


def _names(bag: Bag, topic: str) -> tuple[str, ...]:
    message: Any = next(bag.messages([topic]), None)
    names = getattr(message.content, "name", ()) if message else ()
    return () if isinstance(names, str) else tuple(map(str, names))


def _rate(bag: Bag, topic: str) -> float:
    """Return the rate of a topic's first messages, rounded where a whole number is within 3 %."""
    times = [message.received for message in islice(bag.messages([topic]), _MEASURED)]
    period = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    rate = 1e9 / period if period > 0 else 10.0
    return round(rate) if abs(rate - round(rate)) < 0.03 * rate and rate > 1 else round(rate, 2)
