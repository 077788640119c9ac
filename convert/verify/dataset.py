"""The manifest of a dataset against itself, the list of what was left out, and the names of all files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from convert.findings import DatasetReport, Example, Notes
from convert.journal.journal import FOLDER, Journal
from convert.journal.status import QuarantineEntry
from convert.report import fault
from convert.shard.counts import count_frames, total_counts
from convert.shard.pairs import record_offsets
from stream.base.errors import FormatError, first_fault
from stream.base.reading import read_limited
from stream.format.manifest import Manifest, ShardEntry, read_manifest
from stream.format.names import (
    LABELS,
    MANIFEST_NAME,
    QUARANTINE_NAME,
    TABLE_KINDS,
    label_file,
    shard_file,
    split_of,
    table_file,
)

_SHARD = re.compile(r"(?P<index>\d{5,})-of-(?P<count>\d{5,})")
_SHARD_FILE = re.compile(r".*\d{5,}-of-\d{5,}.*\.arrayrecord", re.DOTALL)
_TABLE_FILES = {table_file(table_kind) for table_kind in TABLE_KINDS}
_MAX_QUARANTINE = 1 << 30
_UNLISTED = {"pair_of_corrupt_frame", "not_chosen"}
"""Reasons that are counted and not listed: the list has a corrupt frame once, not each of its pairs."""


class VerifiedDataset(DatasetReport):
    """A dataset and what is wrong with its files."""

    @property
    def facts(self) -> dict[str, Any]:
        """The verdict: ``ok``, ``damaged`` or ``incomplete``."""
        verdict = "incomplete" if self.notes.count("incomplete", None) else "damaged" if self.notes.damage else "ok"
        return {"verdict": verdict}


def verify_dataset(folder: Path) -> VerifiedDataset:
    """Read the manifest of a version folder, and compare it with itself and with the files around it."""
    report = VerifiedDataset(folder=folder)
    findings, manifest_path, has_journal = report.notes, folder / MANIFEST_NAME, (folder / FOLDER).exists()
    try:
        report.manifest = manifest = read_manifest(folder)
    except FileNotFoundError:
        if has_journal:
            sentence = f"is not there: the conversion is incomplete, finished shards: {len(Journal(folder).finished())}"
            findings.add("incomplete", None, partial(Example, file=str(manifest_path), text=sentence))
        else:
            sentence = f"is not there, and no {FOLDER} to resume from; expected a complete conversion"
            findings.add_file(manifest_path, sentence)
    except (FormatError, OSError) as error:
        findings.add_file(manifest_path, fault(error, manifest_path))
    else:
        for field_name in ("dataset", "version"):
            actual, folder_value = getattr(manifest, field_name), getattr(report, field_name)
            if actual != folder_value:
                findings.add_file(manifest_path, f"is of {field_name} {actual!r}, its folder says {folder_value!r}")
        for sentence in _contradictions(manifest):
            findings.add_file(manifest_path, sentence)
        _check_names(folder, manifest, has_journal, findings)
        _check_quarantine(folder / QUARANTINE_NAME, manifest, has_journal, findings)
        if has_journal:
            findings.add("unfinished", None, f"{FOLDER} exists: adding a split goes on or was interrupted")
        if reindex_advice := report.registry_hint:
            findings.add("registry_changed", None, reindex_advice)
    return report


def _contradictions(manifest: Manifest) -> Iterator[str]:
    """Yield a sentence about each contradiction in a manifest that ``read_manifest`` does not find."""
    shards = [entry for split_entry in manifest.splits.values() for entry in split_entry.shards]
    image = manifest.image
    try:
        cameras = set(manifest.parameters.get("cameras", ())).union(*(entry.camera_sizes for entry in shards))
        computed = _counts(total_counts(entry.left_out for entry in shards), count_frames(shards, sorted(cameras)))
        recorded = _counts(manifest.left_out, image)
        num_by_size, num_encoded = sum(image["sizes"].values()), image["passed"] + image["transcoded"]
    except (AttributeError, KeyError, TypeError):
        yield f"field image is {image!r:.200}, expected sizes, passed and transcoded"
    else:
        for subject in sorted({*recorded, *computed}):
            if recorded.get(subject, 0) != computed.get(subject, 0):
                yield f"says {recorded.get(subject, 0)} {subject}, its shards add up to {computed.get(subject, 0)}"
        if num_by_size != num_encoded:
            yield f"counts {num_by_size} frames by size, {num_encoded} passed through or transcoded"
    for split, split_entry in manifest.splits.items():
        yield from _strange_names(split, split_entry.shards)
    if set(manifest.statistics) != set(manifest.splits):
        actual, expected = (
            ", ".join(sorted(splits)) or "no split" for splits in (manifest.statistics, manifest.splits)
        )
        yield f"has statistics of {actual}, expected of {expected}"
    if record_offsets(manifest.layout, manifest.parameters) is None:
        yield "field parameters has no offset, frames and frame_offsets of a pair that agree"


def _counts(left_out: Mapping[str, int], image_counts: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts of a manifest by what is counted; raises AttributeError, KeyError or TypeError without them."""
    cameras = image_counts.get("cameras", {})
    counts = {f"left out as {reason}": count for reason, count in left_out.items()}
    counts |= {f"frames of {size}": count for size, count in image_counts["sizes"].items()}
    for name, sizes in cameras.items():
        counts |= {f"frames of {name} of {size}": count for size, count in sizes.items()}
    return {**counts, "cameras": len(cameras), "frames passed through": image_counts["passed"]}


def _strange_names(split: str, shards: Sequence[ShardEntry]) -> Iterator[str]:
    """Yield a sentence about each shard whose name does not follow the name before."""
    last_index, num_shards = -1, None
    for entry in shards:
        name_match = _SHARD.fullmatch(entry.name.removeprefix(f"{split}-"))
        if name_match is None:
            yield f"split {split} lists a shard {entry.name!r}, expected {split}-00000-of-00001"
            continue
        shard_index, num_shards = int(name_match["index"]), num_shards or name_match["count"]
        if name_match["count"] != num_shards or not last_index < shard_index < int(num_shards):
            yield f"split {split} lists {entry.name!r} after number {last_index} of {num_shards}"
        last_index = shard_index


def _check_names(folder: Path, manifest: Manifest, has_journal: bool, findings: Notes) -> None:
    """Report missing folders of splits, and files that the manifest does not have."""
    for split, split_entry in manifest.splits.items():
        known_names = _TABLE_FILES | {shard_file(entry.name) for entry in split_entry.shards}
        if split_entry.shards and not (folder / split).is_dir():
            findings.add_file(folder / split, f"is no folder; expected a folder of {len(known_names):,} files")
        known_files = {folder / split / name for name in (*known_names, LABELS)}
        known_files |= {folder / split / LABELS / label_file(name) for name in split_entry.labels}
        # A hidden file of labels is of a command that is at work, or of one that was killed: the next one removes it.
        files = {*(folder / split).glob("*"), *(folder / split / LABELS).glob("[!.]*")}
        for file_path in sorted(files - known_files):
            findings.add_file(file_path, "is not in the manifest; remove it if nobody needs it")
    for file_path in sorted(folder.glob("*")):
        if file_path.name.startswith(".") or file_path.name in manifest.splits:
            continue
        if _is_output(file_path):
            findings.add_file(file_path, "is not in the folder of a split; remove it if nobody needs it")
        elif not has_journal and any(map(_is_output, file_path.glob("*"))):
            sentence = f"is a split that the manifest does not have; it has {', '.join(manifest.splits)}"
            findings.add_file(file_path, sentence)


def _is_output(file_path: Path) -> bool:
    return bool(_SHARD_FILE.fullmatch(file_path.name)) or file_path.name in _TABLE_FILES


def _check_quarantine(quarantine_path: Path, manifest: Manifest, has_journal: bool, findings: Notes) -> None:
    """Compare the list of what was left out with the counts of each shard.

    While a split is added, ``has_journal`` is true, and the list has entries of a split that the manifest does not
    have.
    """
    shards = [entry for split_entry in manifest.splits.values() for entry in split_entry.shards]
    counted, listed = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for entry in shards:
        for reason in {*entry.left_out} - _UNLISTED:
            counted[entry.name, reason] = entry.left_out[reason]
    try:
        json_lines = read_limited(quarantine_path, _MAX_QUARANTINE).splitlines()
    except FileNotFoundError:
        if counted:
            findings.add_file(quarantine_path, f"is not there, the manifest left out {dict(manifest.left_out)}")
        return
    except (OSError, FormatError) as error:
        findings.add_file(quarantine_path, fault(error, quarantine_path))
        return
    if manifest.quarantine is not None and not has_journal:
        findings.check_file(quarantine_path, manifest.quarantine)
    for line_number, json_line in enumerate(json_lines, start=1):
        try:
            quarantine_entry = QuarantineEntry.model_validate_json(json_line)
        except ValidationError as error:
            findings.add_file(quarantine_path, f"line {line_number}: {first_fault(error)}")
        else:
            if not has_journal or split_of(quarantine_entry.shard) in manifest.splits:
                listed[quarantine_entry.shard, quarantine_entry.reason] += 1
    known_shards = {entry.name for entry in shards}
    for shard_name, reason in sorted({*listed, *counted}):
        num_listed, num_counted = listed[shard_name, reason], counted[shard_name, reason]
        if shard_name not in known_shards:
            sentence = f"lists {num_listed:,} of {reason} for shard {shard_name!r:.100}"
            findings.add_file(quarantine_path, f"{sentence}, which the manifest does not have")
        elif num_listed != num_counted:
            sentence = f"lists {num_listed:,} of {reason} for {shard_name}"
            findings.add_file(quarantine_path, f"{sentence}, the manifest left out {num_counted:,} there")
