"""Version folders of converted datasets: how they are found, and the files in them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from convert.errors import UsageError
from convert.journal.journal import FOLDER, Journal
from convert.report import fault
from convert.verify.manifest import changed_entry, check_quarantine, contradictions, reindex_hint
from convert.verify.report import DatasetReport, Findings, VersionFolder
from stream.format.manifest import Manifest, read_manifest
from stream.format.names import (
    FETCHED_NAME,
    MANIFEST_NAME,
    QUARANTINE_NAME,
    TABLE_KINDS,
    shard_file,
    table_file,
)
from stream.storage.errors import FormatError, closest

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_SHARD_FILE = re.compile(r".*\d{5,}-of-\d{5,}.*\.arrayrecord", re.DOTALL)


def find_datasets(root: str | os.PathLike[str], names: Sequence[str] | None) -> list[Path]:
    """Return the version folders at or below ``root``, sorted.

    Args:
        root: Output root, folder of a dataset, or version folder.
        names: Names of the datasets to choose, None for all.

    Raises:
        UsageError: No conversion or no dataset of a name exists here; names the closest.
    """
    if "://" in str(root):
        raise UsageError(
            f"{root}: only local folders can be checked; copy it with `python -m stream.fetch`, which checks every file"
        )
    top = Path(root)
    if not top.is_dir():
        raise UsageError(
            f"{root}: {'is a file' if top.exists() else 'no such folder'}; expected a conversion's --output"
        )
    found = _versions(top)
    if not found:
        raise UsageError(f"{root}: nothing was converted here; expected <dataset>/<version>/{MANIFEST_NAME} below it")
    known = [VersionFolder(folder=folder).dataset for folder in found]
    for name in names or ():
        if name not in known:
            raise UsageError(f"{root}: no dataset {name!r}; {closest(name, set(known), noun='datasets')}")
    chosen = [folder for folder, name in zip(found, known, strict=True) if names is None or name in names]
    for folder in chosen:
        if (folder / FETCHED_NAME).exists():
            raise UsageError(
                f"{folder}: was fetched in part ({FETCHED_NAME}), and stream.fetch checked its files; check the "
                "complete dataset at its source"
            )
    return chosen


def survey(folder: Path) -> DatasetReport:
    """Read the manifest of a version folder, and compare it with itself and with the files around it."""
    report = DatasetReport(folder=folder)
    findings = Findings()
    journal = (folder / FOLDER).exists()
    try:
        if not (folder / MANIFEST_NAME).exists():
            report.incomplete = journal
            text = f"is not there, and no {FOLDER} to resume from; expected a complete conversion"
            if journal:
                text = f"is not there: the conversion is incomplete, finished shards: {len(Journal(folder).finished())}"
            findings.add(MANIFEST_NAME, text)
        else:
            report.manifest = read_manifest(folder)
    except (FormatError, OSError) as error:
        findings.add(MANIFEST_NAME, fault(error, folder / MANIFEST_NAME))
    if (manifest := report.manifest) is not None:
        for key in ("dataset", "version"):
            found, expected = getattr(manifest, key), getattr(report, key)
            if found != expected:
                findings.add(MANIFEST_NAME, f"is of {key} {found!r}, its folder says {expected!r}")
        for text in contradictions(manifest):
            findings.add(MANIFEST_NAME, text)
        _check_files(folder, manifest, journal, findings)
        check_quarantine(folder, manifest, journal=journal, findings=findings)
        if journal:
            text = "exists: adding a split goes on or was interrupted; the same convert.run command resumes it"
            report.notes.append(f"{FOLDER} {text}")
        if keys := changed_entry(manifest):
            report.notes.append(reindex_hint(folder, keys))
    report.findings = findings.close()
    return report


def _versions(root: Path) -> list[Path]:
    if _is_version(root):
        return [root]
    children = [folder for folder in root.glob("[!.]*") if folder.is_dir()]
    found = [folder for folder in children if _is_version(folder)]
    for child in set(children) - set(found):
        inner = (folder for folder in child.glob("[!.]*") if folder.is_dir())
        found += [folder for folder in inner if _VERSION.fullmatch(folder.name) or _is_version(folder)]
    return sorted(found)


def _is_version(folder: Path) -> bool:
    """Return whether something was converted into this folder, even if only some files of it are left."""
    return any((folder / name).exists() for name in (MANIFEST_NAME, FOLDER, QUARANTINE_NAME)) or any(
        _is_output_file(file.name) and file.name.startswith(f"{file.parent.name}-")
        for file in folder.glob("[!.]*/*.arrayrecord")
    )


def _listdir(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _is_output_file(name: str) -> bool:
    return bool(_SHARD_FILE.fullmatch(name)) or name in map(table_file, TABLE_KINDS)


def _check_files(folder: Path, manifest: Manifest, journal: bool, findings: Findings) -> None:
    """Report missing folders of splits, and files that the manifest does not have."""
    for split, entry in manifest.splits.items():
        known = {*map(table_file, TABLE_KINDS), *(shard_file(shard.name) for shard in entry.shards)}
        if entry.shards and not (folder / split).is_dir():
            findings.add(split, f"is no folder; expected a folder of {len(known):,} files")
        for name in sorted(set(_listdir(folder / split)) - known):
            findings.add(f"{split}/{name}", "is not in the manifest; remove it if nobody needs it")
    for name in _listdir(folder):
        if name.startswith(".") or name in manifest.splits:
            continue
        if _is_output_file(name):
            findings.add(name, "is not in the folder of a split; remove it if nobody needs it")
        elif not journal and any(map(_is_output_file, _listdir(folder / name))):
            findings.add(name, f"is a split that the manifest does not have; it has {', '.join(manifest.splits)}")
