"""One converted dataset: the choice of its records, the checks of its manifest, and those of its splits."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from convert.datasets import VersionFolder
from convert.doctor.checks import DATASET_CHECKS, SPLIT_CHECKS
from convert.doctor.findings import Example, Finding, Notes, count_severities
from convert.doctor.rules import DAMAGED_SHARE, PAIRLESS_SHARE
from convert.doctor.split import FrameFacts, OpenSplit
from convert.index.derived import read_vectors
from convert.report import fault, first_line
from convert.shard.counts import DAMAGED_EPISODE, total_counts
from convert.verify.index import check_index
from stream.format.manifest import Manifest, read_manifest
from stream.format.names import MANIFEST_NAME
from stream.storage.errors import FormatError

_LEAST_OF_A_SPLIT = 4
"""Pairs to look at, however small a split is beside the others."""


@dataclass(kw_only=True)
class DatasetReport(VersionFolder):
    """A dataset and what was found.

    Attributes:
        notes: What was found.
        total: Facts about the decoded pairs of all splits.
    """

    notes: Notes = field(default_factory=Notes)
    total: FrameFacts = field(default_factory=FrameFacts)

    @property
    def findings(self) -> list[Finding]:
        """Findings, the worst first."""
        return self.notes.findings()

    def to_json(self) -> dict[str, Any]:
        """Return the entry in ``--json``: what was looked at, and the number of findings by severity."""
        return {
            "dataset": self.dataset,
            "version": self.version,
            "splits": list(self.splits),
            "episodes": sum(split.episodes for split in self.splits.values()),
            "records": sum(split.records for split in self.splits.values()),
            "pairs_looked_at": self.total.pairs,
            "pairs_frozen": self.total.frozen,
            **count_severities(self.findings),
        }


def read_dataset(folder: Path) -> DatasetReport:
    """Read the manifest of a version folder and check it; never raises."""
    report = DatasetReport(folder=folder)
    notes = report.notes
    try:
        manifest = read_manifest(folder)
        read_vectors(manifest)
    except (FormatError, OSError) as error:
        path = folder / MANIFEST_NAME
        notes.add("incomplete", None, partial(Example, shard=path.name, text=fault(error, path)))
        return report
    report.manifest = manifest
    if hint := report.registry_hint:
        notes.add("registry_changed", None, hint)
    for name, split in manifest.splits.items():
        left = Counter(total_counts(shard.left_out for shard in split.shards))
        damaged = sum(left[reason] for reason in DAMAGED_EPISODE)
        pairless = split.episodes - damaged - sum(shard.paired_episodes for shard in split.shards)
        if not split.records:
            notes.add("split_empty", name, f"{split.episodes:,} episodes, no record")
            continue
        if damaged > DAMAGED_SHARE * split.episodes:
            reasons = ", ".join(f"{left[reason]:,} {reason}" for reason in DAMAGED_EPISODE if left[reason])
            text = f"{damaged:,} of {split.episodes:,} episodes were left out: {reasons}"
            notes.add("source_damaged", name, text, count=damaged)
        if pairless > PAIRLESS_SHARE * split.episodes:
            text = f"{pairless:,} of {split.episodes:,} episodes; the offset is {manifest.parameters.get('offset')}"
            notes.add("without_pairs", name, text, count=pairless)
    return report


def look_at(report: DatasetReport, *, frames: int, seed: int, pictures: bool) -> DatasetReport:
    """Look at the files of a dataset and return its report with what is found; never raises.

    ``report`` is that of ``read_dataset``, the other arguments are those of ``convert.doctor.command.examine``.
    """
    splits, notes = [], report.notes
    if (manifest := report.manifest) is None:
        return report
    chosen = choose_records(manifest, frames=frames, seed=seed)
    for name, sample in chosen.items():
        folder = report.folder / name
        found = check_index(folder, manifest, deep=False)
        for file, text in {finding.file: finding.text for finding in reversed(found)}.items():
            notes.add("unreadable", name, partial(Example, shard=file.name, text=text))
        if not found:
            splits.append(OpenSplit(folder, manifest, sample=sample, pictures=pictures))
            for check in SPLIT_CHECKS:
                _run(partial(check, splits[-1], notes), name, notes)
            report.total += splits[-1].frames
    for check_all in DATASET_CHECKS if splits else ():
        _run(partial(check_all, splits, notes), None, notes)
    return report


def _run(check: partial[None], split: str | None, notes: Notes) -> None:
    try:
        check()
    except Exception as error:
        notes.add("unreadable", split, f"{check.func.__name__} ended: {type(error).__name__}: {first_line(error)}")


def choose_records(manifest: Manifest, *, frames: int, seed: int) -> dict[str, np.ndarray]:
    """Draw the records of each split to look at, sorted: about ``frames`` / 2, and a few of each split."""
    random = np.random.default_rng([seed, zlib.crc32(manifest.dataset.encode())])
    pairs, chosen = max(1, frames // 2), {}
    for name, split in manifest.splits.items():
        share = round(pairs * split.records / max(1, manifest.records))
        wanted = min(split.records, max(share, min(pairs, _LEAST_OF_A_SPLIT)))
        chosen[name] = np.sort(random.choice(max(1, split.records), wanted, replace=False, shuffle=False))
    return chosen
