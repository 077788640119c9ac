"""The end of a conversion: writes ``dataset.json``, the manifest, from the status files of its merged splits."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Set

from convert.engine.versions import library_versions
from convert.errors import ConvertError
from convert.journal.journal import MANIFEST, Journal
from convert.plan import Conversion
from convert.run.status import ConversionStatus, existing_manifest, read_status
from convert.shard.counts import count_frames, total_counts
from convert.shard.video import check_sizes
from convert.storage.durable import writing
from stream.format.manifest import FileEntry, Manifest, Source, SplitEntry, TableEntry
from stream.format.names import FORMAT_VERSION, TableKind, split_of
from stream.format.video import VIDEO_CODECS


def finalise(conversion: Conversion, *, redone_stems: Set[str] = frozenset()) -> Manifest | None:
    """Write the manifest if every split of the conversion is merged, and remove the journal.

    Splits that an earlier manifest has are kept. Any number of processes may call this at the same time.
    ``redone_stems`` are the stems of the shards that this process converts again. Returns the manifest; None while
    shards or splits are missing.
    """
    journal = conversion.journal
    if complete_manifest := _complete(conversion):
        return complete_manifest
    try:
        with journal.lock(MANIFEST, wait=True), journal.alone():
            # Without locks another process may finish, and remove the journal, while this one reads it.
            return _complete(conversion) or _finalise(conversion, redone_stems=redone_stems) or _complete(conversion)
    except ConvertError:
        # Another process may have finished in between, and removed the journal with the lock.
        if complete_manifest := _complete(conversion):
            return complete_manifest
        raise


def _complete(conversion: Conversion) -> Manifest | None:
    manifest = existing_manifest(conversion)
    is_covered = manifest is not None and set(conversion.splits) <= set(manifest.splits)
    return manifest if is_covered and not conversion.journal.exists() else None


def _finalise(conversion: Conversion, *, redone_stems: Set[str]) -> Manifest | None:
    journal = conversion.journal
    status = read_status(conversion, redone_stems=redone_stems)
    if status.pending_jobs or status.pending_merges:
        return None
    with writing(journal.scratch):
        if status.old_manifest is not None and status.complete:
            manifest = status.old_manifest
        else:
            manifest = _manifest(status, _write_quarantine(journal, status))
            journal.write_manifest(manifest)
        # Another process may be at another split.
        journal.clear({job.stem for job in conversion.jobs}, conversion.splits)
    return manifest


def _manifest(conversion_status: ConversionStatus, quarantine: FileEntry | None) -> Manifest:
    conversion = conversion_status.conversion
    spec, plan = conversion.spec, conversion.plan
    old = conversion_status.old_manifest
    splits: dict[str, SplitEntry] = dict(old.splits) if old else {}
    statistics = dict(old.statistics) if old else {}
    for split, index_status in conversion_status.merged_indexes.items():
        entries = tuple(status.entry for status in conversion_status.shards(split))
        splits[split] = SplitEntry(
            episodes=sum(entry.episodes for entry in entries),
            steps=sum(entry.steps for entry in entries),
            records=sum(entry.records for entry in entries),
            shards=entries,
            index=index_status.index,
            labels=_labels(old, split, index_status.index),
            instruction=index_status.instruction,
        )
        statistics[split] = index_status.statistics
    ordered_splits = {split: splits[split] for split in sorted(splits)}
    shards = [entry for split_entry in ordered_splits.values() for entry in split_entry.shards]
    image_counts = count_frames(shards, [camera.name for camera in plan.cameras] if plan.layout == "frames" else ())
    policies = {camera.name: camera.policy for camera in plan.cameras}
    video_libraries = ["av"] if any(policy.codec in VIDEO_CODECS for policy in policies.values()) else []
    check_sizes(image_counts.get("cameras", {}), policies, dataset_name=spec.name)
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
        image=image_counts,
        episodes=sum(split_entry.episodes for split_entry in ordered_splits.values()),
        steps=sum(split_entry.steps for split_entry in ordered_splits.values()),
        records=sum(split_entry.records for split_entry in ordered_splits.values()),
        left_out=total_counts(entry.left_out for entry in shards),
        quarantine=quarantine,
        splits=ordered_splits,
        statistics={split: statistics[split] for split in ordered_splits},
        versions=library_versions((*conversion.source.libraries, *video_libraries)),
    )


def _labels(before: Manifest | None, split: str, new_tables: Mapping[TableKind, TableEntry]) -> dict[str, TableEntry]:
    """Return the labels of a split, which stay if its episodes are those of before."""
    old_split = before.splits.get(split) if before else None
    if old_split is None:
        return {}
    old_columns, new_columns = old_split.index["episodes"].columns, new_tables["episodes"].columns
    are_same = all(old_columns[column] == new_columns[column] for column in ("episode_id", "num_steps"))
    return old_split.labels if are_same else {}


def _write_quarantine(journal: Journal, conversion_status: ConversionStatus) -> FileEntry | None:
    merged, old = conversion_status.merged_indexes, conversion_status.old_manifest
    kept_splits = (old.splits.keys() if old else set()) - merged.keys()
    old_entries = journal.quarantine()
    entries = [entry for stem in old_entries if split_of(stem) in kept_splits for entry in old_entries[stem]]
    for status in itertools.chain(*map(conversion_status.shards, merged)):
        entries += status.quarantine
    entries.sort(
        key=lambda entry: (entry.shard, entry.source_file, entry.episode, -1 if entry.step is None else entry.step)
    )
    content = b"".join(entry.model_dump_json().encode() + b"\n" for entry in entries)
    journal.write_quarantine(content)
    return FileEntry(bytes=len(content), sha256=hashlib.sha256(content).hexdigest()) if entries else None
