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
from stream.base.reading import read_whole
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
_TABLE_FILES = {table_file(kind) for kind in TABLE_KINDS}
_MAX_QUARANTINE = 1 << 30
_UNLISTED = {"pair_of_corrupt_frame", "not_chosen"}
"""Reasons that are counted and not listed: the list has a corrupt frame once, not each of its pairs."""


class Surveyed(DatasetReport):
    """A dataset and what is wrong with its files."""

    @property
    def facts(self) -> dict[str, Any]:
        """The verdict: ``ok``, ``damaged`` or ``incomplete``."""
        verdict = "incomplete" if self.notes.count("incomplete", None) else "damaged" if self.notes.damage else "ok"
        return {"verdict": verdict}


def survey(folder: Path) -> Surveyed:
    """Read the manifest of a version folder, and compare it with itself and with the files around it."""
    report = Surveyed(folder=folder)
    findings, path, journal = report.notes, folder / MANIFEST_NAME, (folder / FOLDER).exists()
    try:
        report.manifest = manifest = read_manifest(folder)
    except FileNotFoundError:
        if journal:
            text = f"is not there: the conversion is incomplete, finished shards: {len(Journal(folder).finished())}"
            findings.add("incomplete", None, partial(Example, file=str(path), text=text))
        else:
            findings.add_file(path, f"is not there, and no {FOLDER} to resume from; expected a complete conversion")
    except (FormatError, OSError) as error:
        findings.add_file(path, fault(error, path))
    else:
        for key in ("dataset", "version"):
            found, expected = getattr(manifest, key), getattr(report, key)
            if found != expected:
                findings.add_file(path, f"is of {key} {found!r}, its folder says {expected!r}")
        for text in _contradictions(manifest):
            findings.add_file(path, text)
        _check_names(folder, manifest, journal, findings)
        _check_quarantine(folder / QUARANTINE_NAME, manifest, journal, findings)
        if journal:
            findings.add("unfinished", None, f"{FOLDER} exists: adding a split goes on or was interrupted")
        if hint := report.registry_hint:
            findings.add("registry_changed", None, hint)
    return report


def _contradictions(manifest: Manifest) -> Iterator[str]:
    """Yield a sentence about each contradiction in a manifest that ``read_manifest`` does not find."""
    shards, image = [shard for split in manifest.splits.values() for shard in split.shards], manifest.image
    try:
        cameras = {*manifest.parameters.get("cameras", ()), *(name for shard in shards for name in shard.camera_sizes)}
        counted = _counts(total_counts(shard.left_out for shard in shards), count_frames(shards, sorted(cameras)))
        said = _counts(manifest.left_out, image)
        by_size, encoded = sum(image["sizes"].values()), image["passed"] + image["transcoded"]
    except (AttributeError, KeyError, TypeError):
        yield f"field image is {image!r:.200}, expected sizes, passed and transcoded"
    else:
        for what in sorted({*said, *counted}):
            if said.get(what, 0) != counted.get(what, 0):
                yield f"says {said.get(what, 0)} {what}, its shards add up to {counted.get(what, 0)}"
        if by_size != encoded:
            yield f"counts {by_size} frames by size, {encoded} passed through or transcoded"
    for name, split in manifest.splits.items():
        yield from _strange_names(name, split.shards)
    if set(manifest.statistics) != set(manifest.splits):
        found, expected = (", ".join(sorted(names)) or "no split" for names in (manifest.statistics, manifest.splits))
        yield f"has statistics of {found}, expected of {expected}"
    if record_offsets(manifest.layout, manifest.parameters) is None:
        yield "field parameters has no offset, frames and frame_offsets of a pair that agree"


def _counts(left_out: Mapping[str, int], image: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts of a manifest by what is counted; raises AttributeError, KeyError or TypeError without them."""
    cameras = image.get("cameras", {})
    return {
        **{f"left out as {reason}": count for reason, count in left_out.items()},
        **{f"frames of {size}": count for size, count in image["sizes"].items()},
        **{f"frames of {name} of {size}": cameras[name][size] for name in cameras for size in cameras[name]},
        "cameras": len(cameras),
        "frames passed through": image["passed"],
    }


def _strange_names(split: str, shards: Sequence[ShardEntry]) -> Iterator[str]:
    """Yield a sentence about each shard whose name does not follow the name before."""
    last, count = -1, None
    for shard in shards:
        match = _SHARD.fullmatch(shard.name.removeprefix(f"{split}-"))
        if match is None:
            yield f"split {split} lists a shard {shard.name!r}, expected {split}-00000-of-00001"
            continue
        index, count = int(match["index"]), count or match["count"]
        if match["count"] != count or not last < index < int(count):
            yield f"split {split} lists {shard.name!r} after number {last} of {count}"
        last = index


def _check_names(folder: Path, manifest: Manifest, journal: bool, findings: Notes) -> None:
    """Report missing folders of splits, and files that the manifest does not have."""
    for split, entry in manifest.splits.items():
        known = _TABLE_FILES | {shard_file(shard.name) for shard in entry.shards}
        if entry.shards and not (folder / split).is_dir():
            findings.add_file(folder / split, f"is no folder; expected a folder of {len(known):,} files")
        labels = {label_file(name) for name in entry.labels}
        # A hidden file of labels is of a command that is at work, or of one that was killed: the next one removes it.
        unknown = [path for path in (folder / split / LABELS).glob("[!.]*") if path.name not in labels]
        unknown += [path for path in (folder / split).glob("*") if path.name not in known | {LABELS}]
        for path in sorted(unknown):
            findings.add_file(path, "is not in the manifest; remove it if nobody needs it")
    for path in sorted(folder.glob("*")):
        if path.name.startswith(".") or path.name in manifest.splits:
            continue
        if _is_output(path):
            findings.add_file(path, "is not in the folder of a split; remove it if nobody needs it")
        elif not journal and any(map(_is_output, path.glob("*"))):
            findings.add_file(path, f"is a split that the manifest does not have; it has {', '.join(manifest.splits)}")


def _is_output(path: Path) -> bool:
    return bool(_SHARD_FILE.fullmatch(path.name)) or path.name in _TABLE_FILES


def _check_quarantine(path: Path, manifest: Manifest, journal: bool, findings: Notes) -> None:
    """Compare the list of what was left out with the counts of each shard.

    While a split is added, ``journal`` is true, and the list has entries of a split that the manifest does not have.
    """
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    counted, listed = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for shard in shards:
        for reason in {*shard.left_out} - _UNLISTED:
            counted[shard.name, reason] = shard.left_out[reason]
    try:
        lines = read_whole(path, _MAX_QUARANTINE).splitlines()
    except FileNotFoundError:
        if counted:
            findings.add_file(path, f"is not there, the manifest left out {dict(manifest.left_out)}")
        return
    except (OSError, FormatError) as error:
        findings.add_file(path, fault(error, path))
        return
    if manifest.quarantine is not None and not journal:
        findings.check_file(path, manifest.quarantine)
    for number, line in enumerate(lines, start=1):
        try:
            entry = QuarantineEntry.model_validate_json(line)
        except ValidationError as error:
            findings.add_file(path, f"line {number}: {first_fault(error)}")
        else:
            if not journal or split_of(entry.shard) in manifest.splits:
                listed[entry.shard, entry.reason] += 1
    known = {shard.name for shard in shards}
    for key in sorted({*listed, *counted}):
        name, reason = key
        if name not in known:
            what = f"lists {listed[key]:,} of {reason} for shard {name!r:.100}"
            findings.add_file(path, f"{what}, which the manifest does not have")
        elif listed[key] != counted[key]:
            what = f"lists {listed[key]:,} of {reason} for {name}"
            findings.add_file(path, f"{what}, the manifest left out {counted[key]:,} there")
