"""The steps that the rows of a table name: keys become numbers of rows of ``steps``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stream.base.errors import ArgumentError
from stream.format.catalog import Dataset
from stream.format.index import SplitIndex
from stream.format.manifest import Manifest
from stream.label.table import EPISODE_KEYS, RANGE_KEYS, STEP_KEYS, LabelTable

_SHOWN = 5
_AT_ONCE = 1 << 20
"""Steps of ranges that are expanded together."""
_AMBIGUOUS = np.iinfo(np.int64).min
"""Episode number for a key that several episodes have, as in a dataset that was made of two."""


@dataclass
class Faults:
    """Rows that do not match the dataset, by kind of fault: their count, and the first few."""

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[str]] = field(default_factory=dict)

    def add(self, fault_kind: str, count: int, examples: Iterable[str]) -> None:
        """Count rows with a fault, and keep as many examples as the error shows."""
        self.counts[fault_kind] = self.counts.get(fault_kind, 0) + count
        shown_examples = self.first.setdefault(fault_kind, [])
        for example in examples:
            if len(shown_examples) < _SHOWN and example not in shown_examples:
                shown_examples.append(example)

    def raise_error(self, context: str, hint: str) -> None:
        """Raise ArgumentError if there are faults."""
        if not self.counts:
            return
        fault_texts = []
        for fault_kind, count in self.counts.items():
            first = self.first[fault_kind]
            examples = ", ".join([*first, "..."] if count > len(first) else first)
            fault_texts.append(f"{count:,} {'row' if count == 1 else 'rows'} {fault_kind} ({examples})")
        raise ArgumentError(f"{context}: {'; '.join(fault_texts)}. {hint}; nothing was written")


class PlacedRows(NamedTuple):
    """Rows of a batch, and the step of each row: int64 [n] each."""

    row_numbers: np.ndarray
    steps: np.ndarray


class StepPositions:
    """Positions of a table's rows among the steps of some splits of a dataset, found by the keys of the table.

    Attributes:
        starts: First step of each split, and the count of all steps, int64 [splits + 1].
        faults: Rows that name no step, or a step twice.
        seen: Steps that a row named, bool [steps].

    Raises:
        ArgumentError: The keys do not identify the steps of the rows.
    """

    def __init__(self, splits: Sequence[SplitIndex], dataset: Dataset, table: LabelTable) -> None:
        self.splits, self.dataset = splits, dataset.name
        self._where = table.name
        self.faults = Faults()
        self.starts = np.cumsum([0, *(len(split.steps) for split in splits)])
        self.seen = np.zeros(int(self.starts[-1]), bool)
        self._count = np.concatenate([split.episodes.array("num_steps").astype(np.int64) for split in splits])
        first_rows = [split.episodes.array("first_steps_row").astype(np.int64) for split in splits]
        self._first = np.concatenate([rows + start for rows, start in zip(first_rows, self.starts, strict=False)])
        self.keys = self._check_keys(table)
        if "index" in self.keys:
            self._check_index(dataset.manifest, table.name)

    def _check_keys(self, table: LabelTable) -> list[str]:
        key_names = table.keys()
        step_keys = [key_name for key_name in STEP_KEYS if key_name in key_names]
        range_keys = [key_name for key_name in RANGE_KEYS if key_name in key_names]
        context = f"{table.name}: its columns are {', '.join(table.schema.names)}"
        if len(range_keys) == 1 or (range_keys and step_keys):
            names = " or ".join(STEP_KEYS)
            raise ArgumentError(f"{context}; steps are named by {names}, or by start and stop together")
        if not any(key_name in key_names for key_name in EPISODE_KEYS):
            if step_keys or range_keys or "index" not in key_names:
                raise ArgumentError(
                    f"{context}; expected a key of the episode ({', '.join(EPISODE_KEYS)}), with one of the step "
                    f"({', '.join(STEP_KEYS)}) or start and stop; or LeRobot's index"
                )
            return [key_name for key_name in key_names if key_name in ("dataset", "index")]
        number_keys = [key for key in EPISODE_KEYS if key in key_names and self._is_number_in_split(key)]
        if number_keys and len(self.splits) > 1:
            problem = f"{number_keys[0]} is a number in a split, and dataset {self.dataset} has several"
            split_names = ", ".join(split.split for split in self.splits)
            remedy = f"name one with --split ({split_names}), or name episodes by episode_id"
            raise ArgumentError(f"{table.name}: {problem}; {remedy}")
        return [key_name for key_name in key_names if key_name != "index"]

    def _is_number_in_split(self, key_name: str) -> bool:
        return key_name == "episode" or (key_name == "episode_index" and not self._has_lerobot_numbers)

    @property
    def _has_lerobot_numbers(self) -> bool:
        return all("episode_index" in split.episodes.columns for split in self.splits)

    def _check_index(self, manifest: Manifest, context: str) -> None:
        """Raise ArgumentError if LeRobot's number of a frame is not the number of its step here."""
        empty_episodes = np.flatnonzero(self._count == 0)
        is_part = bool(manifest.parameters.get("episodes"))
        if self._has_lerobot_numbers:
            lerobot_numbers, episodes = self._by_number
            is_part = is_part or not np.array_equal(lerobot_numbers, episodes)
        if len(manifest.splits) > 1 or is_part or len(empty_episodes):
            has_splits = len(manifest.splits) > 1
            reason = "the dataset has several splits" if has_splits else "some of its episodes were converted"
            if len(empty_episodes):
                reason = f"episode {empty_episodes[0]} has no steps here"
            raise ArgumentError(
                f"{context}: index counts the frames of a whole LeRobot dataset, and {reason}, so the steps cannot be "
                "determined; name them by episode_index and frame_index"
            )

    @cached_property
    def _by_id(self) -> dict[str, int]:
        """Number of each episode by its id, ``_AMBIGUOUS`` for an id of several."""
        episode_by_id: dict[str, int] = {}
        tables = [split.episodes for split in self.splits]
        id_lists = (table.take_texts("episode_id", np.arange(len(table))) for table in tables)
        for episode_number, episode_id in enumerate(chain.from_iterable(id_lists)):
            episode_by_id[episode_id] = _AMBIGUOUS if episode_id in episode_by_id else episode_number
        return episode_by_id

    @cached_property
    def _by_number(self) -> tuple[np.ndarray, np.ndarray]:
        """LeRobot's numbers, sorted, and their episodes; only of episodes with a number."""
        tables = [split.episodes for split in self.splits]
        lerobot_numbers = np.concatenate([table.array("episode_index").astype(np.int64) for table in tables])
        valid_masks = [table.valid("episode_index", np.arange(len(table))) for table in tables]
        masked_tables = zip(tables, valid_masks, strict=True)
        masks = [np.ones(len(table), bool) if mask is None else mask for table, mask in masked_tables]
        episodes = np.flatnonzero(np.concatenate(masks))
        episodes = episodes[np.argsort(lerobot_numbers[episodes], kind="stable")]
        return lerobot_numbers[episodes], episodes

    def locate(self, batch: pa.RecordBatch) -> Iterator[PlacedRows]:
        """Yield the rows of a batch and their steps, some at a time, and note the rows that do not fit."""
        if not batch.num_rows:
            return
        if "index" in self.keys:
            step_numbers, is_known = self._whole_numbers(batch, "index")
            is_known &= self._of_dataset(batch)
            is_step = (step_numbers >= 0) & (step_numbers < len(self.seen))
            self._note(batch, "of no step", is_known & ~is_step)
            row_numbers = np.flatnonzero(is_known & is_step)
            yield self._mark_seen(PlacedRows(row_numbers, step_numbers[row_numbers]), batch)
            return
        episodes, is_known = self._episodes(batch)
        row_numbers = np.flatnonzero(is_known)
        episode_steps = self._count[episodes[row_numbers]]
        range_starts, range_stops, is_inside = self._steps(batch, row_numbers, episode_steps)
        row_numbers, range_starts, range_stops = row_numbers[is_inside], range_starts[is_inside], range_stops[is_inside]
        first_steps = self._first[episodes[row_numbers]] + range_starts
        lengths = range_stops - range_starts
        begin = 0
        while begin < len(row_numbers):
            # As many ranges as have a million steps together, and at least one range.
            step_counts = np.cumsum(lengths[begin : begin + _AT_ONCE])
            part = slice(begin, begin + max(1, int(np.searchsorted(step_counts, _AT_ONCE, side="right"))))
            begin = part.stop
            repeats = lengths[part]
            # Position of each step in its range: 0, 1, 2, ... from the start of every range.
            within_range = np.arange(int(repeats.sum())) - np.repeat(np.cumsum(repeats) - repeats, repeats)
            steps = np.repeat(first_steps[part], repeats) + within_range
            yield self._mark_seen(PlacedRows(np.repeat(row_numbers[part], repeats), steps), batch)

    def _episodes(self, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of each row's episode among all splits, int64 [n], and which rows have one."""
        is_known = self._of_dataset(batch)
        episodes: np.ndarray | None = None
        for key_name in (key_name for key_name in EPISODE_KEYS if key_name in self.keys):
            if key_name == "episode_id":
                episode_numbers, has_key = self._episodes_of_ids(self._texts(batch, key_name))
            else:
                episode_numbers, has_key = self._whole_numbers(batch, key_name)
                if not self._is_number_in_split(key_name):
                    episode_numbers = self._episodes_of_lerobot(episode_numbers)
            is_episode = has_key & (episode_numbers >= 0) & (episode_numbers < len(self._count))
            is_ambiguous = has_key & (episode_numbers == _AMBIGUOUS)
            self._note(batch, f"whose {key_name} several episodes have", is_known & is_ambiguous)
            self._note(batch, "of unknown episodes", is_known & has_key & ~is_episode & ~is_ambiguous)
            is_known &= is_episode
            if episodes is not None:
                self._note(batch, "whose keys name different episodes", is_known & (episode_numbers != episodes))
                is_known &= episode_numbers == episodes
            episodes = episode_numbers
        assert episodes is not None
        return episodes, is_known

    def _of_dataset(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return which rows are of this dataset, bool [n]; all rows if the table does not name datasets."""
        if "dataset" not in self.keys:
            return np.ones(batch.num_rows, bool)
        is_own_dataset = np.asarray(pc.equal(self._texts(batch, "dataset"), self.dataset).fill_null(False))
        self._note(batch, "of another dataset", ~is_own_dataset)
        return is_own_dataset

    def _episodes_of_ids(self, id_column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        encoded_ids = id_column.dictionary_encode()
        episodes = [self._by_id.get(episode_id, -1) for episode_id in encoded_ids.dictionary.to_pylist()]
        # A missing id has index -1, so the last number.
        episode_numbers = np.array([*episodes, -1], np.int64)
        return episode_numbers[encoded_ids.indices.fill_null(-1).to_numpy()], np.ones(len(id_column), bool)

    def _episodes_of_lerobot(self, lerobot_numbers: np.ndarray) -> np.ndarray:
        known_numbers, episodes = self._by_number
        first_match = np.searchsorted(known_numbers, lerobot_numbers)
        num_matches = np.searchsorted(known_numbers, lerobot_numbers, side="right") - first_match
        single_match = np.append(episodes, -1)[first_match]
        return np.where(num_matches == 1, single_match, np.where(num_matches > 1, _AMBIGUOUS, -1))

    def _steps(
        self, batch: pa.RecordBatch, row_numbers: np.ndarray, episode_steps: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the first step of some rows and the step after the last, int64 [n], and which rows have steps."""
        if "start" in self.keys:
            (starts, has_start), (stops, has_stop) = (self._whole_numbers(batch, key_name) for key_name in RANGE_KEYS)
            starts, stops, is_range = starts[row_numbers], stops[row_numbers], (has_start & has_stop)[row_numbers]
            is_reversed = _spread(batch, row_numbers, is_range & (starts >= stops))
            self._note(batch, "whose start is not before their stop", is_reversed)
            is_range &= starts < stops
        elif step_keys := [key_name for key_name in STEP_KEYS if key_name in self.keys]:
            (starts, has_keys), *more_keys = (self._whole_numbers(batch, key_name) for key_name in step_keys)
            for key_steps, _ in more_keys:
                is_different = _spread(batch, row_numbers, (starts != key_steps)[row_numbers])
                self._note(batch, "whose keys name different steps", is_different)
                has_keys = has_keys & (starts == key_steps)
            starts, is_range = starts[row_numbers], has_keys[row_numbers]
            stops = starts + 1
        else:
            return np.zeros_like(episode_steps), episode_steps, np.ones(len(row_numbers), bool)
        is_beyond = is_range & ((starts < 0) | (stops > episode_steps))
        self._note(batch, "beyond the end of their episodes", _spread(batch, row_numbers, is_beyond))
        return starts, stops, is_range & ~is_beyond

    def _mark_seen(self, placed_rows: PlacedRows, batch: pa.RecordBatch) -> PlacedRows:
        """Note the rows that repeat a step, and return all rows unchanged: a fault ends the command."""
        row_numbers, steps = placed_rows
        is_repeated = self.seen[steps]
        if len(steps) > 1 and (steps[1:] <= steps[:-1]).any():
            step_order = np.argsort(steps, kind="stable")
            is_repeated[step_order[1:]] |= steps[step_order[1:]] == steps[step_order[:-1]]
        self.seen[steps] = True
        if is_repeated.any():
            num_repeated = np.bincount(row_numbers[is_repeated], minlength=batch.num_rows)
            self._note(batch, "that name a step again", num_repeated > 0)
        return placed_rows

    def _texts(self, batch: pa.RecordBatch, key_name: str) -> pa.Array:
        """Return a key that is a text; a whole number becomes its text."""
        column = batch.column(key_name)
        try:
            return column.cast(pa.large_string())
        except pa.ArrowException:
            raise ArgumentError(f"{self._where}: the key {key_name!r} is {column.type}; expected texts") from None

    def _whole_numbers(self, batch: pa.RecordBatch, key_name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a key that is a whole number, int64 [n], and which rows have it; rows without it are noted."""
        column = batch.column(key_name)
        value_type = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        try:
            # Arrow would also convert booleans, times and texts to numbers.
            if not any(
                is_type(value_type) for is_type in (pa.types.is_integer, pa.types.is_floating, pa.types.is_null)
            ):
                raise pa.ArrowInvalid(f"{value_type}")
            whole_numbers = column.cast(pa.int64())
        except pa.ArrowException:
            raise ArgumentError(
                f"{self._where}: the key {key_name!r} is {column.type}, and not every value is a whole number; correct "
                "the table"
            ) from None
        has_value = np.asarray(whole_numbers.is_valid())
        self._note(batch, f"without {key_name}", ~has_value)
        return whole_numbers.fill_null(-1).to_numpy(), has_value

    def _note(self, batch: pa.RecordBatch, fault_kind: str, is_wrong: np.ndarray) -> None:
        """Note the rows of a batch that are wrong, bool [n]."""
        num_wrong = int(np.count_nonzero(is_wrong))
        if num_wrong:
            examples = (self._show(batch, row_number) for row_number in np.flatnonzero(is_wrong).tolist())
            self.faults.add(fault_kind, num_wrong, islice(examples, 20 * _SHOWN))

    def _show(self, batch: pa.RecordBatch, row_number: int) -> str:
        key_values = ((key_name, batch.column(key_name)[row_number].as_py()) for key_name in self.keys)
        return " ".join(f"{key_name} {value!r:.60}" for key_name, value in key_values)

    @property
    def hint(self) -> str:
        """Episodes and splits of the dataset, for the error of a table that does not match it."""
        num_episodes, first_row = len(self._count), np.zeros(1, np.int64)
        example_id = self.splits[0].episodes.take_texts("episode_id", first_row)[0] if num_episodes else ""
        split_names = ", ".join(split.split for split in self.splits)
        shortest, longest = int(self._count.min(initial=0)), int(self._count.max(initial=0))
        return (
            f"Dataset {self.dataset}, split {split_names} has {num_episodes:,} episodes of {shortest} to {longest} "
            f"steps, with ids like {example_id!r:.120}"
        )


def _spread(batch: pa.RecordBatch, row_numbers: np.ndarray, is_wrong: np.ndarray) -> np.ndarray:
    """Return a mask of some rows as a mask of all rows of a batch."""
    batch_mask = np.zeros(batch.num_rows, bool)
    batch_mask[row_numbers] = is_wrong
    return batch_mask
