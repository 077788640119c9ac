"""Datasets of bags: ``rosbag:PATH`` with a layout of topics, and a draft of such a layout from the topics of a bag."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convert.errors import ConfigError, DamagedEpisode, MalformedEpisode, SourceError, UsageError
from convert.source.describe import camera_names, camera_roles
from convert.source.files.source import FileEpisode, FileKind, FileReader, FilesSource, NumberedEpisode, open_files
from convert.source.rosbag.bag import Bag, list_topics, open_bag
from convert.source.rosbag.cuts import Cut, Row, cut_by_rows, cut_by_topic, read_rows
from convert.source.rosbag.episode import read_episode
from convert.source.rosbag.layout import Layout, find_bags, parse_layout
from convert.source.rosbag.pictures import COMPRESSED, PictureForm, is_picture, picture_form
from convert.source.rosbag.streams import Streams, find_field, first_joints, has_header

_CAMERA_PARTS = re.compile(r"/(image_raw|image_rect|image_color|image|raw|compressed|compressedDepth|color|rgb)(?=/|$)")
"""Parts of the names of topics that cameras share."""
_ACTION = re.compile(r"command|cmd|target|action|goal|leader|master")
_IGNORED = re.compile(r"/(tf|tf_static|rosout|rosout_agg|parameter_events|diagnostics|clock)$|camera_info|/theora")
_MEASURED = 200
"""Messages that the rate of a topic is measured from."""


class Draft(NamedTuple):
    """A layout as YAML would have it, and remarks on its parts by path, such as ``features.action/command``."""

    layout: dict[str, Any]
    comments: dict[str, str]


def draft(location: str, roots: Sequence[str]) -> Draft:
    """Return a layout for the first bag that can be read.

    Raises:
        SourceError: There are no bags, or none that can be read or has pictures or numbers.
    """
    first_fault = ""
    for bag_path in find_bags(location, roots)[1]:
        try:
            with open_bag(bag_path) as bag:
                return _draft(bag, bag_path)
        except DamagedEpisode as error:
            first_fault = first_fault or f"{bag_path.name}: {error}"
    raise SourceError(f"rosbag:{location}: no bag can be read; {first_fault}")


def _draft(bag: Bag, bag_path: Path) -> Draft:
    picture_topics, number_topics, unread_topics = _sort(bag)
    features: dict[str, dict[str, Any]] = {}
    comments: dict[str, str] = {}
    topic_by_camera = {_CAMERA_PARTS.sub("", topic) or topic: topic for topic in picture_topics}
    for camera_name, camera_topic in camera_names(list(topic_by_camera)).items():
        features[f"observation/{camera_name}"] = {"topic": topic_by_camera[camera_topic]}
        form = picture_topics[topic_by_camera[camera_topic]]
        if form.dtype != "uint8":
            size_text = "" if None in form.shape else f" {' x '.join(map(str, form.shape))}"
            comments[f"features.observation/{camera_name}"] = f"depth, {form.dtype}{size_text}"
    for topic, remark in number_topics.items():
        vector = "language" if remark == "text" else "action" if _ACTION.search(topic) else "state"
        feature_name = vector if remark == "text" and vector not in features else f"{vector}{topic}"
        features[feature_name] = {"topic": topic}
        comments[f"features.{feature_name}"] = remark
    if not features:
        raise MalformedEpisode(f"has no pictures and no numbers; it has {'; '.join(list_topics(bag)) or 'no topics'}")
    colour_topics = [topic for topic, form in picture_topics.items() if form.dtype == "uint8"]
    roles = dict(zip(colour_topics, camera_roles(colour_topics), strict=True))
    first_topic = next(iter({**picture_topics, **number_topics}))
    clock = next((topic for topic, role in roles.items() if role == "primary"), first_topic)
    has_stamps = has_header(bag.types, bag.message_type(clock))
    rate = _rate(bag, clock)
    comments |= {
        "rate": f"Hz, of {clock} as it was received",
        "clock": "every other topic gives its last value at or before each step",
        "stamps": "of the headers; receive takes when messages were received",
    }
    if not has_stamps:
        comments["stamps"] = f"{clock} has no header"
    if unread_topics:
        comments["features"] = f"not taken: {', '.join(unread_topics)}"
    if not any(feature_name.startswith("action") for feature_name in features):
        comments["features"] = "; ".join(filter(None, (comments.get("features"), "no topic looks like an action")))
    layout = {"rate": rate, "clock": clock, "stamps": "header" if has_stamps else "receive", "features": features}
    return Draft(layout, {"": f"topics of {bag_path.name}: {'; '.join(list_topics(bag))}", **comments})


def _sort(bag: Bag) -> tuple[dict[str, PictureForm], dict[str, str], list[str]]:
    """Return the topics of pictures, colours first, of numbers or texts with a remark, and the unread topics."""
    picture_topics: dict[str, tuple[str, PictureForm]] = {}
    number_topics: dict[str, str] = {}
    unread_topics: list[str] = []
    for topic, topic_info in bag.topics.items():
        if _IGNORED.search(topic) or not topic_info.messages:
            continue
        try:
            message_type = bag.message_type(topic)
            if is_picture(message_type):
                camera = _CAMERA_PARTS.sub("", topic) or topic
                # Of a picture that exists twice take the compressed one, which needs no encoding.
                if camera not in picture_topics or message_type == COMPRESSED:
                    picture_topics[camera] = topic, picture_form(next(bag.messages([topic])).content, None)
                continue
            field = find_field(bag.types, message_type, None)
            value_names = _names(bag, topic) or field.names
            names_text = f": {', '.join(value_names)}" if value_names else ""
            number_topics[topic] = "text" if field.dtype == "string" else f"{message_type}{names_text}"
        except MalformedEpisode:
            unread_topics.append(f"{topic} ({topic_info.type})")
    sorted_pictures = sorted(picture_topics.values(), key=lambda topic_form: topic_form[1].dtype != "uint8")
    return dict(sorted_pictures), number_topics, unread_topics


def _names(bag: Bag, topic: str) -> tuple[str, ...]:
    message: Any = next(bag.messages([topic]), None)
    message_names = getattr(message.content, "name", ()) if message else ()
    return () if isinstance(message_names, str) else tuple(map(str, message_names))


def _rate(bag: Bag, topic: str) -> float:
    """Return the rate of a topic's first messages, rounded where a whole number is within 3 %."""
    receipt_times = [message.received for message in islice(bag.messages([topic]), _MEASURED)]
    period = float(np.median(np.diff(receipt_times))) if len(receipt_times) > 1 else 0.0
    rate = 1e9 / period if period > 0 else 10.0
    return round(rate) if abs(rate - round(rate)) < 0.03 * rate and rate > 1 else round(rate, 2)


_TRIED = 8
"""Bags that a layout is tried on before it is refused."""


def find(location: str, roots: Sequence[str], layout: Mapping[str, Any]) -> FilesSource:
    """Find bags.

    Args:
        location: A bag, a folder that contains bags at any depth, or a glob.
        roots: Folders that ``location`` is below, if it is not a path itself.
        layout: See ``convert.source.rosbag.layout.Layout``.

    Raises:
        UsageError: There is no layout; lists the topics.
        ConfigError: The layout is not valid, or does not fit the bags.
        SourceError: There are no bags, or none that can be read.
    """
    root, bag_paths = find_bags(location, roots)
    if not layout:
        raise UsageError(_without_layout(location, bag_paths))
    bag_layout = parse_layout(layout, context=f"rosbag:{location}")
    bag_files = [str(bag_path.relative_to(root)) for bag_path in bag_paths]
    table_rows = None
    if bag_layout.episodes and bag_layout.episodes.csv:
        table_rows = read_rows(Path(root, bag_layout.episodes.csv), bag_files)
    kind = _fit(BagFiles(root=root, layout=bag_layout, rows=table_rows), bag_paths, context=f"rosbag:{location}")
    name = Path(root).name
    facts = {"description": f"Bags of {name}.", "control_frequency": bag_layout.rate}
    source = open_files(root, bag_paths, kind, dataset_name=name, entry_facts=facts, libraries=("rosbags",))
    return replace(source, entry=_with_names(source.entry, kind), remarks=(*source.remarks, *kind.remarks))


def suggest_layout(location: str, roots: Sequence[str]) -> dict[str, Any]:
    """Return a layout for the first bag that can be read, see ``draft``."""
    return draft(location, roots).layout


@dataclass(frozen=True, kw_only=True)
class BagFiles(FileKind):
    """How to read bags.

    Attributes:
        rows: Rows of the table that cuts the bags, by file; None without such a table.
        joints: Joints of the features of JointStates whose names are not declared.
        names: Names of the values of each feature, empty where they have none.
        received: Topics without stamps, whose messages have their times of receipt.
    """

    root: str
    layout: Layout
    rows: Mapping[str, Sequence[Row]] | None = field(default=None, repr=False)
    joints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    received: tuple[str, ...] = ()

    @property
    def recipe(self) -> Any:
        """The layout, the joints and the table."""
        return [self.layout.model_dump(mode="json"), dict(self.joints), dict(self.rows) if self.rows else None]

    @property
    def remarks(self) -> tuple[str, ...]:
        """Further lines for a dry run."""
        layout = self.layout
        stamps = "those of headers" if layout.stamps == "header" else "times of receipt"
        if self.received and layout.stamps == "header":
            stamps += f", of {', '.join(self.received)} (no header) times of receipt"
        return (
            f"clock: {layout.rate:g} Hz from {layout.clock}, gaps above {layout.max_gap:g} s are damage",
            f"stamps: {stamps}",
        )

    def survey(self, path: Path) -> Mapping[str, Sequence[FileEpisode]]:
        """Return the episodes of a bag, without their counts of steps; the bag is read only if a topic cuts it."""
        num_episodes = 1 if self.rows is None else len(self._rows_of(path))
        if self.layout.episodes and self.layout.episodes.topic:
            with open_bag(path, distribution=self.layout.distribution) as bag:
                num_episodes = len(cut_by_topic(bag, self.layout.episodes))
        return {"": [FileEpisode(episode_number, None) for episode_number in range(num_episodes)]}

    def cuts(self, bag: Bag, path: Path) -> list[Cut]:
        """Return the episodes of a bag. Raises DamagedEpisode if it lacks the topic that cuts it."""
        episodes = self.layout.episodes
        if episodes is None:
            return [Cut()]
        if self.rows is None:
            return cut_by_topic(bag, episodes)
        return cut_by_rows(bag, self._rows_of(path), episodes, max_overrun=self.layout.gap)

    def _rows_of(self, path: Path) -> Sequence[Row]:
        return (self.rows or {}).get(str(path.relative_to(self.root)), ())

    @contextlib.contextmanager
    def open(self, path: Path) -> Iterator[BagReader]:
        """Open a bag."""
        with open_bag(path, distribution=self.layout.distribution) as bag:
            yield BagReader(self, bag, path)


@dataclass(frozen=True)
class BagReader(FileReader):
    """The episodes of an open bag."""

    kind: BagFiles
    bag: Bag
    path: Path

    def episodes(self, numbers: Sequence[int] | None) -> Iterator[NumberedEpisode]:
        """Yield the episodes of these numbers, all for None."""
        streams = Streams(self.bag, self.kind.layout, self.kind.joints)
        cuts = self.kind.cuts(self.bag, self.path)
        for episode_number in range(len(cuts)) if numbers is None else numbers:
            try:
                yield episode_number, read_episode(self.bag, self.kind.layout, streams, cuts[episode_number])
            except DamagedEpisode as error:
                yield episode_number, error


def _fit(bag_files: BagFiles, bag_paths: Sequence[Path], *, context: str) -> BagFiles:
    """Return the kind with the names of the first bag that fits the layout and has messages of every feature.

    If no bag has messages of all features, the first bag that fits the layout counts.

    Raises:
        ConfigError: None of the first bags that can be read fits.
        SourceError: No bag can be read, or none has a message.
    """
    fitting: list[BagFiles] = []
    misfit_messages: list[str] = []
    fault_messages: list[str] = []
    for bag_path in bag_paths:
        try:
            with open_bag(bag_path, distribution=bag_files.layout.distribution) as bag:
                if not any(topic.messages for topic in bag.topics.values()):
                    raise DamagedEpisode("has no messages", reason="unreadable")
                joints = first_joints(bag, bag_files.layout)
                streams = Streams(bag, bag_files.layout, joints)
                bag_files.cuts(bag, bag_path)
                streamed_topics = [open_stream.stream.topic for open_stream in streams.open.values()]
                has_all = all(bag.topics[topic].messages for topic in streamed_topics)
        except MalformedEpisode as error:
            misfit_messages.append(f"{bag_path.name}: {error}")
        except DamagedEpisode as error:
            fault_messages.append(f"{bag_path.name}: {error}")
        else:
            value_names = {name: stream.field.names for name, stream in streams.open.items() if stream.field}
            topics = {bag_files.layout.clock, *(stream.topic for stream in bag_files.layout.features.values())}
            without_header = tuple(sorted(topics - streams.headers))
            fitting.append(replace(bag_files, joints=joints, names=value_names, received=without_header))
            if has_all:
                return fitting[-1]
        if len(misfit_messages) + len(fitting) == _TRIED:
            break
    if fitting:
        return fitting[0]
    if misfit_messages:
        raise ConfigError(f"{context}: layout does not fit {misfit_messages[0]}")
    raise SourceError(f"{context}: no bag can be read; {fault_messages[0]}")


def _with_names(entry: Mapping[str, Any], bag_files: BagFiles) -> dict[str, Any]:
    """Return an entry whose action and state have the names of their values, where known."""

    def named(part: Mapping[str, Any]) -> dict[str, Any]:
        value_names = bag_files.names.get(part["path"], ())
        return {**part, "names": list(value_names)} if len(set(value_names)) == part["dims"] else dict(part)

    return {**entry, **{name: [named(part) for part in entry[name]] for name in ("action", "state")}}


def _without_layout(location: str, bag_paths: Sequence[Path]) -> str:
    for bag_path in bag_paths:
        try:
            with open_bag(bag_path) as bag:
                topics_text = "\n  ".join(list_topics(bag))
        except DamagedEpisode as error:
            topics_text = str(error)
            continue
        break
    return (
        f"rosbag:{location}: bags need a layout, which says what the topics are; print one with pairstream draft "
        f"rosbag:{location}\n  {bag_path.name} has\n  {topics_text}"
    )
