"""Random tables of labels, and loops over their rows that say for each step of a dataset which labels it gets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.stream.index_root import change_table, open_split, write_dataset

LABELS = ("x", "grade", "good", "said", "vector", "weight")
WORDS = ("reach", "", "grasp ☕")
DATASETS: dict[str, dict[str, list[list[int]]]] = {
    "plain": {"train": [[5, 3], [4]]},
    "splits": {"train": [[5, 0, 4]], "val": [[3]]},
    "numbered": {"train": [[4, 3], [5]], "val": [[3, 4]]},
    "joined": {"train": [[4, 3], [5, 3, 4]]},
}
NUMBERS: dict[str, list[int | None]] = {"numbered": [7, 2, 9, 0, 4], "joined": [0, 1, 0, 2, None]}
"""LeRobot's numbers of the episodes of all splits; in a dataset made of two some come again, or are missing."""
Row = dict[str, Any]


class Refused(Exception):
    """The reference says that a table does not fit."""


@dataclass(frozen=True)
class Episode:
    """An episode of a split: its number there, its id, LeRobot's number, and its count of steps."""

    split: str
    number: int
    episode_id: str
    episode_index: int | None
    length: int

    def key(self, name: str) -> Any:
        return self.number if name == "episode" else getattr(self, name)


@dataclass(frozen=True)
class RandomTable:
    """A table, the split that it is of, and the form in which it is given."""

    rows: list[Row]
    split: str | None
    form: str


def write_datasets(root: Path) -> None:
    for name, splits in DATASETS.items():
        folder = write_dataset(root, name, splits)
        numbers = iter(NUMBERS.get(name, ()))
        for split in splits if name in NUMBERS else ():
            values = pa.array([next(numbers) for shard in splits[split] for _ in shard], pa.int64())

            def with_numbers(table: pa.Table, values: pa.Array = values) -> pa.Table:
                return table.append_column("episode_index", values)

            change_table(folder, "episodes", with_numbers, split=split)


def episodes_of(root: Path, name: str) -> list[Episode]:
    episodes = []
    numbers = iter(NUMBERS.get(name, ()))
    for split, shards in DATASETS[name].items():
        ids = open_split(next((root / name).glob("*")), split).episodes.arrow().column("episode_id").to_pylist()
        for number, length in enumerate(length for shard in shards for length in shard):
            index = next(numbers) if name in NUMBERS else number
            episodes.append(Episode(split, number, ids[number], index, length))
    return episodes


def random_table(random: np.random.Generator, name: str, episodes: Sequence[Episode]) -> RandomTable:
    """Return a table of random keys, of which some do not fit."""

    def some(items: Sequence[Any], share: float) -> list[Any]:
        order = random.permutation(len(items))[: max(1, round(share * len(items)))]
        return [items[number] for number in order.tolist()]

    split = str(random.choice(list(DATASETS[name]))) if random.random() < 0.7 else None
    inside = [episode for episode in episodes if split in (None, episode.split)]
    names = some(["episode", "episode_id", "episode_index"], 0.6 if random.random() < 0.15 else 0.3)
    how = str(random.choice(["step", "frame_index", "both", "range", "none"]))
    share = float(random.choice([0.3, 0.8, 1.0]))
    rows: list[Row] = []
    if how in ("range", "none"):
        for episode in some([row_episode for row_episode in inside if row_episode.length or how == "none"], share):
            rows.append({key: episode.key(key) for key in names})
            if how == "range":
                start = int(random.integers(episode.length))
                rows[-1] |= {"start": start, "stop": int(random.integers(start + 1, episode.length + 1))}
    else:
        for episode, step in some(
            [(row_episode, step) for row_episode in inside for step in range(row_episode.length)], share
        ):
            keys = ("step", "frame_index") if how == "both" else (how,)
            rows.append({key: episode.key(key) for key in names} | dict.fromkeys(keys, step))
    if random.random() < 0.25:
        _add_fault(random, rows)
    elif len(names) > 1 and len(inside) > 1 and random.random() < 0.5:
        # Both keys name an episode, and not the same.
        rows[-1][names[0]] = next(
            row_episode.key(names[0]) for row_episode in inside if row_episode.key(names[1]) != rows[-1][names[1]]
        )
    return RandomTable(_with_labels(random, rows), split, str(random.choice(["mapping", "parquet", "folder"])))


def _add_fault(random: np.random.Generator, rows: list[Row]) -> None:
    """Let one row come twice, or name another episode or step, which may not exist."""
    row = int(random.integers(len(rows)))
    name = str(random.choice(list(rows[row])))
    if random.random() < 0.3:
        rows.append(dict(rows[row]))
    elif name == "episode_id":
        rows[row][name] = "elsewhere"
    else:
        rows[row][name] = int(random.choice([-1, 0, 1, 3, 99]))


def _with_labels(random: np.random.Generator, rows: Sequence[Row]) -> list[Row]:
    def sometimes(value: Any) -> Any:
        return None if random.random() < 0.2 else value

    has_mask = random.random() < 0.3
    labelled = []
    for row in rows:
        labels: Row = {
            "x": sometimes(math.nan if random.random() < 0.1 else float(np.float32(random.normal()))),
            "grade": sometimes(int(random.integers(-9, 9))),
            "good": sometimes(bool(random.random() < 0.5)),
            "said": sometimes(WORDS[random.integers(3)]),
            "vector": sometimes(random.integers(0, 99, 3).tolist()),
            "weight": int(random.integers(4)),
        }
        labelled.append(
            {**row, **labels, **({"grade_mask": sometimes(bool(random.random() < 0.5))} if has_mask else {})}
        )
    return labelled


def expected_labels(table: RandomTable, name: str, episodes: Sequence[Episode]) -> dict[tuple[str, int, int], Row]:
    """Return the labels of each step that a table names, by split, episode and step; a missing label is None."""
    # Numbers of a split do not say which split is meant.
    needs_split = "episode" in table.rows[0] or ("episode_index" in table.rows[0] and name not in NUMBERS)
    if table.split is None and len(DATASETS[name]) > 1 and needs_split:
        raise Refused("a number in a split")
    labels: dict[tuple[str, int, int], Row] = {}
    for row in table.rows:
        episode = _episode_of(row, [candidate for candidate in episodes if table.split in (None, candidate.split)])
        for step in _steps_of(row, episode):
            key = (episode.split, episode.number, step)
            if key in labels:
                raise Refused("a step again")
            labels[key] = {label: row[label] for label in LABELS}
            if row.get("grade_mask", True) is not True:
                labels[key]["grade"] = None
    if any(all(row[label] is None for row in table.rows) for label in LABELS):
        raise Refused("no value at all")
    return labels


def _episode_of(row: Row, episodes: Sequence[Episode]) -> Episode:
    named = []
    for key in ("episode", "episode_id", "episode_index"):
        if key in row:
            named.append(
                [candidate for candidate in episodes if row[key] is not None and candidate.key(key) == row[key]]
            )
    if any(len(same) != 1 for same in named) or len({id(same[0]) for same in named}) != 1:
        raise Refused("the episode")
    return named[0][0]


def _steps_of(row: Row, episode: Episode) -> Sequence[int]:
    steps: Sequence[int] = sorted({row[key] for key in ("step", "frame_index") if key in row})
    if len(steps) > 1:
        raise Refused("two steps")
    if not steps:
        steps = range(row.get("start", 0), row.get("stop", episode.length))
        if "start" in row and not steps:
            raise Refused("an empty range")
    if steps and not (steps[0] >= 0 and steps[-1] < episode.length):
        raise Refused("beyond the episode")
    return steps


def given_to_stream(table: RandomTable, folder: Path) -> Any:
    """Return the table as ``add_labels`` takes it: a mapping, a parquet file of several row groups, or a folder."""
    columns = pa.table({name: pa.array([row[name] for row in table.rows]) for name in table.rows[0]})
    if table.form == "mapping":
        return dict(zip(columns.column_names, columns.columns, strict=True))
    if table.form == "parquet":
        pq.write_table(columns, folder / "labels.parquet", row_group_size=3)
        return folder / "labels.parquet"
    (folder / "labels").mkdir()
    half = len(columns) // 2
    for number, part in enumerate((columns.slice(0, half), columns.slice(half))):
        pq.write_table(part, folder / "labels" / f"{number}.parquet")
    return folder / "labels"


def is_same(stored: Any, label: Any) -> bool:
    """Return whether a stored label is that of the reference, NaN like NaN."""
    if isinstance(label, float) and isinstance(stored, float) and math.isnan(label):
        return math.isnan(stored)
    return (stored is None) == (label is None) and bool(stored == label)
