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
"""Pairs to look at, however small a split is beside the others."""


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
        path = folder / MANIFEST_NAME
        notes.add("incomplete", None, partial(Example, file=str(path), text=fault(error, path)))
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


def look_at(report: Examined, *, frames: int, seed: int) -> Examined:
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
        notes.merge(found)
        if not found.damage:
            splits.append(OpenSplit(folder, manifest, sample=sample))
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
