"""One episode of a bag: the messages of each feature, and the one that stands for each step.

Numbers and stamps of an episode are in memory; its pictures are read a second time, one after the other, while they are
taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from convert.errors import CorruptFrame, DamagedEpisode, MalformedEpisode
from convert.source.files.plain import Pictures, PlainEpisode
from convert.source.rosbag.bag import Bag
from convert.source.rosbag.clock import check_stamps, choose, make_ticks
from convert.source.rosbag.cuts import Cut
from convert.source.rosbag.layout import LANGUAGE, STAMP, Layout
from convert.source.rosbag.pictures import look_at, read_picture
from convert.source.rosbag.streams import OpenStream, Streams


class _Series(NamedTuple):
    """The messages of a feature in the order of receipt: their stamps, and their values or how the pictures look."""

    stamps: list[int]
    values: list[Any]


def read_episode(bag: Bag, layout: Layout, streams: Streams, cut: Cut) -> PlainEpisode:
    """Read an episode.

    Raises:
        MalformedEpisode: A feature has no message, a gap of numbers or values of differing shapes, or a clock that
            cannot be right.
        DamagedEpisode: The bag cannot be read.
    """
    if cut.fault:
        raise MalformedEpisode(cut.fault)
    clock, series = _scan(bag, layout, streams, cut)
    sorted_stamps = {}
    orders = {}
    for name, found in series.items():
        topic = layout.features[name].topic
        if not found.stamps:
            raise MalformedEpisode(f"{name}: {topic} has no message in the episode")
        stamps = np.array(found.stamps, np.int64)
        check_stamps(stamps, topic, gap=layout.gap)
        orders[name] = np.argsort(stamps, kind="stable")
        sorted_stamps[name] = stamps[orders[name]]
    if not clock:
        raise MalformedEpisode(f"{layout.clock} has no message in the episode, so it has no steps")
    times = np.array(clock, np.int64)
    check_stamps(times, layout.clock, gap=layout.gap)
    ticks = make_ticks(np.sort(times), max(int(stamps[0]) for stamps in sorted_stamps.values()), rate=layout.rate)
    steps: dict[str, Any] = {STAMP: ticks}
    for name, stream in streams.open.items():
        places = choose(sorted_stamps[name], ticks, nearest=stream.nearest)
        ages = np.abs(ticks - sorted_stamps[name][places])
        chosen = orders[name][places]
        if stream.field is None:
            look = series[name].values[0]
            missing = np.where(ages > layout.gap, ages, 0)
            source = _PictureSource(bag, streams, stream, cut, series[name].stamps, chosen, missing)
            steps[name] = Pictures((len(ticks), *look.shape), np.dtype(look.dtype), source.read)
            continue
        if not stream.holds and ages.max() > layout.gap:
            at = int(ages.argmax())
            raise MalformedEpisode(
                f"{name}: {stream.stream.topic} has no message for {ages[at] / 1e9:.3f} s at step {at} "
                f"({(ticks[at] - ticks[0]) / 1e9:.2f} s), more than max_gap {layout.max_gap:g} s"
            )
        steps[name] = _values([series[name].values[each] for each in chosen], name, stream)
    values = {LANGUAGE: layout.language} if layout.language else {}
    return PlainEpisode(steps, {**values, **cut.values})


def _scan(bag: Bag, layout: Layout, streams: Streams, cut: Cut) -> tuple[list[int], dict[str, _Series]]:
    """Return the stamps of the clock's topic, and the messages of each feature."""
    clock: list[int] = []
    series = {name: _Series([], []) for name in streams.open}
    # What holds may be from before the episode.
    for holds, start in ((False, cut.start), (True, None)):
        readers: dict[str, list[str]] = {} if holds else {layout.clock: []}
        for name, stream in streams.open.items():
            if stream.holds == holds:
                readers.setdefault(stream.stream.topic, []).append(name)
        for message in bag.messages(readers, start, cut.stop):
            stamp = streams.stamp(message)
            if not holds and message.topic == layout.clock:
                clock.append(stamp)
            for name in readers[message.topic]:
                value = _value(streams.open[name], message.content, name)
                if value is not None:
                    series[name].stamps.append(stamp)
                    series[name].values.append(value)
    return clock, series


def _value(stream: OpenStream, message: Any, name: str) -> Any:
    try:
        if stream.field is None:
            return look_at(message, stream.stream.encoding)
        found = stream.field.read(message)
    except MalformedEpisode as error:
        raise MalformedEpisode(f"{name}: {stream.stream.topic}: {error}") from None
    # A copy, because arrays of messages are views that keep the whole message.
    return np.array(found, stream.field.dtype) if isinstance(found, np.ndarray) else found


def _values(values: list[Any], name: str, stream: OpenStream) -> Any:
    assert stream.field is not None
    if stream.field.dtype == "string":
        return values
    shapes = {np.shape(value) for value in values}
    if len(shapes) > 1 or 0 in min(shapes):
        counts = " and ".join(str(shape[0]) for shape in sorted(shapes))
        raise MalformedEpisode(
            f"{name}: {stream.stream.topic} has messages of {counts} values, expected as many in all"
        )
    found = np.array(values, stream.field.dtype)
    if (names := stream.stream.names) and found.shape[1:] != (len(names),):
        raise MalformedEpisode(f"{name}: {stream.stream.topic} has {found.shape[1:]} values for {len(names)} names")
    return found


class _PictureSource(NamedTuple):
    """The pictures of a camera in an episode.

    Attributes:
        stamps: Stamp of each message of the topic, in the order of receipt.
        chosen: Number of the message of each step.
        missing: Nanoseconds from the step to its message where they are too many, else 0.
    """

    bag: Bag
    streams: Streams
    stream: OpenStream
    cut: Cut
    stamps: list[int]
    chosen: np.ndarray
    missing: np.ndarray

    def read(self) -> Iterator[np.ndarray | bytes | CorruptFrame]:
        """Yield the picture of each step.

        The messages are read once, in order. A picture stays in memory until its last step, so there are several only
        where messages were received in another order than that of their stamps.
        """
        topic = self.stream.stream.topic
        last = {number: step for step, number in enumerate(self.chosen.tolist()) if not self.missing[step]}
        messages = enumerate(self.bag.messages([topic], self.cut.start, self.cut.stop))
        ready: dict[int, np.ndarray | bytes | CorruptFrame] = {}
        end: CorruptFrame | None = None
        for step, number in enumerate(self.chosen.tolist()):
            if self.missing[step]:
                yield CorruptFrame(f"{topic}: no picture for {self.missing[step] / 1e9:.3f} s")
                continue
            while number not in ready and end is None:
                try:
                    place, message = next(messages)
                    if self.streams.stamp(message) != self.stamps[place]:
                        raise DamagedEpisode("the bag was changed while it was read", reason="unreadable")
                    if place in last:
                        ready[place] = self._decode(message.content)
                except (StopIteration, IndexError, DamagedEpisode) as error:
                    end = CorruptFrame(f"{topic}: {error or 'the bag was changed while it was read'}")
            yield ready.get(number, end or CorruptFrame(topic))
            if last[number] == step:
                ready.pop(number, None)

    def _decode(self, message: Any) -> np.ndarray | bytes | CorruptFrame:
        try:
            return read_picture(message, self.stream.stream.encoding)
        except (CorruptFrame, MalformedEpisode) as error:
            return CorruptFrame(f"{self.stream.stream.topic}: {error}")
