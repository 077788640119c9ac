"""Choices among the samples of a dataset: lists of episodes, and ranges of steps to keep."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from stream.base.arguments import check_whole_number
from stream.base.errors import ArgumentError, FormatError
from stream.format.episode_list import OPENPI, EpisodeList, read_by_name, read_list, read_value

if TYPE_CHECKING:
    from stream.format.index import SplitIndex
    from stream.format.names import TableKind

_STEP_BITS = 31
REASONS = ("where", "episodes", "keep_ranges")
"""Reasons of choices, in the order in which they are counted: a sample counts for the first that leaves it out."""
Samples = Literal["records", "steps"]
"""Table whose rows are the samples: ``records`` in the layout ``pairs``, ``steps`` in the layout ``frames``."""


class Choice(ABC):
    """A choice among the samples of a dataset."""

    reason: ClassVar[str]
    """Name in the counts of samples that were left out."""

    @property
    def label(self) -> str:
        """Name of this choice among others of the same reason: the reason, or ``reason: condition``."""
        return self.reason

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Readable text of the choice, with a hash instead of a long list; it does not depend on the process."""

    @abstractmethod
    def used_columns(self, split_index: SplitIndex, samples: Samples) -> Iterator[tuple[TableKind, str]]:
        """Yield the columns that ``select`` reads of an index."""

    @abstractmethod
    def select(self, split_index: SplitIndex, row_range: slice, samples: Samples) -> np.ndarray:
        """Return which samples of an index are kept, bool, one value for each row of the slice."""

    def unknown_in(self, splits: Sequence[SplitIndex]) -> list[str]:
        """Return the named episodes that no split of a dataset has."""
        return []


@dataclass(frozen=True)
class WithActions(Choice):
    """Samples at least ``first`` steps after the start of their episode and ``last`` steps before its end."""

    first: int
    last: int
    reason = "actions"

    @property
    def fingerprint(self) -> str:
        """Text of the choice."""
        return f"{self.first},{self.last}"

    def used_columns(self, split_index: SplitIndex, samples: Samples) -> Iterator[tuple[TableKind, str]]:
        """Yield the columns that ``select`` reads of an index."""
        yield from ((samples, column_name) for column_name in ("episode", "step"))
        yield "episodes", "num_steps"

    def select(self, split_index: SplitIndex, row_range: slice, samples: Samples) -> np.ndarray:
        """Return which samples are kept."""
        table = split_index.table(samples)
        episodes, steps = (table.array(column_name)[row_range] for column_name in ("episode", "step"))
        if len(episodes) and not 0 <= episodes.min() <= episodes.max() < len(split_index.episodes):
            raise FormatError(f"{table.path}: names episodes beyond the {len(split_index.episodes):,} of the split")
        num_steps = split_index.episodes.take("num_steps", episodes)
        return np.asarray((steps >= self.first) & (steps < num_steps - self.last))


class _ByEpisode(Choice):
    """A choice that names episodes by their ``episode_id``, or by openpi's key of a DROID episode."""

    ids: Sequence[str]

    def used_columns(self, split_index: SplitIndex, samples: Samples) -> Iterator[tuple[TableKind, str]]:
        yield "episodes", "episode_id"
        if _has_openpi_keys(split_index):
            yield from (("episodes", column_name) for column_name in OPENPI)
        yield samples, "episode"

    def unknown_in(self, splits: Sequence[SplitIndex]) -> list[str]:
        is_found = np.zeros(len(self.ids), bool)
        for split_index in splits:
            for id_numbers in self._id_numbers(split_index, 0, len(split_index.episodes)):
                is_found[id_numbers[id_numbers >= 0]] = True
        return [self.ids[id_number] for id_number in np.flatnonzero(~is_found).tolist()]

    def _id_numbers(self, split_index: SplitIndex, first_episode: int, stop_episode: int) -> Iterator[np.ndarray]:
        """Yield the number in ``ids`` of each episode in [first_episode, stop_episode), int64, -1 if not named.

        There is one array for each way to name an episode: its id, openpi's key, and each pattern.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        episode_table = split_index.episodes.arrow()
        key_columns = [episode_table.column("episode_id")]
        if _has_openpi_keys(split_index):
            folder, file_path = (episode_table.column(column_name).cast(pa.large_string()) for column_name in OPENPI)
            key_columns.append(pc.binary_join_element_wise(folder, file_path, pa.scalar("--", pa.large_string())))
        for key_column in key_columns:
            key_texts = key_column.slice(first_episode, stop_episode - first_episode).cast(pa.large_string())
            exact_matches = pc.index_in(key_texts, pa.array(self.ids, pa.large_string())).fill_null(-1).to_numpy()
            yield exact_matches.astype(np.int64)
            for id_number, episode_id in enumerate(self.ids):
                if "*" in episode_id:
                    pattern = episode_id.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%").replace("*", "%")
                    is_match = pc.match_like(key_texts, pattern).fill_null(False).to_numpy(zero_copy_only=False)
                    yield np.where(is_match, id_number, -1)

    def _of_samples(self, split_index: SplitIndex, row_range: slice, samples: TableKind) -> Iterator[np.ndarray]:
        """Yield the number in ``ids`` of each sample's episode, int64 [n], in arrays as ``_id_numbers`` does."""
        episodes = split_index.table(samples).array("episode")[row_range]
        if len(episodes):
            first_episode = int(episodes.min())
            for id_numbers in self._id_numbers(split_index, first_episode, int(episodes.max()) + 1):
                yield id_numbers[episodes - first_episode]


def _has_openpi_keys(split_index: SplitIndex) -> bool:
    return all(column_name in split_index.episodes.columns for column_name in OPENPI)


@dataclass(frozen=True)
class EpisodeChoice(_ByEpisode):
    """Episodes to keep, or to leave out."""

    listed: EpisodeList
    reason = "episodes"

    @property
    def ids(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the episodes."""
        return self.listed.names

    @property
    def fingerprint(self) -> str:
        """Count of the episodes, and a hash of their names."""
        prefix = "" if self.listed.keeps else "all but "
        return f"{prefix}{len(self.listed.names)} episodes ({hash_content(self.listed.names)})"

    def select(self, split_index: SplitIndex, row_range: slice, samples: TableKind) -> np.ndarray:
        """Return which samples, or rows of ``episodes``, are kept."""
        is_named = np.zeros(len(split_index.table(samples).array("episode")[row_range]), bool)
        for id_numbers in self._of_samples(split_index, row_range, samples):
            is_named |= id_numbers >= 0
        return is_named == self.listed.keeps


@dataclass(frozen=True)
class KeepRanges(_ByEpisode):
    """Ranges of steps to keep; episodes that are not named are left out.

    An episode that is named in several ways keeps the ranges of all of them.

    Attributes:
        ranges: Ranges [start, stop) of t by episode, sorted and apart.
    """

    ranges: Mapping[str, tuple[tuple[int, int], ...]]
    reason = "keep_ranges"

    @cached_property
    def ids(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the episodes."""
        return tuple(self.ranges)

    @property
    def fingerprint(self) -> str:
        """Count of the episodes, and a hash of their ranges."""
        return f"ranges of {len(self.ranges)} episodes ({hash_content(self.ranges)})"

    @cached_property
    def _edges(self) -> np.ndarray:
        """Starts and stops of the ranges in the order of ``ids``, int64 [2, n].

        The number of the episode is in the high bits, so that one sorted array holds the ranges of all episodes.
        """
        range_edges: list[tuple[int, int, int]] = []
        for id_number, step_ranges in enumerate(self.ranges.values()):
            range_edges += [(id_number, start, stop) for start, stop in step_ranges]
        id_numbers, starts, stops = np.array(range_edges, np.int64).reshape(-1, 3).T
        return (id_numbers << _STEP_BITS) + np.stack([starts, stops])

    def used_columns(self, split_index: SplitIndex, samples: Samples) -> Iterator[tuple[TableKind, str]]:
        """Yield the columns that ``select`` reads of an index."""
        yield from super().used_columns(split_index, samples)
        yield samples, "step"

    def select(self, split_index: SplitIndex, row_range: slice, samples: Samples) -> np.ndarray:
        """Return which samples are kept."""
        steps = split_index.table(samples).array("step")[row_range]
        is_kept = np.zeros(len(steps), bool)
        starts, stops = self._edges
        for id_numbers in self._of_samples(split_index, row_range, samples) if len(starts) else ():
            positions = (id_numbers << _STEP_BITS) + steps
            # The last range that starts at or before a step keeps it if the step is before its stop.
            range_numbers = np.searchsorted(starts, positions, side="right") - 1
            is_kept |= (id_numbers >= 0) & (range_numbers >= 0) & (positions < stops[range_numbers])
        return is_kept


def parse_episodes(episodes: Any, members: Sequence[str]) -> dict[str, list[EpisodeChoice]]:
    """Return the choices of ``episodes``, by member.

    Args:
        episodes: None, episodes of every member (see ``stream.format.episode_list``), a mapping of members to such
            values, or a file of either.
        members: Names of the members.

    Raises:
        ArgumentError: The argument has another form, a file cannot be read, or a member is unknown.
    """
    lists = _by_member(episodes, members, "episodes")
    return {member: [EpisodeChoice(read_list(value, f"episodes: {member}"))] for member, value in lists.items()}


def parse_keep_ranges(keep_ranges: Any, members: Sequence[str]) -> dict[str, list[KeepRanges]]:
    """Return the choices of ``keep_ranges``, by member.

    Args:
        keep_ranges: None; ranges of every member, a mapping of members to ranges or JSON files of ranges, or a JSON
            file of either. Ranges are a mapping of episodes to lists of [start, stop), as openpi publishes them.
        members: Names of the members.

    Raises:
        ArgumentError: The argument has another form, a file cannot be read, a member is unknown, or ranges overlap.
    """
    ranges = _by_member(keep_ranges, members, "keep_ranges")
    return {member: [_read_ranges(value, f"keep_ranges: {member}")] for member, value in ranges.items()}


def _by_member(value: Any, members: Sequence[str], argument: str) -> dict[str, Any]:
    content = read_value(value, argument)
    if isinstance(content, Mapping) and not content:
        raise ArgumentError(f"{argument}={{}} names neither a member nor an episode; give None for all of them")
    return dict.fromkeys(members, content) if is_for_all(content) else read_by_name(content, members, argument)


def is_for_all(content: Any) -> bool:
    """Return whether a choice of episodes or ranges is for every member, and not a mapping of members to choices."""
    if isinstance(content, list | tuple):
        return True
    if not isinstance(content, Mapping) or not content:
        return False
    # Ranges of an episode are pairs of numbers; the names of a member's episodes are texts.
    return set(content) <= {"keep", "leave_out"} or all(map(_are_ranges, content.values()))


def _are_ranges(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(ends, list | tuple) for ends in value)


def _read_ranges(value: Any, context: str) -> KeepRanges:
    content = read_value(value, context)
    if not isinstance(content, Mapping):
        raise ArgumentError(f"{context}: {content!r:.100}; expected a mapping of episodes to lists of [start, stop]")
    return KeepRanges({str(name): _sort_ranges(ranges, f"{context}: {name}") for name, ranges in content.items()})


def _sort_ranges(value: Any, context: str) -> tuple[tuple[int, int], ...]:
    step_ranges: list[tuple[int, int]] = []
    try:
        for start, stop in value:
            step_ranges.append((check_whole_number("start", start, least=0), check_whole_number("stop", stop, least=1)))
    except (TypeError, ValueError, ArgumentError) as error:
        raise ArgumentError(f"{context}: {value!r:.100}; expected a list of [start, stop) in steps ({error})") from None
    step_ranges.sort()
    for (start, stop), (next_start, _) in zip(step_ranges, [*step_ranges[1:], (1 << _STEP_BITS, 0)], strict=False):
        if stop <= start:
            raise ArgumentError(f"{context}: [{start}, {stop}) has no step; expected start below stop")
        if stop > next_start:
            raise ArgumentError(f"{context}: [{start}, {stop}) goes beyond {next_start}, where the next range starts")
    return tuple(step_ranges)


def hash_content(content: Any) -> str:
    """Return a hash of a JSON value, which does not depend on the process."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
