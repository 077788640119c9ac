"""Episode of a bag: its clock, the messages of each feature, and the message of each step.

Numbers and stamps of an episode are in memory; its pictures are read a second time, one after the other, when they are
requested.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from convert.errors import CorruptFrame, DamagedEpisode, MalformedEpisode
from convert.source.files.plain import Pictures, PlainEpisode
from convert.source.rosbag.bag import Bag
from convert.source.rosbag.cuts import Cut
from convert.source.rosbag.layout import LANGUAGE, STAMP, Layout
from convert.source.rosbag.pictures import picture_form, read_picture
from convert.source.rosbag.streams import OpenStream, Streams

MOST_STEPS = 10_000_000
"""Most steps of an episode; more result from wrong stamps."""


def check_stamps(stamps: np.ndarray, topic: str, *, max_setback: int) -> None:
    """Refuse stamps of a topic that cannot come from a clock.

    Args:
        stamps: int64 in nanoseconds, in the order of receipt.
        max_setback: Most by which a stamp may lie before an earlier one.

    Raises:
        MalformedEpisode: A stamp is 0, or the clock was set back.
    """
    if num_zeros := int((stamps == 0).sum()):
        raise MalformedEpisode(f"{topic}: {num_zeros} of {len(stamps)} stamps are 0; take layout: stamps: receive")
    setbacks = np.maximum.accumulate(stamps) - stamps
    if len(setbacks) and setbacks.max() > max_setback:
        worst_message = int(setbacks.argmax())
        seconds = setbacks[worst_message] / 1e9
        raise MalformedEpisode(f"{topic}: the clock jumps back by {seconds:.3f} s at message {worst_message}")


def make_ticks(clock_stamps: np.ndarray, start_time: int, *, rate: float) -> np.ndarray:
    """Return the times of the steps.

    The first step is the first stamp of the clock at or after ``start_time``. Further steps follow at the rate, until
    half a period after the clock's last stamp.

    Args:
        clock_stamps: Stamps of the clock's topic, int64 in nanoseconds, ascending.
        start_time: Time from which every feature has a value.

    >>> make_ticks(np.array([0, 100, 200, 290]) * 1_000_000, 50_000_000, rate=10).tolist()
    [100000000, 200000000, 300000000]

    Raises:
        MalformedEpisode: There is no such step, or there are more than ``MOST_STEPS``.
    """
    first_tick = int(np.searchsorted(clock_stamps, start_time))
    if first_tick == len(clock_stamps):
        raise MalformedEpisode("the clock's topic ends before every feature has a value")
    num_steps = int((int(clock_stamps[-1]) - int(clock_stamps[first_tick])) * rate / 1e9 + 0.5) + 1
    if num_steps > MOST_STEPS:
        raise MalformedEpisode(f"the clock's topic spans {num_steps:,} steps, so its stamps are wrong")
    return int(clock_stamps[first_tick]) + np.round(np.arange(num_steps) * (1e9 / rate)).astype(np.int64)


def choose(stamps: np.ndarray, ticks: np.ndarray, *, nearest: bool) -> np.ndarray:
    """Return the number of each step's message: the last at or before it, or the nearest, the earlier of two.

    Args:
        stamps: int64, ascending; the first lies at or before the first step.

    >>> choose(np.array([0, 10, 10, 20]), np.array([0, 10, 16]), nearest=False).tolist()
    [0, 2, 2]
    >>> choose(np.array([0, 10, 10, 20]), np.array([0, 10, 16]), nearest=True).tolist()
    [0, 2, 3]
    """
    last_before = np.maximum(np.searchsorted(stamps, ticks, side="right") - 1, 0)
    if not nearest:
        return last_before
    following = np.minimum(last_before + 1, len(stamps) - 1)
    return np.where(np.abs(stamps[following] - ticks) < np.abs(ticks - stamps[last_before]), following, last_before)


class _Series(NamedTuple):
    """The messages of a feature in the order of receipt: their stamps, and their values or forms of pictures."""

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
    clock_stamps, series_by_name = _scan(bag, layout, streams, cut)
    sorted_stamps = {}
    receipt_orders = {}
    for name, series in series_by_name.items():
        topic = layout.features[name].topic
        if not series.stamps:
            raise MalformedEpisode(f"{name}: {topic} has no message in the episode")
        stamps = np.array(series.stamps, np.int64)
        check_stamps(stamps, topic, max_setback=layout.gap)
        receipt_orders[name] = np.argsort(stamps, kind="stable")
        sorted_stamps[name] = stamps[receipt_orders[name]]
    if not clock_stamps:
        raise MalformedEpisode(f"{layout.clock} has no message in the episode, so it has no steps")
    clock_times = np.array(clock_stamps, np.int64)
    check_stamps(clock_times, layout.clock, max_setback=layout.gap)
    start_time = max(int(stamps[0]) for stamps in sorted_stamps.values())
    ticks = make_ticks(np.sort(clock_times), start_time, rate=layout.rate)
    steps: dict[str, Any] = {STAMP: ticks}
    for name, stream in streams.open.items():
        series = series_by_name[name]
        # Messages are chosen by their stamps, but numbered in the order in which the bag yields them.
        positions = choose(sorted_stamps[name], ticks, nearest=stream.nearest)
        ages = np.abs(ticks - sorted_stamps[name][positions])
        chosen = receipt_orders[name][positions]
        if stream.field is None:
            form = series.values[0]
            missing = np.where(ages > layout.gap, ages, 0)
            pictures = _PictureSource(bag, streams, stream, cut, series.stamps, chosen, missing)
            steps[name] = Pictures((len(ticks), *form.shape), np.dtype(form.dtype), pictures.read)
            continue
        if not stream.holds and ages.max() > layout.gap:
            step = int(ages.argmax())
            raise MalformedEpisode(
                f"{name}: {stream.stream.topic} has no message for {ages[step] / 1e9:.3f} s at step {step} "
                f"({(ticks[step] - ticks[0]) / 1e9:.2f} s), more than max_gap {layout.max_gap:g} s"
            )
        steps[name] = _stack([series.values[number] for number in chosen], name, stream)
    episode_values = {LANGUAGE: layout.language} if layout.language else {}
    return PlainEpisode(steps, {**episode_values, **cut.values})


def _scan(bag: Bag, layout: Layout, streams: Streams, cut: Cut) -> tuple[list[int], dict[str, _Series]]:
    """Return the stamps of the clock's topic, and the messages of each feature."""
    clock_stamps: list[int] = []
    series_by_name = {feature_name: _Series([], []) for feature_name in streams.open}
    # A value that holds may have been received before the episode.
    for holds, start_time in ((False, cut.start), (True, None)):
        names_by_topic: dict[str, list[str]] = {} if holds else {layout.clock: []}
        for feature_name, stream in streams.open.items():
            if stream.holds == holds:
                names_by_topic.setdefault(stream.stream.topic, []).append(feature_name)
        for message in bag.messages(names_by_topic, start_time, cut.stop):
            stamp = streams.stamp(message)
            if not holds and message.topic == layout.clock:
                clock_stamps.append(stamp)
            for feature_name in names_by_topic[message.topic]:
                value = _value(streams.open[feature_name], message.content, feature_name)
                if value is not None:
                    series_by_name[feature_name].stamps.append(stamp)
                    series_by_name[feature_name].values.append(value)
    return clock_stamps, series_by_name


def _value(stream: OpenStream, message: Any, feature_name: str) -> Any:
    try:
        if stream.field is None:
            return picture_form(message, stream.stream.encoding)
        field_value = stream.field.read(message)
    except MalformedEpisode as error:
        raise MalformedEpisode(f"{feature_name}: {stream.stream.topic}: {error}") from None
    # A copy, because arrays of messages are views that keep the complete message in memory.
    return np.array(field_value, stream.field.dtype) if isinstance(field_value, np.ndarray) else field_value


def _stack(values: list[Any], feature_name: str, stream: OpenStream) -> Any:
    assert stream.field is not None
    if stream.field.dtype == "string":
        return values
    shapes = {np.shape(value) for value in values}
    if len(shapes) > 1 or 0 in min(shapes):
        counts = " and ".join(str(shape[0]) for shape in sorted(shapes))
        raise MalformedEpisode(
            f"{feature_name}: {stream.stream.topic} has messages of {counts} values, expected as many in all"
        )
    stacked = np.array(values, stream.field.dtype)
    if (names := stream.stream.names) and stacked.shape[1:] != (len(names),):
        fault = f"has {stacked.shape[1:]} values for {len(names)} names"
        raise MalformedEpisode(f"{feature_name}: {stream.stream.topic} {fault}")
    return stacked


class _PictureSource(NamedTuple):
    """The pictures of a camera in an episode.

    Attributes:
        stamps: Stamp of each message of the topic, in the order of receipt.
        chosen: Number of the message of each step.
        missing: Nanoseconds from the step to its message if they exceed the gap, else 0.
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

        The messages are read once, in order. A picture stays in memory until its last step. Several are in memory only
        if messages were received in another order than that of their stamps.
        """
        topic = self.stream.stream.topic
        last_step = {number: step for step, number in enumerate(self.chosen.tolist()) if not self.missing[step]}
        messages = enumerate(self.bag.messages([topic], self.cut.start, self.cut.stop))
        ready_pictures: dict[int, np.ndarray | bytes | CorruptFrame] = {}
        end_fault: CorruptFrame | None = None
        for step, chosen_message in enumerate(self.chosen.tolist()):
            if self.missing[step]:
                yield CorruptFrame(f"{topic}: no picture for {self.missing[step] / 1e9:.3f} s")
                continue
            while chosen_message not in ready_pictures and end_fault is None:
                try:
                    message_number, message = next(messages)
                    if self.streams.stamp(message) != self.stamps[message_number]:
                        raise DamagedEpisode("the bag was changed while it was read", reason="unreadable")
                    if message_number in last_step:
                        ready_pictures[message_number] = self._decode(message.content)
                except (StopIteration, IndexError, DamagedEpisode) as error:
                    end_fault = CorruptFrame(f"{topic}: {error or 'the bag was changed while it was read'}")
            yield ready_pictures.get(chosen_message, end_fault or CorruptFrame(topic))
            if last_step[chosen_message] == step:
                ready_pictures.pop(chosen_message, None)

    def _decode(self, message: Any) -> np.ndarray | bytes | CorruptFrame:
        try:
            return read_picture(message, self.stream.stream.encoding)
        except (CorruptFrame, MalformedEpisode) as error:
            return CorruptFrame(f"{self.stream.stream.topic}: {error}")
