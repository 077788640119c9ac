"""The end of a conversion: when all shards are finished, their status files become the manifest."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from importlib import metadata
from typing import Any

from convert import __version__
from convert.errors import ConflictError, ConvertError
from convert.journal import MANIFEST, QuarantineEntry, ShardStatus, check_parameters, writing
from convert.plan import Conversion
from convert.remote_journal import AnyJournal, open_journal
from convert.statistics import vector_statistics
from stream.format import FORMAT_VERSION, FormatError, split_of
from stream.manifest import (
    FileEntry,
    Manifest,
    ShardEntry,
    Source,
    SplitEntry,
    Statistics,
)

_LIBRARIES = (
    "apache-beam",
    "array-record",
    "numpy",
    "opencv-python-headless",
    "pyarrow",
    "simplejpeg",
    "tensorflow-datasets",
)


def existing_manifest(conversion: Conversion) -> Manifest | None:
    """Return the manifest in the output, if there is one that this conversion agrees with.

    Raises:
        ConflictError: the output was converted with other parameters or from another source, or by another version of
            the format.
    """
    journal = _journal(conversion)
    output = journal.output
    try:
        manifest = journal.manifest()
    except FormatError as error:
        raise ConflictError(f"{error} (or choose another --output)") from None
    if manifest is None:
        return None
    check_parameters(manifest.parameters, conversion.parameters, where=str(output))
    if manifest.source.fingerprint != conversion.source.fingerprint:
        raise ConflictError(
            f"{output} was converted from {manifest.source.path}, whose dataset_info.json or features.json are not "
            f"those of {conversion.source.path}; use another --output or --overwrite"
        )
    return manifest


def finalise(conversion: Conversion) -> Manifest | None:
    """Write the manifest if every shard of the conversion is finished, and remove the journal.

    Splits that an earlier manifest has are kept. Any number of processes may call this at the same time.

    Returns:
        The manifest; None while shards are missing.
    """
    journal = _journal(conversion)
    if done := _complete(conversion):
        return done
    try:
        with journal.lock(MANIFEST, wait=True):
            # Without locks another process may finish, and remove the journal, while this one reads it.
            return _complete(conversion) or _finalise(conversion, journal) or _complete(conversion)
    except ConvertError:
        # Another process may have finished between the two looks, and removed the journal with the lock.
        if done := _complete(conversion):
            return done
        raise


def _journal(conversion: Conversion) -> AnyJournal:
    return open_journal(conversion.plan.output, conversion.plan.staging)


def _complete(conversion: Conversion) -> Manifest | None:
    manifest = existing_manifest(conversion)
    covered = manifest is not None and set(conversion.splits) <= set(manifest.splits)
    return manifest if covered and not _journal(conversion).exists() else None


def _finalise(conversion: Conversion, journal: AnyJournal) -> Manifest | None:
    output = journal.output
    before = existing_manifest(conversion)
    splits = dict(before.splits) if before else {}
    kept = set(splits)
    known = {shard.name: shard for split in splits.values() for shard in split.shards}
    statuses: dict[str, list[ShardStatus]] = {name: [] for name in conversion.splits if name not in kept}
    finished = journal.statuses({job.stem: job.shard.split for job in conversion.jobs})
    for job in conversion.jobs:
        status = finished.get(job.stem)
        if job.shard.split in kept:
            entry = known.get(job.stem)
            if entry is not None and not journal.has_files(entry, job.shard.split):
                return None
            if entry is None or (status and status.entry != entry):
                raise ConflictError(
                    f"{output}: shard {job.stem} came out different from what the manifest says, so the libraries or "
                    "the source have changed; convert again with --overwrite"
                )
        elif status is None:
            return None
        else:
            statuses[job.shard.split].append(status)
    for name, found in statuses.items():
        splits[name] = _split([status.entry for status in found])
    new = [status for found in statuses.values() for status in found]
    with writing(journal.workplace):
        if before and not new:
            journal.clear(known)
            return before
        quarantine = _write_quarantine(journal, _old_quarantine(journal, kept), new)
        manifest = _manifest(conversion, splits, new, before, quarantine)
        journal.write_manifest(manifest)
        journal.clear(shard.name for split in manifest.splits.values() for shard in split.shards)
    return manifest


def _split(entries: Sequence[ShardEntry]) -> SplitEntry:
    return SplitEntry(
        episodes=sum(entry.episodes for entry in entries),
        steps=sum(entry.steps for entry in entries),
        records=sum(entry.records for entry in entries),
        shards=tuple(entries),
    )


def _manifest(
    conversion: Conversion,
    splits: Mapping[str, SplitEntry],
    statuses: Sequence[ShardStatus],
    before: Manifest | None,
    quarantine: FileEntry | None,
) -> Manifest:
    spec = conversion.spec
    ordered = {name: splits[name] for name in sorted(splits)}
    shards = [shard for split in ordered.values() for shard in split.shards]
    return Manifest(
        format_version=FORMAT_VERSION,
        layout="pairs",
        dataset=spec.name,
        version=spec.version,
        source=Source(
            tfds_name=spec.tfds_name,
            version=spec.version,
            path=conversion.source.path,
            fingerprint=conversion.source.fingerprint,
        ),
        parameters=dict(conversion.parameters),
        spec=spec.model_dump(mode="json"),
        image=_image(statuses, before),
        episodes=sum(split.episodes for split in ordered.values()),
        steps=sum(split.steps for split in ordered.values()),
        records=sum(split.records for split in ordered.values()),
        left_out=_total(shard.left_out for shard in shards),
        quarantine=quarantine,
        splits=ordered,
        statistics={name: _statistics(conversion, name, split) for name, split in ordered.items()},
        versions={"pairstream": __version__, **{name: _version(name) for name in _LIBRARIES}},
    )


def _image(statuses: Sequence[ShardStatus], before: Manifest | None) -> dict[str, Any]:
    old: dict[str, Any] = before.image if before else {"sizes": {}, "passed": 0, "transcoded": 0}
    return {
        "encoding": "jpeg",
        "sizes": _total([old["sizes"], *(status.sizes for status in statuses)]),
        "passed": old["passed"] + sum(status.passed for status in statuses),
        "transcoded": old["transcoded"] + sum(status.transcoded for status in statuses),
    }


def _statistics(conversion: Conversion, name: str, split: SplitEntry) -> dict[Any, Statistics]:
    vectors = {"action": conversion.spec.action, "state": conversion.spec.state}
    columns = list(dict.fromkeys(part.path for parts in vectors.values() for part in parts))
    with _journal(conversion).step_files(name, split.shards, columns) as sidecars:
        return {key: vector_statistics(sidecars, parts) for key, parts in vectors.items() if parts}


def _total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


def _old_quarantine(journal: AnyJournal, kept: Set[str]) -> list[QuarantineEntry]:
    entries = [QuarantineEntry.model_validate_json(line) for line in journal.quarantine().splitlines()]
    return [entry for entry in entries if split_of(entry.shard) in kept]


def _write_quarantine(
    journal: AnyJournal, old: Sequence[QuarantineEntry], statuses: Sequence[ShardStatus]
) -> FileEntry | None:
    entries = [*old, *(entry for status in statuses for entry in status.quarantine)]
    entries.sort(key=lambda entry: (entry.shard, entry.episode, -1 if entry.step is None else entry.step))
    content = b"".join(entry.model_dump_json().encode() + b"\n" for entry in entries)
    journal.write_quarantine(content)
    return FileEntry(bytes=len(content), sha256=hashlib.sha256(content).hexdigest()) if entries else None


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
