"""Datasets of bags: ``rosbag:PATH`` with a layout of topics, see ``convert.source.rosbag.layout``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from convert.errors import ConfigError, DamagedEpisode, MalformedEpisode, SourceError, UsageError
from convert.source.files.source import FileEpisode, FileKind, FileReader, FilesSource, Found, open_files
from convert.source.rosbag.bag import Bag, list_topics, open_bag
from convert.source.rosbag.cuts import Cut, Row, cut_by_rows, cut_by_topic, read_rows
from convert.source.rosbag.draft import draft
from convert.source.rosbag.episode import read_episode
from convert.source.rosbag.layout import Layout, parse_layout
from convert.source.rosbag.names import find_bags
from convert.source.rosbag.streams import Streams, first_joints

_TRIED = 8
"""Bags that a layout is tried on before it is refused."""


def find(place: str, roots: Sequence[str], layout: Mapping[str, Any]) -> FilesSource:
    """Find bags.

    Args:
        place: A bag, a folder with bags below, or a glob.
        roots: Folders with ``place`` below, where it is no path itself.
        layout: See ``convert.source.rosbag.layout.Layout``.

    Raises:
        UsageError: There is no layout; lists the topics.
        ConfigError: The layout is not valid, or does not fit the bags.
        SourceError: There are no bags, or none that can be read.
    """
    root, paths = find_bags(place, roots)
    if not layout:
        raise UsageError(_without_layout(place, paths))
    parsed = parse_layout(layout, where=f"rosbag:{place}")
    names = [str(path.relative_to(root)) for path in paths]
    rows = None
    if parsed.episodes and parsed.episodes.csv:
        rows = read_rows(Path(root, parsed.episodes.csv), names)
    kind = _fit(BagFiles(root=root, layout=parsed, rows=rows), paths, where=f"rosbag:{place}")
    facts = {"description": f"Bags of {Path(root).name}.", "control_frequency": parsed.rate}
    source = open_files(root, paths, kind, name=Path(root).name, facts=facts, libraries=("rosbags",))
    return replace(source, entry=_with_names(source.entry, kind), remarks=(*source.remarks, *kind.remarks))


def suggest_layout(place: str, roots: Sequence[str]) -> dict[str, Any]:
    """Return a layout for the first bag that can be read, see ``convert.source.rosbag.draft``."""
    return draft(place, roots).layout


@dataclass(frozen=True, kw_only=True)
class BagFiles(FileKind):
    """How to read bags.

    Attributes:
        rows: Rows of the table that cuts the bags, by file; None without such a table.
        joints: Joints of the features of JointStates whose names are not declared.
        names: Names of the values of each feature, empty where they have none.
        received: Topics whose messages have the time when they were received.
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
        """Return the episodes of a bag, which is read only where a topic tells them; reading tells their steps."""
        count = 1 if self.rows is None else len(self._rows_of(path))
        if self.layout.episodes and self.layout.episodes.topic:
            with open_bag(path, distribution=self.layout.distribution) as bag:
                count = len(cut_by_topic(bag, self.layout.episodes))
        return {"": [FileEpisode(number, None) for number in range(count)]}

    def cuts(self, bag: Bag, path: Path) -> list[Cut]:
        """Return the episodes of a bag. Raises DamagedEpisode if it has no topic that tells them."""
        episodes = self.layout.episodes
        if episodes is None:
            return [Cut()]
        if self.rows is None:
            return cut_by_topic(bag, episodes)
        return cut_by_rows(bag, self._rows_of(path), episodes, gap=self.layout.gap)

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

    def episodes(self, numbers: Sequence[int] | None) -> Iterator[Found]:
        """Yield the episodes of these numbers, all for None."""
        streams = Streams(self.bag, self.kind.layout, self.kind.joints)
        cuts = self.kind.cuts(self.bag, self.path)
        for number in range(len(cuts)) if numbers is None else numbers:
            try:
                yield number, read_episode(self.bag, self.kind.layout, streams, cuts[number])
            except DamagedEpisode as error:
                yield number, error


def _fit(kind: BagFiles, paths: Sequence[Path], *, where: str) -> BagFiles:
    """Return the kind with the names that the first bag has that fits the layout and has every feature's messages.

    Where no bag has them all, the first that fits the layout is taken.

    Raises:
        ConfigError: None of the first bags that can be read fits.
        SourceError: No bag can be read, or none has a message.
    """
    fits: list[BagFiles] = []
    misfits: list[str] = []
    faults: list[str] = []
    for path in paths:
        try:
            with open_bag(path, distribution=kind.layout.distribution) as bag:
                if not any(topic.messages for topic in bag.topics.values()):
                    raise DamagedEpisode("has no messages", reason="unreadable")
                joints = first_joints(bag, kind.layout)
                streams = Streams(bag, kind.layout, joints)
                kind.cuts(bag, path)
                silent = [each for each in streams.open.values() if not bag.topics[each.stream.topic].messages]
        except MalformedEpisode as error:
            misfits.append(f"{path.name}: {error}")
        except DamagedEpisode as error:
            faults.append(f"{path.name}: {error}")
        else:
            names = {name: stream.field.names for name, stream in streams.open.items() if stream.field}
            topics = {kind.layout.clock, *(stream.topic for stream in kind.layout.features.values())}
            received = tuple(sorted(topics - streams.headers))
            fits.append(replace(kind, joints=joints, names=names, received=received))
            if not silent:
                return fits[-1]
        if len(misfits) + len(fits) == _TRIED:
            break
    if fits:
        return fits[0]
    if misfits:
        raise ConfigError(f"{where}: layout does not fit {misfits[0]}")
    raise SourceError(f"{where}: no bag can be read; {faults[0]}")


def _with_names(entry: Mapping[str, Any], kind: BagFiles) -> dict[str, Any]:
    """Return an entry whose action and state have the names of their values, where these are known."""

    def named(part: Mapping[str, Any]) -> dict[str, Any]:
        names = kind.names.get(part["path"], ())
        return {**part, "names": list(names)} if len(set(names)) == part["dims"] else dict(part)

    return {**entry, **{vector: [named(part) for part in entry[vector]] for vector in ("action", "state")}}


def _without_layout(place: str, paths: Sequence[Path]) -> str:
    for path in paths:
        try:
            with open_bag(path) as bag:
                topics = "\n  ".join(list_topics(bag))
        except DamagedEpisode as error:
            topics = str(error)
            continue
        break
    return (
        f"rosbag:{place}: bags need a layout, which says what the topics are; print one with pairstream draft "
        f"rosbag:{place}\n  {path.name} has\n  {topics}"
    )
