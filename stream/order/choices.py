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

from stream.base.arguments import check_whole
from stream.base.errors import ArgumentError, FormatError
from stream.format.episode_list import OPENPI, EpisodeList, read_by_name, read_list, read_value

if TYPE_CHECKING:
    from stream.format.index import SplitIndex
    from stream.format.names import TableKind

_STEP_BITS = 31
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
        """Text of the choice for people, with a hash where it is long; it does not depend on the process."""

    @abstractmethod
    def used_columns(self, index: SplitIndex, samples: Samples) -> Iterator[tuple[TableKind, str]]:
        """Yield the columns that ``select`` reads of an index."""

    @abstractmethod
    def select(self, index: SplitIndex, rows: slice, samples: Samples) -> np.ndarray:
        """Return which samples of an index are kept, bool, one of each row of the slice."""

    def unknown_in(self, splits: Sequence[SplitIndex]) -> list[str]:
        """Return the episodes that this names and none of the splits of a dataset has."""
        return []


@dataclass(frozen=True)
class WithActions(Choice):
    """Samples with enough actions: those at least ``first`` steps from the begin of their episode, and ``last`` from
    its end.
    """

    first: int
    last: int
    reason = "actions"

    @property
    def fingerprint(self) -> str:
        """Text of the choice."""
        return f"{self.first},{self.last}"

    def used_columns(self, index: SplitIndex, samples: Samples) -> Iterator[tuple[TableKind, str]]:
        """Yield the columns that ``select`` reads of an index."""
        yield from ((samples, name) for name in ("episode", "step"))
        yield "episodes", "num_steps"

    def select(self, index: SplitIndex, rows: slice, samples: Samples) -> np.ndarray:
        """Return which samples are kept."""
        table = index.table(samples)
        episode, step = (table.array(name)[rows] for name in ("episode", "step"))
        if len(episode) and not 0 <= episode.min() <= episode.max() < len(index.episodes):
            raise FormatError(f"{table.path}: names episodes beyond the {len(index.episodes):,} of the split")
        return np.asarray((step >= self.first) & (step < index.episodes.take("num_steps", episode) - self.last))


class _ByEpisode(Choice):
    """A choice that names episodes by their ``episode_id``, or by openpi's key of a DROID episode."""

    ids: Sequence[str]

    def used_columns(self, index: SplitIndex, samples: Samples) -> Iterator[tuple[TableKind, str]]:
        yield "episodes", "episode_id"
        if _has_openpi_keys(index):
            yield from (("episodes", name) for name in OPENPI)
        yield samples, "episode"

    def unknown_in(self, splits: Sequence[SplitIndex]) -> list[str]:
        found = np.zeros(len(self.ids), bool)
        for index in splits:
            for numbers in self._numbers(index, 0, len(index.episodes)):
                found[numbers[numbers >= 0]] = True
        return [name for name, is_known in zip(self.ids, found.tolist(), strict=True) if not is_known]

    def _numbers(self, index: SplitIndex, first: int, stop: int) -> Iterator[np.ndarray]:
        """Yield numbers in ``ids`` of the episodes from ``first`` to ``stop``, int64, -1 for one that is not named.

        An array for each way to name an episode: its id, openpi's key, and each pattern.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        table = index.episodes.arrow()
        keys = [table.column("episode_id")]
        if _has_openpi_keys(index):
            folder, path = (table.column(name).cast(pa.large_string()) for name in OPENPI)
            keys.append(pc.binary_join_element_wise(folder, path, pa.scalar("--", pa.large_string())))
        for key in keys:
            texts = key.slice(first, stop - first).cast(pa.large_string())
            exact = pc.index_in(texts, pa.array(self.ids, pa.large_string())).fill_null(-1).to_numpy()
            yield exact.astype(np.int64)
            for number, name in enumerate(self.ids):
                if "*" in name:
                    like = name.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%").replace("*", "%")
                    is_like = pc.match_like(texts, like).fill_null(False).to_numpy(zero_copy_only=False)
                    yield np.where(is_like, number, -1)

    def _of_samples(self, index: SplitIndex, rows: slice, samples: TableKind) -> Iterator[np.ndarray]:
        """Yield numbers in ``ids`` of each sample's episode, int64 [n] each, as ``_numbers`` does."""
        episodes = index.table(samples).array("episode")[rows]
        if len(episodes):
            first = int(episodes.min())
            for numbers in self._numbers(index, first, int(episodes.max()) + 1):
                yield numbers[episodes - first]


def _has_openpi_keys(index: SplitIndex) -> bool:
    return all(name in index.episodes.columns for name in OPENPI)


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
        kind = "" if self.listed.keeps else "all but "
        return f"{kind}{len(self.listed.names)} episodes ({hash_content(self.listed.names)})"

    def select(self, index: SplitIndex, rows: slice, samples: TableKind) -> np.ndarray:
        """Return which samples, or rows of ``episodes``, are kept."""
        named = np.zeros(len(index.table(samples).array("episode")[rows]), bool)
        for numbers in self._of_samples(index, rows, samples):
            named |= numbers >= 0
        return named == self.listed.keeps


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
        """Starts and stops in the order of ``ids``, as numbers that grow from episode to episode, int64 [2, n]."""
        edges = [(number, *edge) for number, each in enumerate(self.ranges.values()) for edge in each]
        episode, start, stop = np.array(edges, np.int64).reshape(-1, 3).T
        return (episode << _STEP_BITS) + np.stack([start, stop])

    def used_columns(self, index: SplitIndex, samples: Samples) -> Iterator[tuple[TableKind, str]]:
        """Yield the columns that ``select`` reads of an index."""
        yield from super().used_columns(index, samples)
        yield samples, "step"

    def select(self, index: SplitIndex, rows: slice, samples: Samples) -> np.ndarray:
        """Return which samples are kept."""
        step = index.table(samples).array("step")[rows]
        kept = np.zeros(len(step), bool)
        starts, stops = self._edges
        for number in self._of_samples(index, rows, samples) if len(starts) else ():
            place = (number << _STEP_BITS) + step
            before = np.searchsorted(starts, place, side="right") - 1
            kept |= (number >= 0) & (before >= 0) & (place < stops[before])
        return kept


def parse_episodes(given: Any, members: Sequence[str]) -> dict[str, list[EpisodeChoice]]:
    """Return the choices of ``episodes``, by member.

    Args:
        given: None, a mapping of members to lists of episodes (``stream.format.episode_list``), or a JSON file of one.
        members: Names of the members.

    Raises:
        ArgumentError: The argument has another form, a file cannot be read, or a member is unknown.
    """
    values = read_by_name(given, members, "episodes")
    return {name: [EpisodeChoice(read_list(value, f"episodes: {name}"))] for name, value in values.items()}


def parse_keep_ranges(given: Any, members: Sequence[str]) -> dict[str, list[KeepRanges]]:
    """Return the choices of ``keep_ranges``, by member.

    Args:
        given: None; a mapping of members to ranges or JSON files of ranges; or a JSON file of such a mapping. Ranges
            are a mapping of episodes to lists of [start, stop), as openpi publishes them for DROID.
        members: Names of the members.

    Raises:
        ArgumentError: The argument has another form, a file cannot be read, a member is unknown, or ranges overlap.
    """
    values = read_by_name(given, members, "keep_ranges")
    return {name: [_ranges(value, f"keep_ranges: {name}")] for name, value in values.items()}


def _ranges(given: Any, where: str) -> KeepRanges:
    content = read_value(given, where)
    if not isinstance(content, Mapping):
        raise ArgumentError(f"{where}: {content!r:.100}; expected a mapping of episodes to lists of [start, stop]")
    return KeepRanges({str(name): _edges(edges, f"{where}: {name}") for name, edges in content.items()})


def _edges(given: Any, where: str) -> tuple[tuple[int, int], ...]:
    edges: list[tuple[int, int]] = []
    try:
        for start, stop in given:
            edges.append((check_whole("start", start, least=0), check_whole("stop", stop, least=1)))
    except (TypeError, ValueError, ArgumentError) as error:
        raise ArgumentError(f"{where}: {given!r:.100}; expected a list of [start, stop) in steps ({error})") from None
    edges.sort()
    for (start, stop), (after, _) in zip(edges, [*edges[1:], (1 << _STEP_BITS, 0)], strict=False):
        if stop <= start:
            raise ArgumentError(f"{where}: [{start}, {stop}) has no step; expected start below stop")
        if stop > after:
            raise ArgumentError(f"{where}: [{start}, {stop}) goes beyond {after}, where the next range starts")
    return tuple(edges)


def hash_content(content: Any) -> str:
    """Return a hash of a JSON value, which does not depend on the process."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
