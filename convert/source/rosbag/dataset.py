"""Datasets of bags: ``rosbag:PATH`` with a layout of topics, and a draft of such a layout from the topics of a bag."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from convert.errors import ConfigError, DamagedEpisode, MalformedEpisode, SourceError, UsageError
from convert.source.describe import camera_names, camera_roles
from convert.source.files.source import FileEpisode, FileKind, FileReader, FilesSource, NumberedEpisode, open_files
from convert.source.rosbag.bag import Bag, list_topics, open_bag
from convert.source.rosbag.episode import Cut, Row, cut_by_rows, cut_by_topic, read_episode, read_rows
from convert.source.rosbag.layout import Layout, find_bags, parse_layout
from convert.source.rosbag.messages import (
    COMPRESSED,
    Streams,
    find_field,
    first_joints,
    has_header,
    is_picture,
    picture_form,
)

_CAMERA_PARTS = re.compile(r"/(image_raw|image_rect|image_color|image|raw|compressed|compressedDepth|color|rgb)(?=/|$)")
"""Parts of the names of topics that cameras share."""
_ACTION = re.compile(r"command|cmd|target|action|goal|leader|master")
_IGNORED = re.compile(r"/(tf|tf_static|rosout|rosout_agg|parameter_events|diagnostics|clock)$|camera_info|/theora")
_MEASURED = 200
"""Messages that the rate of a topic is measured from."""


def suggest_layout(location: str, roots: Sequence[str]) -> dict[str, Any]:
    """Return a layout for the first bag that can be read.

    Raises:
        SourceError: There are no bags, or none that can be read or has pictures or numbers.
    """
    first_fault = ""
    for bag_path in find_bags(location, roots)[1]:
        try:
            with open_bag(bag_path) as bag:
                return _suggest(bag)
        except DamagedEpisode as error:
            first_fault = first_fault or f"{bag_path.name}: {error}"
    raise SourceError(f"rosbag:{location}: no bag can be read; {first_fault}")


def _suggest(bag: Bag) -> dict[str, Any]:
    picture_topics, number_topics = _sort(bag)
    features: dict[str, dict[str, Any]] = {}
    topic_by_camera = {_CAMERA_PARTS.sub("", topic) or topic: topic for topic in picture_topics}
    for camera_name, camera_topic in camera_names(list(topic_by_camera)).items():
        features[f"observation/{camera_name}"] = {"topic": topic_by_camera[camera_topic]}
    for topic, is_text in number_topics.items():
        vector = "language" if is_text else "action" if _ACTION.search(topic) else "state"
        features[vector if is_text and vector not in features else f"{vector}{topic}"] = {"topic": topic}
    if not features:
        raise MalformedEpisode(f"has no pictures and no numbers; it has {'; '.join(list_topics(bag)) or 'no topics'}")
    colour_topics = [topic for topic, has_colours in picture_topics.items() if has_colours]
    roles = dict(zip(colour_topics, camera_roles(colour_topics), strict=True))
    first_topic = next(iter({**picture_topics, **number_topics}))
    clock = next((topic for topic, role in roles.items() if role == "primary"), first_topic)
    stamps = "header" if has_header(bag.types, bag.message_type(clock)) else "receive"
    return {"rate": _rate(bag, clock), "clock": clock, "stamps": stamps, "features": features}


def _sort(bag: Bag) -> tuple[dict[str, bool], dict[str, bool]]:
    """Return whether each topic of pictures has colours, these first, and whether each of values has texts."""
    picture_topics: dict[str, tuple[str, bool]] = {}
    number_topics: dict[str, bool] = {}
    for topic, topic_info in bag.topics.items():
        if _IGNORED.search(topic) or not topic_info.msgcount:
            continue
        # Topics of other content are left out.
        with contextlib.suppress(MalformedEpisode):
            message_type = bag.message_type(topic)
            if not is_picture(message_type):
                number_topics[topic] = find_field(bag.types, message_type, None).dtype == "string"
                continue
            camera = _CAMERA_PARTS.sub("", topic) or topic
            # Of a picture that exists twice take the compressed one, which needs no encoding.
            if camera not in picture_topics or message_type == COMPRESSED:
                form = picture_form(next(bag.messages([topic])).content, None)
                picture_topics[camera] = topic, form.dtype == "uint8"
    return dict(sorted(picture_topics.values(), key=lambda topic: not topic[1])), number_topics


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
    context = f"rosbag:{location}"
    if not layout:
        raise UsageError(_without_layout(context, bag_paths))
    bag_layout = parse_layout(layout, context=context)
    table_rows = None
    if bag_layout.episodes and bag_layout.episodes.csv:
        bag_files = [str(bag_path.relative_to(root)) for bag_path in bag_paths]
        table_rows = read_rows(Path(root, bag_layout.episodes.csv), bag_files)
    kind = _fit(BagFiles(root=root, layout=bag_layout, rows=table_rows), bag_paths, context=context)
    name = Path(root).name
    facts = {"description": f"Bags of {name}.", "control_frequency": bag_layout.rate}
    source = open_files(root, bag_paths, kind, dataset_name=name, entry_facts=facts, libraries=("rosbags",))
    return replace(source, entry=_with_names(source.entry, kind), remarks=(*source.remarks, *kind.remarks))


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
        clock = f"clock: {layout.rate:g} Hz from {layout.clock}, gaps above {layout.max_gap:g} s are damage"
        if layout.stamps == "receive":
            return clock, "stamps: times of receipt"
        received = f", of {', '.join(self.received)} (no header) times of receipt" if self.received else ""
        return clock, f"stamps: those of headers{received}"

    def survey(self, path: Path) -> Mapping[str, Sequence[FileEpisode]]:
        """Return the episodes of a bag, without their counts of steps; the bag is read only if a topic cuts it."""
        num_episodes = 1 if self.rows is None else len(self._rows_of(path))
        if self.layout.episodes and self.layout.episodes.topic:
            with open_bag(path, distribution=self.layout.distribution) as bag:
                num_episodes = len(cut_by_topic(bag, self.layout.episodes))
        return {"": [FileEpisode(episode_number, None) for episode_number in range(num_episodes)]}

    def cuts(self, bag: Bag, path: Path) -> list[Cut]:
        """Return the episodes of a bag. Raises DamagedEpisode if it lacks the topic that cuts it."""
        if self.layout.episodes is None:
            return [Cut()]
        if self.rows is None:
            return cut_by_topic(bag, self.layout.episodes)
        return cut_by_rows(bag, self._rows_of(path), self.layout.episodes, max_overrun=self.layout.gap)

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
    """Return the kind with the names of the first bag that fits and has all messages, or else of the first that fits.

    Raises:
        ConfigError: None of the first bags that can be read fits.
        SourceError: No bag can be read, or none has a message.
    """
    layout = bag_files.layout
    topics = {stream.topic for stream in layout.features.values()}
    fitting: list[BagFiles] = []
    misfit_messages: list[str] = []
    fault_messages: list[str] = []
    for bag_path in bag_paths:
        try:
            with open_bag(bag_path, distribution=layout.distribution) as bag:
                if not any(topic.msgcount for topic in bag.topics.values()):
                    raise DamagedEpisode("has no messages", reason="unreadable")
                joints = first_joints(bag, layout)
                streams = Streams(bag, layout, joints)
                bag_files.cuts(bag, bag_path)
                has_all = all(bag.topics[topic].msgcount for topic in topics)
        except MalformedEpisode as error:
            misfit_messages.append(f"{bag_path.name}: {error}")
        except DamagedEpisode as error:
            fault_messages.append(f"{bag_path.name}: {error}")
        else:
            names = {name: stream.field.names for name, stream in streams.open.items() if stream.field}
            received = tuple(sorted({layout.clock, *topics} - streams.headers))
            fitting.append(replace(bag_files, joints=joints, names=names, received=received))
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


def _without_layout(context: str, bag_paths: Sequence[Path]) -> str:
    for bag_path in bag_paths:
        try:
            with open_bag(bag_path) as bag:
                topics_text = "\n  ".join(list_topics(bag))
            break
        except DamagedEpisode as error:
            topics_text = str(error)
    return (
        f"{context}: bags need a layout, which says what the topics are; print one with pairstream draft {context}\n"
        f"  {bag_path.name} has\n  {topics_text}"
    )
