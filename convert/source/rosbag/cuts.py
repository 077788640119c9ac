"""Where episodes begin and end in a bag: the whole, as a topic tells, or as a table does."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from convert.errors import ConfigError, MalformedEpisode
from convert.source.rosbag.bag import Bag
from convert.source.rosbag.fields import find_field
from convert.source.rosbag.layout import MARK, Cuts
from stream.base.errors import closest

_COLUMNS = ("file", "start", "stop")


class Cut(NamedTuple):
    """An episode of a bag: its messages are those received in [start, stop).

    Attributes:
        start, stop: In nanoseconds, None for the beginning and the end of the bag.
        values: Values of the episode by name.
        fault: Reason why it is none, or empty.
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
    """Return the episodes that a topic tells; what was received before its first message is in none.

    Raises:
        MalformedEpisode: The bag has no such topic or field.
    """
    topic = cuts.topic or ""
    field = find_field(bag.types, bag.message_type(topic), cuts.field)
    marks = [(message.received, field.read(message.content)) for message in bag.messages([topic])]
    if any(getattr(value, "shape", ()) for _, value in marks):
        raise MalformedEpisode(f"episodes: field {cuts.field!r} of {topic} is an array, expected one value")
    runs = [(value, next(group)[0]) for value, group in groupby(marks, key=lambda mark: mark[1])]
    stops: list[int | None] = [start for _, start in runs[1:]]
    found = []
    for (value, start), stop in zip(runs, [*stops, None], strict=True):
        if field.dtype == "bool":
            fault = "" if stop is not None else f"the bag ends before {topic} ends the episode"
            if value:
                found.append(Cut(start, stop, {}, fault))
        elif str(value) not in cuts.without:
            found.append(Cut(start, stop, {MARK: value}))
    return found


def cut_by_rows(bag: Bag, rows: Sequence[Row], cuts: Cuts, *, gap: int) -> list[Cut]:
    """Return the episodes of a table's rows; one that goes beyond the bag by more than ``gap`` has a fault."""
    origin = bag.start if cuts.times == "bag" else 0
    found = []
    for row in rows:
        start, stop = (origin + round(seconds * 1e9) for seconds in (row.start, row.stop))
        beyond = start < bag.start - gap or stop > bag.stop + gap
        first, last = ((time - origin) / 1e9 for time in (bag.start, bag.stop))
        fault = f"line {row.line}: {row.start:g} to {row.stop:g} s, but the bag has {first:.2f} to {last:.2f} s"
        found.append(Cut(start, stop, row.values, fault if beyond else ""))
    return found


def read_rows(path: Path, files: Sequence[str]) -> dict[str, tuple[Row, ...]]:
    """Return the rows of a table by file.

    Args:
        path: CSV with the columns file, start and stop, and further ones: numbers where all rows have numbers.
        files: Files there are; the table may name them without folder and without ending.

    Raises:
        ConfigError: The table cannot be read, lacks a column, or has a row that is not valid; names the line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restkey="", strict=True)
            lines = [(reader.line_num, row) for row in reader]
            columns = list(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if absent := [name for name in _COLUMNS if name not in columns]:
        raise ConfigError(f"{path}: has no column {absent[0]}; {closest(absent[0], columns, noun='columns')}")
    for number, row in lines:
        if "" in row or None in row.values():
            raise ConfigError(f"{path}: line {number} has another number of cells than the {len(columns)} columns")
    others = {name: _typed([row[name] for _, row in lines]) for name in columns if name not in _COLUMNS}
    found: dict[str, list[Row]] = {}
    for place, (number, row) in enumerate(lines):
        matching = [file for file in files if row["file"] in (file, Path(file).name, Path(file).stem)]
        if len(matching) != 1:
            fault = f"is {len(matching)} files" if matching else closest(row["file"], files, noun="files")
            raise ConfigError(f"{path}: line {number}: file {row['file']!r:.80}: {fault}")
        start, stop = _seconds(row["start"]), _seconds(row["stop"])
        if start is None or stop is None or not start < stop:
            times = f"{row['start']!r:.20} to {row['stop']!r:.20}"
            raise ConfigError(f"{path}: line {number}: {times}, expected seconds, start before stop")
        values = {name: column[place] for name, column in others.items()}
        found.setdefault(matching[0], []).append(Row(number, start, stop, values))
    return {file: tuple(rows) for file, rows in found.items()}


def _seconds(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if abs(found) < 1e10 else None


def _typed(texts: Sequence[str]) -> list[Any]:
    """Return the cells of a column as integers, as floats, or as they are, whichever holds for all."""
    for kind in (int, float):
        try:
            return [kind(text) for text in texts]
        except ValueError:
            continue
    return list(texts)
