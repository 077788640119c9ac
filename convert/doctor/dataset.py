"""One converted dataset: the choice of its records, the checks of its manifest, and those of its splits."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from convert.doctor.checks import DATASET_CHECKS, SPLIT_CHECKS
from convert.doctor.split import FrameFacts, OpenSplit
from convert.findings import DatasetReport, Example, Notes
from convert.index.derived import read_vectors
from convert.report import fault, first_line
from convert.rules import DAMAGED_SHARE, PAIRLESS_SHARE
from convert.shard.counts import DAMAGED_EPISODE, total_counts
from convert.verify.index import check_index
from stream.base.errors import FormatError
from stream.format.manifest import Manifest, read_manifest
from stream.format.names import MANIFEST_NAME

_LEAST_OF_A_SPLIT = 4
"""Least number of pairs to look at in each split, however small."""


@dataclass(kw_only=True)
class Examined(DatasetReport):
    """A dataset and what was found; ``total`` has facts about the decoded pairs of all splits."""

    total: FrameFacts = field(default_factory=FrameFacts)

    @property
    def facts(self) -> dict[str, Any]:
        """Count of the pairs of frames that were looked at, and of those that are frozen."""
        return {"pairs_looked_at": self.total.pairs, "pairs_frozen": self.total.frozen}


def read_dataset(folder: Path) -> Examined:
    """Read the manifest of a version folder and check it; never raises."""
    report = Examined(folder=folder)
    notes = report.notes
    try:
        manifest = read_manifest(folder)
        read_vectors(manifest)
    except (FormatError, OSError) as error:
        manifest_path = folder / MANIFEST_NAME
        notes.add("incomplete", None, partial(Example, file=str(manifest_path), text=fault(error, manifest_path)))
        return report
    report.manifest = manifest
    if reindex_advice := report.registry_hint:
        notes.add("registry_changed", None, reindex_advice)
    for split, split_entry in manifest.splits.items():
        left_out = Counter(total_counts(entry.left_out for entry in split_entry.shards))
        damaged = sum(left_out[reason] for reason in DAMAGED_EPISODE)
        pairless = split_entry.episodes - damaged - sum(entry.paired_episodes for entry in split_entry.shards)
        if not split_entry.records:
            notes.add("split_empty", split, f"{split_entry.episodes:,} episodes, no record")
            continue
        if damaged > DAMAGED_SHARE * split_entry.episodes:
            reasons = ", ".join(f"{left_out[reason]:,} {reason}" for reason in DAMAGED_EPISODE if left_out[reason])
            sentence = f"{damaged:,} of {split_entry.episodes:,} episodes were left out: {reasons}"
            notes.add("source_damaged", split, sentence, count=damaged)
        if pairless > PAIRLESS_SHARE * split_entry.episodes:
            offset = manifest.parameters.get("offset")
            sentence = f"{pairless:,} of {split_entry.episodes:,} episodes; the offset is {offset}"
            notes.add("without_pairs", split, sentence, count=pairless)
    return report


def examine_dataset(report: Examined, *, frames: int, seed: int) -> Examined:
    """Look at the files of a dataset and return its report with what is found; never raises.

    ``report`` is that of ``read_dataset``, the other arguments are those of ``convert.doctor.command.examine``.
    """
    splits, notes = [], report.notes
    if (manifest := report.manifest) is None:
        return report
    chosen_records = choose_records(manifest, frames=frames, seed=seed)
    for split, sample in chosen_records.items():
        folder = report.folder / split
        findings = check_index(folder, manifest, deep=False)
        notes.merge(findings)
        if not findings.damage:
            splits.append(OpenSplit(folder, manifest, sample=sample))
            for check_split in SPLIT_CHECKS:
                _run(partial(check_split, splits[-1], notes), split, notes)
            report.total += splits[-1].frames
    for check_all in DATASET_CHECKS if splits else ():
        _run(partial(check_all, splits, notes), None, notes)
    return report


def _run(run_check: partial[None], split: str | None, notes: Notes) -> None:
    try:
        run_check()
    except Exception as error:
        notes.add("unreadable", split, f"{run_check.func.__name__} ended: {type(error).__name__}: {first_line(error)}")


def choose_records(manifest: Manifest, *, frames: int, seed: int) -> dict[str, np.ndarray]:
    """Draw the records of each split to look at, sorted: about ``frames`` / 2, and a few of each split."""
    generator = np.random.default_rng([seed, zlib.crc32(manifest.dataset.encode())])
    num_pairs, chosen_records = max(1, frames // 2), {}
    for split, entry in manifest.splits.items():
        proportional = round(num_pairs * entry.records / max(1, manifest.records))
        num_records = min(entry.records, max(proportional, min(num_pairs, _LEAST_OF_A_SPLIT)))
        records = generator.choice(max(1, entry.records), num_records, replace=False, shuffle=False)
        chosen_records[split] = np.sort(records)
    return chosen_records
