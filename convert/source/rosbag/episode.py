"""Episodes of a bag: their cuts by a topic or a table, their clock, and the message of each feature at each step.

Numbers and stamps of an episode are in memory; its pictures are read a second time, one after the other, when they are
requested.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convert.errors import ConfigError, CorruptFrame, DamagedEpisode, MalformedEpisode
from convert.source.files.plain import MAX_STEPS, Pictures, PlainEpisode
from convert.source.rosbag.bag import Bag
from convert.source.rosbag.layout import LANGUAGE, MARK, STAMP, Cuts, Layout
from convert.source.rosbag.messages import OpenStream, Streams, find_field, picture_form, read_picture
from stream.base.errors import closest

_COLUMNS = ("file", "start", "stop")


class Cut(NamedTuple):
    """An episode of a bag: its messages are those received in [start, stop) nanoseconds, None for an end of the bag.

    It has values by name, and a reason why it cannot be used, or an empty one.
    """

    start: int | None = None
    stop: int | None = None
    values: Mapping[str, Any] = {}
    fault: str = ""


class Row(NamedTuple):
    """A line of a table: start and stop in seconds, and the values of the other columns by name."""

    line: int
    start: float
    stop: float
    values: Mapping[str, Any]


def cut_by_topic(bag: Bag, cuts: Cuts) -> list[Cut]:
    """Return the episodes that the values of a topic cut; messages before its first one belong to none."""
    topic = cuts.topic or ""
    field = find_field(bag.types, bag.message_type(topic), cuts.field)
    marked_times = [(message.received, field.read(message.content)) for message in bag.messages([topic])]
    if any(getattr(value, "shape", ()) for _, value in marked_times):
        raise MalformedEpisode(f"episodes: field {cuts.field!r} of {topic} is an array, expected one value")
    value_runs = [(value, next(run)[0]) for value, run in groupby(marked_times, key=lambda mark: mark[1])]
    end_times = [*(start_time for _, start_time in value_runs[1:]), None]
    episode_cuts = []
    for (mark_value, start_time), end_time in zip(value_runs, end_times, strict=False):
        if field.dtype != "bool" and str(mark_value) not in cuts.without:
            episode_cuts.append(Cut(start_time, end_time, {MARK: mark_value}))
        elif field.dtype == "bool" and mark_value:
            fault = "" if end_time is not None else f"the bag ends before {topic} ends the episode"
            episode_cuts.append(Cut(start_time, end_time, {}, fault))
    return episode_cuts


def cut_by_rows(bag: Bag, table_rows: Sequence[Row], cuts: Cuts, *, max_overrun: int) -> list[Cut]:
    """Return the episodes of a table's rows; a row that exceeds the bag by more than ``max_overrun`` has a fault."""
    origin = bag.start if cuts.times == "bag" else 0
    episode_cuts = []
    for row in table_rows:
        start, stop = (origin + round(seconds * 1e9) for seconds in (row.start, row.stop))
        exceeds_bag = start < bag.start - max_overrun or stop > bag.stop + max_overrun
        bag_start, bag_stop = ((time - origin) / 1e9 for time in (bag.start, bag.stop))
        fault = f"line {row.line}: {row.start:g} to {row.stop:g} s, but the bag has {bag_start:.2f} to {bag_stop:.2f} s"
        episode_cuts.append(Cut(start, stop, row.values, fault if exceeds_bag else ""))
    return episode_cuts


def read_rows(table_path: Path, bag_files: Sequence[str]) -> dict[str, tuple[Row, ...]]:
    """Return the rows of a CSV table by file; ConfigError names the line of a row that is not valid.

    Args:
        table_path: CSV with the columns file, start and stop; further columns are numbers if all their cells are.
        bag_files: Existing files; the table may omit their folder and suffix.
    """
    try:
        with table_path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restkey="", strict=True)
            numbered_rows = [(reader.line_num, row) for row in reader]
            columns = list(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{table_path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if missing_columns := [column_name for column_name in _COLUMNS if column_name not in columns]:
        hint = closest(missing_columns[0], columns, noun="columns")
        raise ConfigError(f"{table_path}: has no column {missing_columns[0]}; {hint}")
    for line_number, row in numbered_rows:
        if "" in row or None in row.values():
            fault = f"line {line_number} has another number of cells than the {len(columns)} columns"
            raise ConfigError(f"{table_path}: {fault}")
    value_columns = {name: _typed([row[name] for _, row in numbered_rows]) for name in columns if name not in _COLUMNS}
    rows_by_file: dict[str, list[Row]] = {}
    for row_position, (line_number, row) in enumerate(numbered_rows):
        matching_files = [file for file in bag_files if row["file"] in (file, Path(file).name, Path(file).stem)]
        if len(matching_files) != 1:
            count = f"is {len(matching_files)} files"
            reason = count if matching_files else closest(row["file"], bag_files, noun="files")
            raise ConfigError(f"{table_path}: line {line_number}: file {row['file']!r:.80}: {reason}")
        start, stop = _seconds(row["start"]), _seconds(row["stop"])
        if start is None or stop is None or not start < stop:
            times_text = f"{row['start']!r:.20} to {row['stop']!r:.20}"
            raise ConfigError(f"{table_path}: line {line_number}: {times_text}, expected seconds, start before stop")
        values = {column_name: cells[row_position] for column_name, cells in value_columns.items()}
        rows_by_file.setdefault(matching_files[0], []).append(Row(line_number, start, stop, values))
    return {file: tuple(rows) for file, rows in rows_by_file.items()}


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if abs(seconds) < 1e10 else None


def _typed(cells: Sequence[str]) -> list[Any]:
    """Return the cells of a column as integers or floats if all can be converted, else unchanged."""
    for number_type in (int, float):
        try:
            return [number_type(cell) for cell in cells]
        except ValueError:
            continue
    return list(cells)


def check_stamps(stamps: np.ndarray, topic: str, *, max_setback: int) -> None:
    """Raise MalformedEpisode if a stamp is 0, or lies more than ``max_setback`` ns before one received earlier."""
    if num_zeros := int((stamps == 0).sum()):
        raise MalformedEpisode(f"{topic}: {num_zeros} of {len(stamps)} stamps are 0; take layout: stamps: receive")
    setbacks = np.maximum.accumulate(stamps) - stamps
    if len(setbacks) and setbacks.max() > max_setback:
        worst_message = int(setbacks.argmax())
        seconds = setbacks[worst_message] / 1e9
        raise MalformedEpisode(f"{topic}: the clock jumps back by {seconds:.3f} s at message {worst_message}")


def make_ticks(clock_stamps: np.ndarray, start_time: int, *, rate: float) -> np.ndarray:
    """Return the times of the steps.

    The first step is the first stamp of the clock (int64, in nanoseconds, ascending) at or after ``start_time``, when
    every feature has a value. Further steps follow at the rate, until half a period after the clock's last stamp.

    >>> make_ticks(np.array([0, 100, 200, 290]) * 1_000_000, 50_000_000, rate=10).tolist()
    [100000000, 200000000, 300000000]

    Raises:
        MalformedEpisode: There is no such step, or there are more than ``MAX_STEPS``.
    """
    first_tick = int(np.searchsorted(clock_stamps, start_time))
    if first_tick == len(clock_stamps):
        raise MalformedEpisode("the clock's topic ends before every feature has a value")
    num_steps = int((int(clock_stamps[-1]) - int(clock_stamps[first_tick])) * rate / 1e9 + 0.5) + 1
    if num_steps > MAX_STEPS:
        raise MalformedEpisode(f"the clock's topic spans {num_steps:,} steps, so its stamps are wrong")
    return int(clock_stamps[first_tick]) + np.round(np.arange(num_steps) * (1e9 / rate)).astype(np.int64)


def choose(stamps: np.ndarray, ticks: np.ndarray, *, nearest: bool) -> np.ndarray:
    """Return the number of each step's message: the last at or before it, or the nearest, the earlier of two.

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
        DamagedEpisode: The bag cannot be read, a feature has no message, a gap of numbers or values of differing
            shapes, or the clock cannot be right.
    """
    if cut.fault:
        raise MalformedEpisode(cut.fault)
    clock_stamps, series_by_name = _scan(bag, layout, streams, cut)
    sorted_stamps, receipt_orders = {}, {}
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
            position = (
                f"at step {step} ({(ticks[step] - ticks[0]) / 1e9:.2f} s), more than max_gap {layout.max_gap:g} s"
            )
            raise MalformedEpisode(
                f"{name}: {stream.stream.topic} has no message for {ages[step] / 1e9:.3f} s {position}"
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
    context = f"{feature_name}: {stream.stream.topic}"
    shapes = {np.shape(value) for value in values}
    if len(shapes) > 1 or 0 in min(shapes):
        counts = " and ".join(str(shape[0]) for shape in sorted(shapes))
        raise MalformedEpisode(f"{context} has messages of {counts} values, expected as many in all")
    stacked = np.array(values, stream.field.dtype)
    if (names := stream.stream.names) and stacked.shape[1:] != (len(names),):
        raise MalformedEpisode(f"{context} has {stacked.shape[1:]} values for {len(names)} names")
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
        """Yield the picture of each step; messages are read once, and a picture is in memory until its last step."""
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
