"""Episodes of a bag: one, or cut by the values of a topic, or by the rows of a table."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from convert.errors import ConfigError, MalformedEpisode
from convert.source.rosbag.bag import Bag
from convert.source.rosbag.layout import MARK, Cuts
from convert.source.rosbag.streams import find_field
from stream.base.errors import closest

_COLUMNS = ("file", "start", "stop")


class Cut(NamedTuple):
    """An episode of a bag: its messages are those received in [start, stop).

    Attributes:
        start: Nanoseconds, None for the beginning of the bag.
        stop: Nanoseconds, None for the end of the bag.
        values: Values of the episode by name.
        fault: Reason why it cannot be used, or empty.
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
    """Return the episodes that the values of a topic cut; messages before its first one belong to none.

    Raises:
        MalformedEpisode: The bag has no such topic or field.
    """
    topic = cuts.topic or ""
    field = find_field(bag.types, bag.message_type(topic), cuts.field)
    marked_times = [(message.received, field.read(message.content)) for message in bag.messages([topic])]
    if any(getattr(value, "shape", ()) for _, value in marked_times):
        raise MalformedEpisode(f"episodes: field {cuts.field!r} of {topic} is an array, expected one value")
    value_runs = [(value, next(run)[0]) for value, run in groupby(marked_times, key=lambda mark: mark[1])]
    end_times: list[int | None] = [start_time for _, start_time in value_runs[1:]]
    episode_cuts = []
    for (mark_value, start_time), end_time in zip(value_runs, [*end_times, None], strict=True):
        if field.dtype == "bool":
            fault = "" if end_time is not None else f"the bag ends before {topic} ends the episode"
            if mark_value:
                episode_cuts.append(Cut(start_time, end_time, {}, fault))
        elif str(mark_value) not in cuts.without:
            episode_cuts.append(Cut(start_time, end_time, {MARK: mark_value}))
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
    """Return the rows of a table by file.

    Args:
        table_path: CSV with the columns file, start and stop; further columns are numbers if all their cells are.
        bag_files: Existing files; the table may omit their folder and suffix.

    Raises:
        ConfigError: The table cannot be read, lacks a column, or has a row that is not valid; names the line.
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
            fault = f"has another number of cells than the {len(columns)} columns"
            raise ConfigError(f"{table_path}: line {line_number} {fault}")
    value_columns = {name: _typed([row[name] for _, row in numbered_rows]) for name in columns if name not in _COLUMNS}
    rows_by_file: dict[str, list[Row]] = {}
    for row_position, (line_number, row) in enumerate(numbered_rows):
        matching_files = [file for file in bag_files if row["file"] in (file, Path(file).name, Path(file).stem)]
        if len(matching_files) != 1:
            reason = f"is {len(matching_files)} files"
            if not matching_files:
                reason = closest(row["file"], bag_files, noun="files")
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
