"""The steps that the rows of a table name: keys become numbers of rows of ``steps``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stream.base.errors import ArgumentError
from stream.format.catalog import Dataset
from stream.format.index import SplitIndex
from stream.format.manifest import Manifest
from stream.label.faults import SHOWN, Faults
from stream.label.given import EPISODE_KEYS, RANGE_KEYS, STEP_KEYS, GivenTable

_AT_ONCE = 1 << 20
"""Steps of ranges that are expanded together."""
_SEVERAL = np.iinfo(np.int64).min
"""Number in place of an episode's for a key that several episodes have, as in a dataset that was made of two."""


class Placed(NamedTuple):
    """Rows of a batch and the steps that they are of: int64 [n] each."""

    given: np.ndarray
    steps: np.ndarray


class Places:
    """The steps of some splits of a dataset, one after the other, and the keys of a table.

    Args:
        splits: Splits.
        dataset: Dataset of the splits.
        table: Table with the keys.

    Attributes:
        starts: First step of each split, and the count of all, int64 [splits + 1].
        faults: Rows that name no step, or one twice.
        seen: Steps that a row named, bool [steps].

    Raises:
        ArgumentError: The keys do not say which steps the rows are of.
    """

    def __init__(self, splits: Sequence[SplitIndex], dataset: Dataset, table: GivenTable) -> None:
        self.splits, self.dataset = splits, dataset.name
        self._where = table.where
        self.faults = Faults()
        self.starts = np.cumsum([0, *(len(split.steps) for split in splits)])
        self.seen = np.zeros(int(self.starts[-1]), bool)
        self._count = np.concatenate([split.episodes.array("num_steps").astype(np.int64) for split in splits])
        firsts = [split.episodes.array("first_steps_row").astype(np.int64) for split in splits]
        self._first = np.concatenate([first + start for first, start in zip(firsts, self.starts, strict=False)])
        self.keys = self._check_keys(table)
        if "index" in self.keys:
            self._check_index(dataset.manifest, table.where)

    def _check_keys(self, table: GivenTable) -> list[str]:
        keys = table.keys()
        steps = [name for name in STEP_KEYS if name in keys]
        ranges = [name for name in RANGE_KEYS if name in keys]
        where = f"{table.where}: its columns are {', '.join(table.schema.names)}"
        if len(ranges) == 1 or (ranges and steps):
            raise ArgumentError(f"{where}; steps are named by {' or '.join(STEP_KEYS)}, or by start and stop together")
        if not any(name in keys for name in EPISODE_KEYS):
            if steps or ranges or "index" not in keys:
                raise ArgumentError(
                    f"{where}; expected a key of the episode ({', '.join(EPISODE_KEYS)}), with one of the step "
                    f"({', '.join(STEP_KEYS)}) or start and stop; or LeRobot's index"
                )
            return [name for name in keys if name in ("dataset", "index")]
        several = [split.split for split in self.splits]
        numbers = [name for name in EPISODE_KEYS if name in keys and self._is_number_in_split(name)]
        if numbers and len(several) > 1:
            raise ArgumentError(
                f"{table.where}: {numbers[0]} is a number in a split, and dataset {self.dataset} has several; name one "
                f"with --split ({', '.join(several)}), or name episodes by episode_id"
            )
        return [name for name in keys if name != "index"]

    def _is_number_in_split(self, key: str) -> bool:
        return key == "episode" or (key == "episode_index" and not self._has_lerobot_numbers)

    @property
    def _has_lerobot_numbers(self) -> bool:
        return all("episode_index" in split.episodes.columns for split in self.splits)

    def _check_index(self, manifest: Manifest, where: str) -> None:
        """Raise ArgumentError if LeRobot's number of a frame is not the number of its step here."""
        short = np.flatnonzero(self._count == 0)
        chosen = manifest.parameters.get("episodes")
        if len(manifest.splits) > 1 or chosen or len(short):
            why = (
                "the dataset has several splits" if len(manifest.splits) > 1 else "some of its episodes were converted"
            )
            why = f"episode {short[0]} has no steps here" if len(short) else why
            raise ArgumentError(
                f"{where}: index counts the frames of a whole LeRobot dataset, and {why}, so the steps cannot be told; "
                "name them by episode_index and frame_index"
            )

    @cached_property
    def _by_id(self) -> dict[str, int]:
        """Number of each episode by its id, ``_SEVERAL`` for an id of several."""
        numbers: dict[str, int] = {}
        tables = [split.episodes for split in self.splits]
        ids = (episode_id for table in tables for episode_id in table.take_texts("episode_id", np.arange(len(table))))
        for number, episode_id in enumerate(ids):
            numbers[episode_id] = _SEVERAL if episode_id in numbers else number
        return numbers

    @cached_property
    def _by_number(self) -> tuple[np.ndarray, np.ndarray]:
        """LeRobot's numbers, sorted, and the episodes that they name; of episodes with a number alone."""
        tables = [split.episodes for split in self.splits]
        numbers = np.concatenate([table.array("episode_index").astype(np.int64) for table in tables])
        masks = [table.valid("episode_index", np.arange(len(table))) for table in tables]
        has = np.concatenate([np.ones(len(t), bool) if m is None else m for t, m in zip(tables, masks, strict=True)])
        (episodes,) = np.nonzero(has)
        order = np.argsort(numbers[episodes], kind="stable")
        return numbers[episodes[order]], episodes[order]

    def locate(self, batch: pa.RecordBatch) -> Iterator[Placed]:
        """Yield the rows of a batch and their steps, some at a time, and note the rows that do not fit."""
        if not batch.num_rows:
            return
        if "index" in self.keys:
            number, known = self._whole(batch, "index")
            known &= self._of_dataset(batch)
            is_step = (number >= 0) & (number < len(self.seen))
            self._note(batch, "of no step", known & ~is_step)
            rows = np.flatnonzero(known & is_step)
            yield self._once(Placed(rows, number[rows]), batch)
            return
        episode, known = self._episodes(batch)
        rows = np.flatnonzero(known)
        count = self._count[episode[rows]]
        begins, ends, inside = self._steps(batch, rows, count)
        rows, begins, ends = rows[inside], begins[inside], ends[inside]
        first = self._first[episode[rows]]
        lengths = ends - begins
        place = 0
        while place < len(rows):
            taken = max(1, int(np.searchsorted(np.cumsum(lengths[place : place + _AT_ONCE]), _AT_ONCE, side="right")))
            here = slice(place, place + taken)
            place += taken
            repeats = lengths[here]
            within = np.arange(int(repeats.sum())) - np.repeat(np.cumsum(repeats) - repeats, repeats)
            steps = np.repeat(first[here] + begins[here], repeats) + within
            yield self._once(Placed(np.repeat(rows[here], repeats), steps), batch)

    def _episodes(self, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of each row's episode among all splits, int64 [n], and which rows have one."""
        known = self._of_dataset(batch)
        episode: np.ndarray | None = None
        for key in (key for key in EPISODE_KEYS if key in self.keys):
            if key == "episode_id":
                number, has = self._of_ids(self._texts(batch, key))
            else:
                number, has = self._whole(batch, key)
                if not self._is_number_in_split(key):
                    number = self._of_lerobot(number)
            is_episode = has & (number >= 0) & (number < len(self._count))
            has_several = has & (number == _SEVERAL)
            self._note(batch, f"whose {key} several episodes have", known & has_several)
            self._note(batch, "of unknown episodes", known & has & ~is_episode & ~has_several)
            known &= is_episode
            if episode is not None:
                self._note(batch, "whose keys name different episodes", known & (number != episode))
                known &= number == episode
            episode = number
        assert episode is not None
        return episode, known

    def _of_dataset(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return which rows are of this dataset, as far as the table says, bool [n]."""
        if "dataset" not in self.keys:
            return np.ones(batch.num_rows, bool)
        own = np.asarray(pc.equal(self._texts(batch, "dataset"), self.dataset).fill_null(False))
        self._note(batch, "of another dataset", ~own)
        return own

    def _of_ids(self, column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        texts = column.dictionary_encode()
        numbers = np.array([self._by_id.get(text, -1) for text in texts.dictionary.to_pylist()] + [-1], np.int64)
        return numbers[texts.indices.fill_null(-1).to_numpy()], np.ones(len(column), bool)

    def _of_lerobot(self, number: np.ndarray) -> np.ndarray:
        numbers, episodes = self._by_number
        first = np.searchsorted(numbers, number)
        count = np.searchsorted(numbers, number, side="right") - first
        only = np.append(episodes, -1)[first]
        return np.where(count == 1, only, np.where(count > 1, _SEVERAL, -1))

    def _steps(
        self, batch: pa.RecordBatch, rows: np.ndarray, count: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the first step of some rows and the one after the last, int64 [n], and which rows have steps."""
        if "start" in self.keys:
            (start, has), (stop, has_stop) = (self._whole(batch, key) for key in RANGE_KEYS)
            start, stop, has = start[rows], stop[rows], (has & has_stop)[rows]
            self._note(batch, "whose start is not before their stop", _spread(batch, rows, has & (start >= stop)))
            beyond = has & (start < stop) & ((start < 0) | (stop > count))
            good = has & (start < stop) & ~beyond
        elif keys := [key for key in STEP_KEYS if key in self.keys]:
            (start, has), *others = (self._whole(batch, key) for key in keys)
            for other, _ in others:
                self._note(batch, "whose keys name different steps", _spread(batch, rows, (start != other)[rows]))
                has = has & (start == other)
            start, has = start[rows], has[rows]
            stop, beyond = start + 1, has & ((start < 0) | (start >= count))
            good = has & ~beyond
        else:
            return np.zeros_like(count), count, np.ones(len(rows), bool)
        self._note(batch, "beyond the end of their episodes", _spread(batch, rows, beyond))
        return start, stop, good

    def _once(self, placed: Placed, batch: pa.RecordBatch) -> Placed:
        """Note the rows that name a step again, and return the steps as they are: a fault ends the command."""
        given, steps = placed
        again = self.seen[steps]
        if len(steps) > 1 and (steps[1:] <= steps[:-1]).any():
            order = np.argsort(steps, kind="stable")
            again[order[1:]] |= steps[order[1:]] == steps[order[:-1]]
        self.seen[steps] = True
        if again.any():
            self._note(batch, "that name a step again", np.bincount(given[again], minlength=batch.num_rows) > 0)
        return placed

    def _texts(self, batch: pa.RecordBatch, key: str) -> pa.Array:
        """Return a key that is a text; a whole number is its text."""
        try:
            return batch.column(key).cast(pa.large_string())
        except pa.ArrowException:
            raise ArgumentError(f"{self._where}: the key {key!r} is {batch.column(key).type}; expected texts") from None

    def _whole(self, batch: pa.RecordBatch, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a key that is a whole number, int64 [n], and which rows have it; the others are noted."""
        column = batch.column(key)
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        try:
            # Arrow would make numbers of true, of times and of texts too.
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
                raise pa.ArrowInvalid(f"{kind}")
            numbers = column.cast(pa.int64())
        except pa.ArrowException:
            raise ArgumentError(
                f"{self._where}: the key {key!r} is {column.type}, and not every value is a whole number; correct the "
                "table"
            ) from None
        has = np.asarray(numbers.is_valid())
        self._note(batch, f"without {key}", ~has)
        return numbers.fill_null(-1).to_numpy(), has

    def _note(self, batch: pa.RecordBatch, kind: str, wrong: np.ndarray) -> None:
        """Note the rows of a batch that are wrong, bool [n]."""
        count = int(np.count_nonzero(wrong))
        if count:
            shown = (self._show(batch, row) for row in np.flatnonzero(wrong).tolist())
            self.faults.add(kind, count, islice(shown, 20 * SHOWN))

    def _show(self, batch: pa.RecordBatch, row: int) -> str:
        values = ((key, batch.column(key)[row].as_py()) for key in self.keys)
        return " ".join(f"{key} {value!r:.60}" for key, value in values)

    @property
    def hint(self) -> str:
        """Episodes and splits of the dataset, for the error of a table that does not fit."""
        count = len(self._count)
        (known,) = self.splits[0].episodes.take_texts("episode_id", np.zeros(1, np.int64)) if count else ("",)
        several = ", ".join(split.split for split in self.splits)
        return (
            f"Dataset {self.dataset}, split {several} has {count:,} episodes of {int(self._count.min(initial=0))} to "
            f"{int(self._count.max(initial=0))} steps, with ids like {known!r:.120}"
        )


def _spread(batch: pa.RecordBatch, rows: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """Return a mask of some rows as a mask of all rows of a batch."""
    found = np.zeros(batch.num_rows, bool)
    found[rows] = wrong
    return found
