"""One converted dataset as a whole: the manifest, the files around it, the quarantine list."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from convert.errors import ConvertError, UsageError
from convert.journal.journal import FOLDER, Journal
from convert.journal.status import QuarantineEntry
from convert.registry.dataset import changed_fields
from convert.registry.registry import load_registry
from convert.report import first_line
from convert.shard.pairs import frame_offsets
from convert.verify.files import is_unchanged
from convert.verify.index import IndexTask
from convert.verify.report import Finding, Findings
from convert.verify.shard import ShardTask
from convert.verify.split_shard import list_shards, open_regular
from stream.format.manifest import Manifest, ShardEntry, read_manifest
from stream.format.names import (
    FETCHED_NAME,
    MANIFEST_NAME,
    QUARANTINE_NAME,
    TABLE_KINDS,
    shard_file,
    split_of,
    table_file,
)
from stream.storage.errors import FormatError, closest

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_SHARD = re.compile(r"(?P<index>\d{5,})-of-(?P<count>\d{5,})")
_MAX_OFFSET = 10_000
_MAX_LINE = 1_000_000
_UNLISTED = "pair_of_corrupt_frame"
"""The one reason that is counted and not listed: the corrupt frame is listed, once, and not each of its pairs."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What can be said of a version folder without opening its index and shards.

    Attributes:
        folder: ``ROOT/<dataset>/<version>``.
        dataset: Name of the first folder.
        version: Name of the second folder.
        manifest: Manifest, None if there is none that is sound.
        findings: Everything that is wrong.
        notes: What the user may want to know and is not wrong.
        incomplete: Whether there is no manifest, but a conversion that can go on.
        splits: Indexes to check.
        shards: Shards to check.
    """

    folder: Path
    dataset: str
    version: str
    manifest: Manifest | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    incomplete: bool = False
    splits: tuple[IndexTask, ...] = field(default=(), repr=False)
    shards: tuple[ShardTask, ...] = field(default=(), repr=False)


def find_datasets(root: str | os.PathLike[str], names: Sequence[str] | None) -> list[Path]:
    """Return the version folders at or below ``root``, sorted.

    Args:
        root: an output root, a dataset's folder or a version folder.
        names: of datasets to choose; None for all.

    Raises:
        UsageError: there is nothing of a conversion, or no dataset of that name; says which come close.
    """
    if "://" in str(root):
        raise UsageError(
            f"{root}: only local folders can be checked; bring it here with `python -m stream.fetch`, which checks "
            "every file"
        )
    top = Path(root)
    if not top.is_dir():
        raise UsageError(
            f"{root}: {'is a file' if top.exists() else 'no such folder'}; expected a conversion's --output"
        )
    found = _versions(top)
    if not found:
        raise UsageError(f"{root}: nothing was converted here; expected <dataset>/<version>/{MANIFEST_NAME} below it")
    known = {_names(folder)[0] for folder in found}
    for name in names or ():
        if name not in known:
            raise UsageError(f"{root}: no dataset {name!r}; {closest(name, known, noun='datasets')}")
    chosen = [folder for folder in found if names is None or _names(folder)[0] in names]
    for folder in chosen:
        if (folder / FETCHED_NAME).exists():
            raise UsageError(
                f"{folder}: was fetched in part ({FETCHED_NAME}); stream.fetch checked these files, all of it can be "
                "checked where it came from"
            )
    return chosen


def survey(folder: Path, *, deep: bool) -> Survey:
    """Read the manifest of a version folder, and compare it with itself and with what lies around it."""
    dataset, version = _names(folder)
    findings = Findings()
    journal = (folder / FOLDER).exists()
    try:
        if not (folder / MANIFEST_NAME).exists():
            findings.add(MANIFEST_NAME, _missing_manifest(folder, journal))
            return Survey(
                folder=folder, dataset=dataset, version=version, findings=findings.close(), incomplete=journal
            )
        manifest = read_manifest(folder)
    except (FormatError, OSError) as error:
        findings.add(MANIFEST_NAME, _without_path(error))
        return Survey(folder=folder, dataset=dataset, version=version, findings=findings.close())
    for key, found, expected in (("dataset", manifest.dataset, dataset), ("version", manifest.version, version)):
        if found != expected:
            findings.add(MANIFEST_NAME, f"is of {key} {found!r}, its folder says {expected!r}")
    _check_manifest(manifest, findings)
    present = [split for split in manifest.splits if _check_split_folder(folder, manifest, split, findings)]
    _check_surroundings(folder, manifest, journal, findings)
    _check_quarantine(folder, manifest, journal, findings)
    notes = []
    if journal:
        notes.append(
            f"{FOLDER} is there: a split is being added, or that was interrupted; the same convert.run command goes on"
        )
    if keys := changed_entry(manifest):
        notes.append(reindex_hint(folder, keys))
    return Survey(
        folder=folder,
        dataset=dataset,
        version=version,
        manifest=manifest,
        findings=findings.close(),
        notes=tuple(notes),
        splits=tuple(_index_tasks(folder, manifest, present, deep)),
        shards=tuple(_shard_tasks(folder, manifest, present, deep)),
    )


def changed_entry(manifest: Manifest) -> list[str]:
    """Return the fields of a manifest's registry entry that differ from the packaged registry.

    A dataset or version that the packaged registry does not have differs in nothing.
    """
    spec = load_registry().datasets.get(manifest.dataset)
    return changed_fields(manifest.spec, spec) if spec is not None and spec.version == manifest.version else []


def reindex_hint(folder: Path, keys: Sequence[str]) -> str:
    """Return what to do about ``changed_entry``, in one sentence."""
    root = Path(os.path.abspath(folder)).parent.parent
    return (
        f"was converted with another registry entry than the packaged one ({', '.join(keys)} differ); "
        f"`python -m convert.reindex {root} --datasets {_names(folder)[0]}` brings derived columns and statistics "
        "up to date"
    )


def _versions(root: Path) -> list[Path]:
    if _is_version(root):
        return [root]
    children = _folders(root)
    found = [child for child in children if _is_version(child)]
    for child in children:
        if child not in found:
            found += [inner for inner in _folders(child) if _is_version(inner) or _VERSION.fullmatch(inner.name)]
    return sorted(found)


def _is_version(folder: Path) -> bool:
    """Return whether something was converted into this very folder, even if only ruins of that are left."""
    if any((folder / name).exists() for name in (MANIFEST_NAME, FOLDER, QUARANTINE_NAME)):
        return True
    return any(
        _is_shard_file(name) and name.startswith(f"{split.name}-")
        for split in _folders(folder)
        for name in _listdir(split)
    )


def _folders(folder: Path) -> list[Path]:
    return [path for name in _listdir(folder) if not name.startswith(".") and (path := folder / name).is_dir()]


def _listdir(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _is_shard_file(name: str) -> bool:
    return bool(_SHARD.search(name)) and name.endswith(".arrayrecord")


def _is_output_file(name: str) -> bool:
    return _is_shard_file(name) or name in map(table_file, TABLE_KINDS)


def _names(folder: Path) -> tuple[str, str]:
    absolute = Path(os.path.abspath(folder))
    return absolute.parent.name, absolute.name


def _missing_manifest(folder: Path, journal: bool) -> str:
    shards = Counter(stem.rsplit("-of-", 1)[-1] for stem in Journal(folder).finished()) if journal else Counter()
    if not journal:
        return f"is not there, and no {FOLDER} to go on from; expected a complete conversion"
    done = sum(shards.values())
    return (
        f"is not there: this conversion is not complete, {done:,} {'shard is' if done == 1 else 'shards are'} finished"
    )


def _without_path(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}, expected a manifest"
    text = first_line(error)
    return text.split(f"{MANIFEST_NAME}: ", 1)[-1]


def _check_manifest(manifest: Manifest, findings: Findings) -> None:
    """Check that the manifest adds up, beyond what reading it does."""
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    _compare_counts(manifest.left_out, (shard.left_out for shard in shards), "left out as", findings)
    _compare_counts(_sizes(manifest) or {}, (shard.sizes for shard in shards), "frames of", findings)
    passed = sum(shard.passed for shard in shards)
    if manifest.image.get("passed") != passed:
        findings.add(MANIFEST_NAME, f"says {manifest.image.get('passed')} frames passed through, its shards {passed:,}")
    for name, split in manifest.splits.items():
        _check_shard_names(name, split.shards, findings)
    if set(manifest.statistics) != set(manifest.splits):
        findings.add(
            MANIFEST_NAME,
            f"has statistics of {', '.join(sorted(manifest.statistics)) or 'no split'}, "
            f"expected of {', '.join(sorted(manifest.splits))}",
        )
    sizes = _sizes(manifest)
    frames = [count for key in ("passed", "transcoded") if isinstance(count := manifest.image.get(key), int)]
    if sizes is None or len(frames) != 2:
        findings.add(MANIFEST_NAME, f"field image is {manifest.image!r:.200}, expected sizes, passed and transcoded")
    elif sum(sizes.values()) != sum(frames):
        findings.add(
            MANIFEST_NAME,
            f"counts {sum(sizes.values()):,} frames by size, {sum(frames):,} passed through or transcoded",
        )
    if _pair(manifest) == (None, None):
        findings.add(MANIFEST_NAME, "field parameters has no offset, frames and frame_offsets of a pair that agree")


def _compare_counts(
    said: Mapping[str, int], shards: Iterable[Mapping[str, int]], what: str, findings: Findings
) -> None:
    """Compare counts of a dataset, by key, with those of its shards."""
    total: Counter[str] = Counter()
    for counts in shards:
        total.update(counts)
    for key in sorted({*said, *total}):
        if said.get(key, 0) != total[key]:
            text = f"says {said.get(key, 0):,} {what} {key}, its shards add up to {total[key]:,}"
            findings.add(MANIFEST_NAME, text)


def _check_shard_names(split: str, shards: Sequence[ShardEntry], findings: Findings) -> None:
    last, count = -1, None
    for shard in shards:
        match = _SHARD.fullmatch(shard.name.removeprefix(f"{split}-"))
        if match is None:
            findings.add(MANIFEST_NAME, f"split {split} lists a shard {shard.name!r}, expected {split}-00000-of-00001")
            continue
        count = count or match["count"]
        if match["count"] != count or not last < int(match["index"]) < int(count):
            findings.add(MANIFEST_NAME, f"split {split} lists {shard.name!r} after number {last} of {count}")
        last = int(match["index"])


def _check_split_folder(folder: Path, manifest: Manifest, split: str, findings: Findings) -> bool:
    """Check that there is nothing in the folder of a split that does not belong there."""
    shards = manifest.splits[split].shards
    try:
        names = sorted(os.listdir(folder / split))
    except OSError as error:
        if shards:
            count = len(shards) + len(TABLE_KINDS)
            findings.add(split, f"cannot be listed: {error.strerror}; expected {count:,} files")
        return False
    known = {*map(table_file, TABLE_KINDS), *(shard_file(shard.name) for shard in shards)}
    for name in names:
        if name not in known:
            findings.add(f"{split}/{name}", "is not in the manifest; remove it if nobody needs it")
    return True


def _check_surroundings(folder: Path, manifest: Manifest, journal: bool, findings: Findings) -> None:
    for name in _listdir(folder):
        path = folder / name
        if name.startswith(".") or name in manifest.splits:
            continue
        if _is_output_file(name):
            findings.add(name, "is not in the folder of a split; remove it if nobody needs it")
        elif not journal and path.is_dir() and any(_is_output_file(inner) for inner in _listdir(path)):
            findings.add(name, f"is a split that the manifest does not have; it has {', '.join(manifest.splits)}")


def _check_quarantine(folder: Path, manifest: Manifest, journal: bool, findings: Findings) -> None:
    """Compare the list of what was left out with the counts of each shard."""
    shards = {shard.name: shard for split in manifest.splits.values() for shard in split.shards}
    listed: Counter[tuple[str, str]] = Counter()
    path = folder / QUARANTINE_NAME
    if manifest.quarantine and not journal and path.exists():
        is_unchanged(path, manifest.quarantine, name=QUARANTINE_NAME, findings=findings)
        # The lines of a list that has changed say what has.
        if not path.is_file():
            return
    try:
        with open_regular(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE), b""), start=1):
                try:
                    entry = QuarantineEntry.model_validate_json(line)
                except ValidationError as error:
                    findings.add(QUARANTINE_NAME, f"line {number}: {error.errors()[0]['msg']} (found {line[:80]!r})")
                    continue
                shard = shards.get(entry.shard)
                if shard is not None and shard.source_file == entry.source_file:
                    listed[entry.shard, entry.reason] += 1
                elif shard is not None or not journal or split_of(entry.shard) in manifest.splits:
                    what = f"shard {entry.shard!r:.100} of source file {entry.source_file!r:.100}"
                    findings.add(QUARANTINE_NAME, f"line {number}: {what}, which the manifest does not have")
    except FileNotFoundError:
        if not any(set(shard.left_out) - {_UNLISTED} for shard in shards.values()):
            return
        findings.add(QUARANTINE_NAME, f"is not there, the manifest left out {dict(manifest.left_out)}")
        return
    except OSError as error:
        findings.add(QUARANTINE_NAME, f"cannot be read: {error.strerror or error}")
        return
    counted = {
        (shard.name, reason): count
        for shard in shards.values()
        for reason, count in shard.left_out.items()
        if reason != _UNLISTED
    }
    for name, reason in sorted({*listed, *counted}):
        found, expected = listed[name, reason], counted.get((name, reason), 0)
        if found != expected:
            findings.add(
                QUARANTINE_NAME, f"lists {found:,} of {reason} for {name}, the manifest left out {expected:,} there"
            )


def _index_tasks(folder: Path, manifest: Manifest, splits: Sequence[str], deep: bool) -> Iterable[IndexTask]:
    offset, _ = _pair(manifest)
    for split in splits:
        yield IndexTask(
            folder=str(folder),
            split=split,
            entry=manifest.splits[split],
            offset=offset,
            spec=manifest.spec,
            statistics=dict(manifest.statistics.get(split, {}).items()),
            deep=deep,
        )


def _shard_tasks(folder: Path, manifest: Manifest, splits: Sequence[str], deep: bool) -> Iterable[ShardTask]:
    _, offsets = _pair(manifest)
    for split in splits:
        for shard in list_shards(folder, split, manifest.splits[split]):
            yield ShardTask(shard=shard, frame_offsets=offsets, deep=deep)


def _pair(manifest: Manifest) -> tuple[int | None, tuple[int, ...] | None]:
    """Return the offset of all pairs and of the frames in them, if the manifest says so and agrees with itself."""
    offset, frames = manifest.parameters.get("offset"), manifest.parameters.get("frames")
    if not isinstance(offset, int) or not isinstance(frames, str) or not 1 <= offset <= _MAX_OFFSET:
        return None, None
    try:
        offsets = frame_offsets(frames, offset)
    except ConvertError:
        return None, None
    return (offset, offsets) if manifest.parameters.get("frame_offsets") == list(offsets) else (None, None)


def _sizes(manifest: Manifest) -> dict[str, int] | None:
    sizes = manifest.image.get("sizes")
    if isinstance(sizes, dict) and all(isinstance(count, int) for count in sizes.values()):
        return sizes
    return None
