"""One shard of a converted dataset, opened once: its columns in full and some of its pairs."""

from __future__ import annotations

from dataclasses import dataclass

from convert.doctor_checks import Episodes, ShardColumns, check_columns
from convert.doctor_frames import FrameFacts, check_pairs, first_frames
from convert.doctor_rules import Example, Notes, Place
from convert.doctor_spec import Description
from convert.verify_frames import first_line
from stream.shards import OpenShard, ShardInfo


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """One shard to look at. records: numbers of those to decode; pictures: keep small ones for people."""

    info: ShardInfo
    spec: Description
    records: tuple[int, ...]
    pictures: bool


@dataclass(frozen=True, kw_only=True)
class ShardFacts:
    """What was found. columns: None where they cannot be read."""

    notes: Notes
    columns: ShardColumns | None
    frames: FrameFacts


@dataclass(frozen=True, kw_only=True)
class FirstFramesTask:
    """Episodes of a shard whose first frames are wanted. pictures: of how many."""

    info: ShardInfo
    rows: tuple[int, ...]
    pictures: int


def check_shard(task: ShardTask) -> ShardFacts:
    """Look at one shard; never raises, whatever is in the files."""
    notes, frames = Notes(), FrameFacts()
    columns = None
    try:
        shard = OpenShard(task.info)
        episodes = Episodes(shard)
        columns = check_columns(shard, episodes, task.spec, notes)
        if task.records:
            frames = check_pairs(shard, episodes, task.records, notes, pictures=task.pictures)
    except Exception as error:
        notes.add("unreadable", task.info.split, unreadable(task.info, first_line(error)))
    return ShardFacts(notes=notes, columns=columns, frames=frames)


def read_first_frames(task: FirstFramesTask) -> list[tuple[bytes, bytes | None]]:
    """Hash and picture of each episode's first frame; empty if they cannot be read, which is then another finding."""
    try:
        return first_frames(OpenShard(task.info), task.rows, pictures=task.pictures)
    except Exception:
        return []


def unreadable(info: ShardInfo, why: str) -> Example:
    """What to note of a shard that cannot be read."""
    return Example(place=Place(shard=info.stem), text=why.removeprefix(f"{info.folder}/"))
