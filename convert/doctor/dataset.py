"""One converted dataset as a whole: which of its pairs are looked at, and what its shards say together."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from convert.doctor.checks import ShardColumns, check_dataset, far_episodes
from convert.doctor.columns import Episodes, OpenShard
from convert.doctor.frames import FrameFacts, check_shares
from convert.doctor.rules import (
    DAMAGED_SHARE,
    MAX_EXAMPLES,
    PAIRLESS_SHARE,
    Example,
    Finding,
    Notes,
    Place,
)
from convert.doctor.shard import FirstFramesTask, IndexTask, ShardFacts, ShardTask, unreadable
from convert.doctor.spec import describe
from convert.report import fault
from convert.verify.dataset import changed_entry, reindex_hint
from convert.verify.pool import Crashed
from convert.verify.split_shard import SplitShard, list_shards
from stream.format.manifest import Manifest, read_manifest
from stream.format.names import MANIFEST_NAME, TABLE_KINDS
from stream.storage.errors import FormatError

_DAMAGE = ("unreadable", "malformed", "missing_feature")
"""Reasons for leaving out an episode that mean damaged input."""
_LEAST_OF_A_SPLIT = 4
"""Pairs to look at, however small a split is beside the others."""


@dataclass(frozen=True, kw_only=True)
class DatasetReport:
    """A dataset and what was found.

    Attributes:
        pairs: Pairs that were decoded.
        frozen: Pairs among them that show twice the same picture.
        samples: Pictures of sound pairs.
    """

    dataset: str
    version: str
    splits: tuple[str, ...]
    episodes: int
    records: int
    pairs: int
    frozen: int
    findings: tuple[Finding, ...]
    samples: tuple[Example, ...] = field(default=(), repr=False)

    def count(self, severity: str) -> int:
        """Return the number of findings of a severity."""
        return sum(finding.rule.severity == severity for finding in self.findings)


class Patient:
    """A dataset that is being looked at.

    Args:
        folder: ``ROOT/<dataset>/<version>``.
        frames: how many to decode, in pairs; ``seed`` says which.
        pictures: keep small ones for people.
    """

    def __init__(self, folder: Path, *, frames: int, seed: int, pictures: bool) -> None:
        """Read the manifest and choose the pairs; what is wrong with it is a finding."""
        absolute = folder.absolute()
        self.name, self.version = absolute.parent.name, absolute.name
        self.notes = Notes()
        self.manifest: Manifest | None = None
        self.indexes: dict[str, IndexTask] = {}
        self.tasks: list[ShardTask] = []
        self.casts: list[float] = []
        self._frames: dict[str, FrameFacts] = {}
        self._pictures = pictures
        self._columns: list[tuple[SplitShard, ShardColumns]] = []
        self._twins: list[list[tuple[int, int]]] = []
        self._wanted: dict[int, list[int]] = {}
        try:
            manifest = read_manifest(folder)
            self._spec = describe(manifest.spec)
        except (FormatError, OSError) as error:
            text = fault(error, folder / MANIFEST_NAME)
            self.notes.add("incomplete", None, Example(place=Place(shard=MANIFEST_NAME), text=text))
            return
        self.manifest = manifest
        self._check_counts(manifest)
        if keys := changed_entry(manifest):
            self.notes.add("registry_changed", None, Example(place=Place(), text=reindex_hint(folder, keys)))
        random = np.random.default_rng([seed, zlib.crc32(self.name.encode())])
        for split, entry in manifest.splits.items():
            totals = {kind: getattr(entry, kind) for kind in TABLE_KINDS}
            self.indexes[split] = IndexTask(folder=str(folder / split), index=entry.index, totals=totals)
            drawn = _draw_records(entry.records, manifest.records, max(1, frames // 2), random)
            for place in list_shards(folder, split, entry):
                rows = place.rows("records")
                first, stop = np.searchsorted(drawn, (rows.start, rows.stop)).tolist()
                records = tuple((drawn[first:stop] - rows.start).tolist())
                self.tasks.append(ShardTask(place=place, spec=self._spec, records=records, pictures=pictures))

    def take_indexes(self, results: Sequence[list[Example] | Crashed]) -> None:
        """Take what is wrong with each of ``indexes``, in their order; shards of a damaged index are left out."""
        for split, found in zip(self.indexes, results, strict=True):
            if isinstance(found, Crashed):
                text = f"the process that read the index was ended by {found.reason}"
                found = [Example(place=Place(), text=text)]
            for example in found:
                self.notes.add("unreadable", split, example)
            if found:
                self.tasks = [task for task in self.tasks if task.place.split != split]

    def take(self, results: Sequence[ShardFacts | Crashed]) -> None:
        """Take what was found in each shard, in the order of ``tasks``."""
        if self.manifest is None:
            return
        columns: dict[str, list[ShardColumns]] = {split: [] for split in self.manifest.splits}
        self._frames = {split: FrameFacts() for split in self.manifest.splits}
        for task, result in zip(self.tasks, results, strict=True):
            if isinstance(result, Crashed):
                why = f"the process that read it was ended by {result.reason}"
                self.notes.add("unreadable", task.place.split, unreadable(task.place, why))
                continue
            self.notes.update([result.notes])
            self._frames[task.place.split] += result.frames
            if result.columns is not None:
                columns[task.place.split].append(result.columns)
                self._columns.append((task.place, result.columns))
        check_dataset(self._spec, self.manifest, columns, self.notes)
        check_shares(self._frames, self.notes)
        for number, row, text in far_episodes(self._spec, [found for _, found in self._columns]):
            place = self._columns[number][0]
            example = Example(place=Place(), text=text)
            if self.notes.wants("outlier_episode", place.split):
                example = _example(place, row, text)
            self.notes.add("outlier_episode", place.split, example)
        self.casts = [cast for facts in self._frames.values() for cast in facts.casts]

    def suspects(self) -> list[FirstFramesTask]:
        """Episodes whose actions are there more than once: where the first frames are so too, they are the same."""
        if self.manifest is None or not self._columns:
            return []
        digests = np.concatenate([found.digests for _, found in self._columns])
        shards = np.concatenate([np.full(len(c.rows), number) for number, (_, c) in enumerate(self._columns)])
        rows = np.concatenate([found.rows for _, found in self._columns])
        _, group, sizes = np.unique(digests, return_inverse=True, return_counts=True)
        several = np.flatnonzero(sizes[group] > 1)
        groups: dict[int, list[tuple[int, int]]] = defaultdict(list)
        wanted: dict[int, list[int]] = defaultdict(list)
        for episode in several.tolist():
            shard, row = int(shards[episode]), int(rows[episode])
            groups[int(group[episode])].append((shard, row))
            wanted[shard].append(row)
        self._twins = list(groups.values())
        self._wanted = dict(wanted)
        pictures = 2 * MAX_EXAMPLES if self._pictures else 0
        return [
            FirstFramesTask(place=self._columns[shard][0], rows=tuple(found), pictures=pictures)
            for shard, found in self._wanted.items()
        ]

    def compare(self, frames: Sequence[list[tuple[bytes, bytes | None]] | Crashed]) -> None:
        """Take the first frames of ``suspects``, in their order, and note which episodes are the same."""
        seen: dict[tuple[int, int], tuple[bytes, bytes | None]] = {}
        for (shard, rows), found in zip(self._wanted.items(), frames, strict=True):
            if not isinstance(found, Crashed):
                seen |= {(shard, row): frame for row, frame in zip(rows, found, strict=False)}
        for twins in self._twins:
            firsts: dict[bytes, tuple[int, int]] = {}
            for twin in twins:
                if twin not in seen:
                    continue
                digest, picture = seen[twin]
                original = firsts.setdefault(digest, twin)
                if original != twin:
                    self._note_twins(original, twin, picture)

    def forget(self) -> None:
        """Let go of the figures of all episodes; the findings stay."""
        self._columns, self._twins, self._wanted = [], [], {}

    def report(self) -> DatasetReport:
        """Return what was found."""
        splits = self.manifest.splits if self.manifest is not None else {}
        return DatasetReport(
            dataset=self.name,
            version=self.version,
            splits=tuple(splits),
            episodes=sum(split.episodes for split in splits.values()),
            records=sum(split.records for split in splits.values()),
            pairs=sum(facts.pairs for facts in self._frames.values()),
            frozen=sum(facts.frozen for facts in self._frames.values()),
            findings=self.notes.findings(self.name, self.version),
            samples=tuple(sample for facts in self._frames.values() for sample in facts.samples)[: 2 * MAX_EXAMPLES],
        )

    def _note_twins(self, original: tuple[int, int], twin: tuple[int, int], picture: bytes | None) -> None:
        (first, _), (second, _) = self._columns[original[0]], self._columns[twin[0]]
        rule = "duplicate_episode" if first.split == second.split else "leakage"
        example = Example(place=Place(), text="")
        if self.notes.wants(rule, second.split):
            other = _example(first, original[1], "").place
            text = f"same actions and first frame as {other} of {first.split}"
            example = _example(second, twin[1], text, picture)
        self.notes.add(rule, second.split, example)

    def _check_counts(self, manifest: Manifest) -> None:
        for name, split in manifest.splits.items():
            if not split.records:
                text = f"{split.episodes:,} episodes, no pair"
                self.notes.add("split_empty", name, Example(place=Place(), text=text))
                continue
            left: dict[str, int] = defaultdict(int)
            for shard in split.shards:
                for reason, count in shard.left_out.items():
                    left[reason] += count
            damaged = sum(left[reason] for reason in _DAMAGE)
            if damaged > DAMAGED_SHARE * split.episodes:
                reasons = ", ".join(f"{left[reason]:,} {reason}" for reason in _DAMAGE if left[reason])
                text = f"{damaged:,} of {split.episodes:,} episodes were left out: {reasons}"
                self.notes.add("source_damaged", name, Example(place=Place(), text=text), count=damaged)
            pairless = split.episodes - damaged - sum(shard.paired_episodes for shard in split.shards)
            if pairless > PAIRLESS_SHARE * split.episodes:
                text = f"{pairless:,} of {split.episodes:,} episodes; the offset is {manifest.parameters.get('offset')}"
                self.notes.add("without_pairs", name, Example(place=Place(), text=text), count=pairless)


def _draw_records(records: int, total: int, pairs: int, random: np.random.Generator) -> np.ndarray:
    """Draw records of a split, sorted: its share of about ``pairs`` of the ``total`` of a dataset."""
    share = round(pairs * records / max(1, total))
    wanted = min(records, max(share, min(pairs, _LEAST_OF_A_SPLIT)))
    return np.sort(random.choice(records, wanted, replace=False, shuffle=False)) if wanted else np.zeros(0, np.int64)


def _example(place: SplitShard, row: int, text: str, picture: bytes | None = None) -> Example:
    found = Episodes(OpenShard(place))
    return Example(place=found.place(row), text=text, instruction=found.text(row), picture=picture)
