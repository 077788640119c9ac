"""One shard of a converted split, opened once: its columns in full and some of its pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from convert.doctor.checks import ShardColumns, check_columns
from convert.doctor.columns import Episodes, OpenShard
from convert.doctor.frames import FrameFacts, check_pairs, first_frames
from convert.doctor.rules import Example, Notes, Place
from convert.doctor.spec import Description
from convert.report import fault, first_line
from convert.verify.split_shard import SplitShard, changed_columns, open_index_table
from stream.format.manifest import TableEntry
from stream.format.names import TABLE_KINDS, TableKind, table_file


@dataclass(frozen=True, kw_only=True)
class IndexTask:
    """The index of a split to check before its shards are looked at.

    Attributes:
        folder: Folder of the split.
        index: Manifest's entries of the tables.
        totals: Rows of the tables.
    """

    folder: str
    index: Mapping[TableKind, TableEntry]
    totals: Mapping[TableKind, int]


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """One shard to look at.

    Attributes:
        place: Shard and its rows in the index.
        spec: Vectors and instructions of the dataset.
        records: Numbers of the records to decode.
        pictures: Whether to keep small pictures for people.
    """

    place: SplitShard
    spec: Description
    records: tuple[int, ...]
    pictures: bool


@dataclass(frozen=True, kw_only=True)
class ShardFacts:
    """What was found.

    Attributes:
        notes: Findings.
        columns: What the columns say, None if they cannot be read.
        frames: What the pairs show.
    """

    notes: Notes
    columns: ShardColumns | None
    frames: FrameFacts


@dataclass(frozen=True, kw_only=True)
class FirstFramesTask:
    """Episodes of a shard whose first frames are wanted.

    Attributes:
        place: Shard and its rows in the index.
        rows: Episodes, counted in the shard.
        pictures: Number of episodes to return a small picture of.
    """

    place: SplitShard
    rows: tuple[int, ...]
    pictures: int


def check_index(task: IndexTask) -> list[Example]:
    """Return why each table that is not the one in the manifest cannot be used; never raises."""
    found = []
    for kind in TABLE_KINDS:
        path = Path(task.folder, table_file(kind))
        try:
            table = open_index_table(path.parent, kind, task.index[kind], task.totals[kind])
            faults = list(changed_columns(table, task.index[kind]))
        except Exception as error:
            faults = [fault(error, path)]
        found += [Example(place=Place(shard=path.name), text=text) for text in faults[:1]]
    return found


def check_shard(task: ShardTask) -> ShardFacts:
    """Look at one shard; never raises, whatever is in the files."""
    notes, frames = Notes(), FrameFacts()
    columns = None
    try:
        shard = OpenShard(task.place)
        episodes = Episodes(shard)
        columns = check_columns(shard, episodes, task.spec, notes)
        shard.open_records()
        if task.records:
            frames = check_pairs(shard, episodes, task.records, notes, pictures=task.pictures)
    except Exception as error:
        notes.add("unreadable", task.place.split, unreadable(task.place, first_line(error)))
    return ShardFacts(notes=notes, columns=columns, frames=frames)


def read_first_frames(task: FirstFramesTask) -> list[tuple[bytes, bytes | None]]:
    """Return hash and picture of each episode's first frame; empty if they cannot be read, which is another finding."""
    try:
        return first_frames(OpenShard(task.place), task.rows, pictures=task.pictures)
    except Exception:
        return []


def unreadable(place: SplitShard, why: str) -> Example:
    """Return what to note of a shard that cannot be read."""
    return Example(place=Place(shard=place.name), text=why.removeprefix(f"{place.folder}/"))
