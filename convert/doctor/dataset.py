"""One converted dataset: its manifest, its splits and shards in worker processes, and all its episodes together."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from convert.doctor.checks import check_instructions, check_split, check_statistics, check_vectors, far_episodes
from convert.doctor.findings import Example, Finding, Notes
from convert.doctor.frames import FrameFacts, check_pairs, check_shares, first_picture
from convert.doctor.open_shard import OpenShard
from convert.doctor.rules import DAMAGED_SHARE, PAIRLESS_SHARE
from convert.doctor.spec import Description, describe
from convert.report import fault, first_line
from convert.verify.index import check_index
from convert.verify.manifest import changed_entry, reindex_hint
from convert.verify.pool import Crashed, WorkerPool
from convert.verify.report import VersionFolder
from convert.verify.split_shard import SplitShard, list_shards
from convert.verify.vectors import compute_statistics
from stream.format.manifest import Manifest, SplitEntry, Statistics, read_manifest
from stream.format.names import MANIFEST_NAME
from stream.storage.errors import FormatError

_DAMAGE = ("unreadable", "malformed", "missing_feature")
"""Reasons for leaving out an episode that mean damaged input."""
_LEAST_OF_A_SPLIT = 4
"""Pairs to look at, however small a split is beside the others."""


@dataclass(kw_only=True)
class DatasetReport(VersionFolder):
    """A dataset and what was found.

    Attributes:
        notes: What was found.
        frames: Facts about the decoded pairs of each split.
    """

    notes: Notes = field(default_factory=Notes)
    frames: dict[str, FrameFacts] = field(default_factory=dict)

    @property
    def total(self) -> FrameFacts:
        """Facts about the decoded pairs of all splits."""
        total = FrameFacts()
        for facts in self.frames.values():
            total += facts
        return total

    @property
    def findings(self) -> list[Finding]:
        """Findings, the worst first."""
        return self.notes.findings()

    def counts(self) -> dict[str, int]:
        """Return what was looked at."""
        return {
            "episodes": sum(split.episodes for split in self.splits.values()),
            "records": sum(split.records for split in self.splits.values()),
            "pairs_looked_at": self.total.pairs,
            "pairs_frozen": self.total.frozen,
        }


def read_dataset(folder: Path) -> DatasetReport:
    """Read the manifest of a version folder and check it; never raises."""
    report = DatasetReport(folder=folder)
    notes = report.notes
    try:
        manifest = read_manifest(folder)
        describe(manifest.spec)
        report.manifest = manifest
    except (FormatError, OSError) as error:
        text = fault(error, folder / MANIFEST_NAME)
        notes.add("incomplete", None, partial(Example, shard=MANIFEST_NAME, text=text))
        return report
    if keys := changed_entry(manifest):
        notes.add("registry_changed", None, reindex_hint(folder, keys))
    for name, split in manifest.splits.items():
        left = sum((Counter(shard.left_out) for shard in split.shards), Counter[str]())
        damaged = sum(left[reason] for reason in _DAMAGE)
        pairless = split.episodes - damaged - sum(shard.paired_episodes for shard in split.shards)
        if not split.records:
            notes.add("split_empty", name, f"{split.episodes:,} episodes, no pair")
            continue
        if damaged > DAMAGED_SHARE * split.episodes:
            reasons = ", ".join(f"{left[reason]:,} {reason}" for reason in _DAMAGE if left[reason])
            text = f"{damaged:,} of {split.episodes:,} episodes were left out: {reasons}"
            notes.add("source_damaged", name, text, count=damaged)
        if pairless > PAIRLESS_SHARE * split.episodes:
            text = f"{pairless:,} of {split.episodes:,} episodes; the offset is {manifest.parameters.get('offset')}"
            notes.add("without_pairs", name, text, count=pairless)
    return report


def look_at(
    report: DatasetReport, *, frames: int, seed: int, pictures: bool, pool: WorkerPool, shown: tqdm[Any]
) -> None:
    """Look at the files of a dataset and add what is found to its report.

    Args:
        report: Report of ``read_dataset``.
        frames: Number of frames to decode, two a pair.
        seed: Seed of the choice of pairs.
        pictures: Keep small pictures.
        pool: Processes.
        shown: Progress bar, which counts shards.
    """
    if report.manifest is None:
        return
    notes, splits, spec = report.notes, report.splits, describe(report.manifest.spec)
    shown.set_description_str(report.dataset, refresh=False)
    manifest, folder = report.manifest, report.folder
    checks = [
        partial(read_split, folder / name, split, manifest.spec, manifest.statistics.get(name, {}))
        for name, split in splits.items()
    ]
    for name, result in zip(splits, pool.run(checks, shown=shown, sizes=[0] * len(checks)), strict=True):
        if isinstance(result, Crashed):
            notes.add("unreadable", name, f"the process that read the index was ended by {result.reason}")
        else:
            notes.update(result)
    chosen = choose_records(manifest, frames=frames, seed=seed)
    shards = [
        shard
        for name, split in splits.items()
        if not notes.count("unreadable", name)
        for shard in list_shards(folder, name, split)
    ]
    reads = [
        partial(read_shard, shard, spec, _within(chosen[shard.split], shard.rows("records")), pictures=pictures)
        for shard in shards
    ]
    report.frames = {name: FrameFacts() for name in splits}
    found: list[np.ndarray] = []
    texts: dict[str, set[str]] = {name: set() for name in splits}
    for number, facts in enumerate(pool.run(reads, shown=shown, sizes=[1] * len(reads))):
        shard = shards[number]
        if isinstance(facts, Crashed):
            _note_unreadable(shard, f"the process that read it was ended by {facts.reason}", notes)
            continue
        notes.update(facts.notes)
        report.frames[shard.split] += facts.frames
        texts[shard.split] |= facts.texts
        if facts.episodes is not None and len(facts.episodes):
            facts.episodes["shard"] = number
            found.append(facts.episodes)
    check_shares(report.frames, notes)
    if found:
        episodes = np.concatenate(found)
        of_split = np.array([shard.split for shard in shards])[episodes["shard"]]
        for name in splits:
            check_split(name, episodes[of_split == name], texts[name], notes)
        _compare_episodes(shards, episodes, spec, notes, pictures=pictures)


def choose_records(manifest: Manifest, *, frames: int, seed: int) -> dict[str, np.ndarray]:
    """Draw the records of each split to look at, sorted: about ``frames`` / 2, and a few of each split."""
    random = np.random.default_rng([seed, zlib.crc32(manifest.dataset.encode())])
    pairs, chosen = max(1, frames // 2), {}
    for name, split in manifest.splits.items():
        share = round(pairs * split.records / max(1, manifest.records))
        wanted = min(split.records, max(share, min(pairs, _LEAST_OF_A_SPLIT)))
        chosen[name] = np.sort(random.choice(max(1, split.records), wanted, replace=False, shuffle=False))
    return chosen


def _within(chosen: np.ndarray, rows: slice) -> list[int]:
    """Return the chosen records among some rows, counted from the first of them."""
    inside: list[int] = (chosen[(chosen >= rows.start) & (chosen < rows.stop)] - rows.start).tolist()
    return inside


def read_split(folder: Path, split: SplitEntry, spec: dict[str, Any], statistics: Mapping[Any, Statistics]) -> Notes:
    """Check the tables of the index of a split as ``convert.verify`` does, and its statistics; never raises."""
    notes, name = Notes(), folder.name
    found = check_index(folder.parent, name, split, offset=None, spec=spec, statistics=statistics, deep=False)
    for file, text in {finding.file: finding.text for finding in reversed(found)}.items():
        notes.add("unreadable", name, partial(Example, shard=Path(file).name, text=text))
    if split.steps and not found:
        try:
            check_statistics(name, describe(spec), statistics, compute_statistics(folder, spec), notes)
        except (FormatError, OSError) as error:
            notes.add("unreadable", name, fault(error, folder))
    return notes


class ShardFacts(NamedTuple):
    """Facts about one shard; ``episodes`` is None if its index cannot be read. See ``check_vectors``."""

    notes: Notes
    episodes: np.ndarray | None
    texts: frozenset[str]
    frames: FrameFacts


def read_shard(shard: SplitShard, spec: Description, records: Sequence[int], *, pictures: bool) -> ShardFacts:
    """Check all rows and some records of a shard; never raises, whatever the files hold."""
    notes, frames, episodes, texts = Notes(), FrameFacts(), None, frozenset[str]()
    try:
        opened = OpenShard(shard)
        texts = check_instructions(opened, notes) if spec.informative else texts
        episodes = check_vectors(opened, spec, notes)
        _ = opened.file
        frames = check_pairs(opened, records, notes, pictures=pictures)
    except Exception as error:
        _note_unreadable(shard, first_line(error), notes)
    return ShardFacts(notes, episodes, texts, frames)


def _note_unreadable(shard: SplitShard, reason: str, notes: Notes) -> None:
    text = reason.removeprefix(f"{shard.folder}/")
    notes.add("unreadable", shard.split, partial(Example, shard=shard.entry.name, text=text))


def _compare_episodes(
    shards: Sequence[SplitShard], episodes: np.ndarray, spec: Description, notes: Notes, *, pictures: bool
) -> None:
    """Note outliers among all episodes of a dataset, and episodes that exist twice."""

    def example(episode: int, text: str, *, picture: bool = False) -> Example:
        shard, row = OpenShard(shards[episodes["shard"][episode]]), int(episodes["row"][episode])
        return shard.example(row, text, picture=partial(first_picture, shard, row) if picture else None)

    def twin_example(episode: int, original: int, split: str) -> Example:
        text = f"same actions and first frame as {example(original, '').place} of {split}"
        return example(episode, text, picture=pictures)

    for episode, text in far_episodes(spec, episodes):
        notes.add("outlier_episode", shards[episodes["shard"][episode]].split, partial(example, episode, text))
    _, firsts, inverse = np.unique(episodes["digest"], return_index=True, return_inverse=True)
    originals = firsts[inverse]
    for episode in np.flatnonzero(originals != np.arange(len(episodes))).tolist():
        original = int(originals[episode])
        one, other = (shards[episodes["shard"][number]].split for number in (original, episode))
        rule = "duplicate_episode" if one == other else "leakage"
        notes.add(rule, other, partial(twin_example, episode, original, one))
