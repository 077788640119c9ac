"""The end of a conversion: writes ``dataset.json``, the manifest, from the status files of its merged splits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from importlib import metadata

from convert import __version__
from convert.errors import ConvertError
from convert.journal.journal import MANIFEST, Journal
from convert.journal.status import parse_quarantine
from convert.plan import Conversion
from convert.run.status import ConversionStatus, existing_manifest, survey
from convert.shard.counts import count_frames, total_counts
from convert.shard.video import check_sizes
from convert.storage.durable import writing
from stream.format.manifest import FileEntry, Manifest, Source, SplitEntry, TableEntry
from stream.format.names import FORMAT_VERSION, TableKind, split_of

_LIBRARIES = (
    "apache-beam",
    "array-record",
    "numpy",
    "opencv-python-headless",
    "pyarrow",
    "simplejpeg",
    "tensorflow-datasets",
)


def finalise(conversion: Conversion, *, again: Set[str] = frozenset()) -> Manifest | None:
    """Write the manifest if every split of the conversion is merged, and remove the journal.

    Splits that an earlier manifest has are kept. Any number of processes may call this at the same time. ``again`` are
    the stems of the shards that this process converts again.

    Returns:
        The manifest; None while shards or splits are missing.
    """
    journal = conversion.journal
    if done := _complete(conversion):
        return done
    try:
        with journal.lock(MANIFEST, wait=True), journal.alone():
            # Without locks another process may finish, and remove the journal, while this one reads it.
            return _complete(conversion) or _finalise(conversion, again=again) or _complete(conversion)
    except ConvertError:
        # Another process may have finished in between, and removed the journal with the lock.
        if done := _complete(conversion):
            return done
        raise


def _complete(conversion: Conversion) -> Manifest | None:
    manifest = existing_manifest(conversion)
    covered = manifest is not None and set(conversion.splits) <= set(manifest.splits)
    return manifest if covered and not conversion.journal.exists() else None


def _finalise(conversion: Conversion, *, again: Set[str]) -> Manifest | None:
    journal = conversion.journal
    found = survey(conversion, again=again)
    if found.todo or found.merges:
        return None
    with writing(journal.scratch):
        if found.before is not None and found.complete:
            manifest = found.before
        else:
            manifest = _manifest(found, _write_quarantine(journal, found))
            journal.write_manifest(manifest)
        # Another process may be at another split.
        journal.clear([job.stem for job in conversion.jobs], conversion.splits)
    return manifest


def _manifest(found: ConversionStatus, quarantine: FileEntry | None) -> Manifest:
    conversion = found.conversion
    spec, plan = conversion.spec, conversion.plan
    splits: dict[str, SplitEntry] = dict(found.before.splits) if found.before else {}
    statistics = dict(found.before.statistics) if found.before else {}
    for name, index in found.merged.items():
        entries = tuple(status.entry for status in found.shards(name))
        splits[name] = SplitEntry(
            episodes=sum(entry.episodes for entry in entries),
            steps=sum(entry.steps for entry in entries),
            records=sum(entry.records for entry in entries),
            shards=entries,
            index=index.index,
            labels=_labels(found.before, name, index.index),
            instruction=index.instruction,
        )
        statistics[name] = index.statistics
    ordered = {name: splits[name] for name in sorted(splits)}
    shards = [shard for split in ordered.values() for shard in split.shards]
    image = count_frames(shards, [camera.name for camera in plan.cameras] if plan.layout == "frames" else ())
    policies = {camera.name: camera.policy for camera in plan.cameras}
    check_sizes(image.get("cameras", {}), policies, dataset_name=spec.name)
    return Manifest(
        format_version=FORMAT_VERSION,
        layout=plan.layout,
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
        image=image,
        episodes=sum(split.episodes for split in ordered.values()),
        steps=sum(split.steps for split in ordered.values()),
        records=sum(split.records for split in ordered.values()),
        left_out=total_counts(shard.left_out for shard in shards),
        quarantine=quarantine,
        splits=ordered,
        statistics={name: statistics[name] for name in ordered},
        versions={
            "pairstream": __version__,
            **{name: _version(name) for name in (*_LIBRARIES, *conversion.libraries)},
        },
    )


def _labels(before: Manifest | None, split: str, index: Mapping[TableKind, TableEntry]) -> dict[str, TableEntry]:
    """Return the labels of a split, which stay if its episodes are those of before."""
    old = before.splits.get(split) if before else None
    names = ("episode_id", "num_steps")
    if old is None or any(old.index["episodes"].columns[name] != index["episodes"].columns[name] for name in names):
        return {}
    return old.labels


def _write_quarantine(journal: Journal, found: ConversionStatus) -> FileEntry | None:
    listed = parse_quarantine(journal.quarantine())
    kept = set(found.before.splits if found.before else ()) - set(found.merged)
    entries = [entry for stem, entries in listed.items() if split_of(stem) in kept for entry in entries]
    entries += [entry for split in found.merged for status in found.shards(split) for entry in status.quarantine]
    entries.sort(key=lambda each: (each.shard, each.source_file, each.episode, -1 if each.step is None else each.step))
    content = b"".join(entry.model_dump_json().encode() + b"\n" for entry in entries)
    journal.write_quarantine(content)
    return FileEntry(bytes=len(content), sha256=hashlib.sha256(content).hexdigest()) if entries else None


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
