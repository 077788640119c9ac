"""TFDS datasets: their locations, their shard files, and the records of a file as episodes."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from convert.errors import DamagedEpisode, DamagedRecord, SourceError
from convert.source.describe import describe_features
from convert.source.episode import Episode, episode_id
from convert.source.locations import candidates, refuse_layout
from convert.source.protocol import SPLIT, ReadRequest, Source, SourceEpisode, SourceShard, Span, covers, join_digests
from convert.source.rlds.metadata import MAX_BYTES, NAMES, flatten_features, read_metadata
from convert.source.rlds.parser import EpisodeParser
from convert.source.rlds.record_files import ArrayRecordFile, TFRecordFile
from convert.storage.object_store import StoreFolder, open_folder
from convert.storage.staging import stage, staging_base
from stream.base.errors import closest
from stream.storage.remote import LocalFolder, join

_FORMATS = ("tfrecord", "array_record")


@dataclass(frozen=True, kw_only=True)
class RldsShard(SourceShard):
    """One file of records; ``format`` is TFDS's name of its format."""

    format: str

    @property
    def ids(self) -> tuple[str, ...]:
        """Id of each episode."""
        return tuple(episode_id(self.name, number) for number in range(self.records or 0))

    @contextlib.contextmanager
    def open(self, request: ReadRequest, spans: Sequence[Span]) -> Iterator[RldsReader]:
        """Open the file to read it from its start."""
        folder, local_path = open_folder(self.path.rpartition("/")[0]), Path(self.path)
        record_file: TFRecordFile | ArrayRecordFile
        with contextlib.ExitStack() as stack:
            if self.format == "array_record":
                if isinstance(folder, StoreFolder):
                    local_path = stack.enter_context(stage(staging_base(request.staging))) / self.name
                    folder.download(self.name, local_path, num_bytes=self.bytes)
                record_file = ArrayRecordFile(local_path, name=self.name)
            else:
                if isinstance(folder, StoreFolder):
                    stream = folder.open(self.name, num_bytes=self.bytes)
                else:
                    stream = local_path.open("rb")
                record_file = TFRecordFile(stack.enter_context(stream), name=self.name, size=self.bytes)
            yield RldsReader(self, record_file, EpisodeParser(request.cameras, request.features), spans)

    def differs(self, request: ReadRequest, spans: Sequence[Span], *, digest: str, left_out: Mapping[str, int]) -> bool:
        """Return whether the file has changed."""
        with self.open(request, spans) as reader:
            damage_counts = Counter(item.reason for _, item in reader.records() if isinstance(item, DamagedEpisode))
        # The digest covers the stored checksums only, which a flipped bit in the data does not change.
        same_damage = all(left_out.get(reason, 0) == damage_counts[reason] for reason in ("undeclared", "unreadable"))
        return not same_damage or join_digests([reader.digests]) != digest


@dataclass(frozen=True)
class RldsReader:
    """A reader of the episodes of an open file; the digest of TFRecord covers the stored lengths and checksums."""

    shard: RldsShard
    file: TFRecordFile | ArrayRecordFile
    parser: EpisodeParser
    spans: Sequence[Span]

    @property
    def digests(self) -> dict[str, str]:
        """Digest of the file in hex by name."""
        return {self.shard.name: self.file.digest}

    def __iter__(self) -> Iterator[SourceEpisode]:
        for position, item in self.records():
            content: Episode | DamagedEpisode
            try:
                content = self.parser.parse(item) if isinstance(item, bytes) else item
            except DamagedEpisode as error:
                content = error
            yield SourceEpisode(self.shard.name, position, len(item) if isinstance(item, bytes) else 0, content)

    def records(self) -> Iterator[tuple[int, bytes | DamagedEpisode]]:
        """Yield the number and content of every requested record; data after the declared records is one damage."""
        num_declared = self.shard.every[1]
        end_position = max(stop for _, stop in self.spans)
        damage_message = None
        position = 0
        for item in self.file.read(lambda number: covers(self.spans, number) or number >= num_declared):
            if position >= num_declared:
                message = f"the file continues after its {num_declared} declared records"
                yield position, DamagedEpisode(message, reason="undeclared")
                break
            if isinstance(item, DamagedRecord) and item.rest:
                damage_message = str(item)
                break
            if item is not None and covers(self.spans, position):
                yield position, item if isinstance(item, bytes) else DamagedEpisode(str(item), reason="unreadable")
            position += 1
            if position >= end_position < num_declared:
                break
        default_message = f"{self.shard.name}: ends after {position} of its {num_declared} declared records"
        for missing_position in range(position, end_position):
            if covers(self.spans, missing_position):
                yield missing_position, DamagedEpisode(damage_message or default_message, reason="unreadable")


@dataclass(frozen=True, kw_only=True)
class RldsSource(Source):
    """A TFDS dataset in ``<root>/<tfds_name>/<version>``; ``format`` is TFDS's name of the format of its files."""

    format: str
    _info: Any = field(repr=False, compare=False)

    def shards(self, split: str) -> tuple[RldsShard, ...]:
        """Return the shard files of a split, in order; raises SourceError that counts and names missing files."""
        try:
            # Only the names count: metadata from elsewhere may name files outside of the folder.
            file_names = [Path(file_path).name for file_path in self._info.splits[split].filepaths]
        except Exception as error:
            raise SourceError(f"{self.path}: dataset_info.json gives split {split} no files ({error})") from None
        size_by_file = open_folder(self.path).sizes()
        if missing_files := [file_name for file_name in file_names if file_name not in size_by_file]:
            listed = f"{', '.join(missing_files[:3])}{', ...' if len(missing_files) > 3 else ''}"
            fault = f"{len(missing_files)} of {len(file_names)} files of split {split} are missing: {listed}"
            raise SourceError(f"{self.path}: {fault}; copy them, or leave the split out with --episodes")
        return tuple(
            RldsShard(
                split=split,
                index=number,
                count=len(file_names),
                path=join(self.path, name),
                name=name,
                records=self.splits[split][number],
                bytes=size_by_file[name],
                format=self.format,
            )
            for number, name in enumerate(file_names)
        )


def find(location: str, roots: Sequence[str], layout: Mapping[str, Any]) -> RldsSource:
    """Find a dataset by its path or its name below a root, with the version or without it for the newest.

    Raises:
        SourceError: There is no such dataset, or it is not a complete TFDS folder.
        stream.storage.remote.RemoteError: A bucket cannot be read.
    """
    refuse_layout("rlds", layout)
    candidate_paths = candidates(location, roots)
    for path in candidate_paths:
        folder = open_folder(path)
        versions = [""] if folder.size(NAMES[0]) is not None else sorted(_versions(folder), key=_version_key)[-1:]
        if versions:
            root, name, version = join(path, *filter(None, versions)).rsplit("/", 2)
            source = find_dataset([root], name, version)
            entry = describe_features(source.features, dataset_name=name, splits=source.splits, lengths=())
            entry |= {"version": version, "description": f"RLDS dataset {name} {version}."}
            return replace(source, entry=entry)
    tried_text = ", ".join(candidate_paths) or "nothing, as there is no --source"
    raise SourceError(f"rlds:{location}: no {NAMES[0]}, nor a version with it; tried {tried_text}")


def _version_key(version: str) -> list[int]:
    return [int(number_text) for number_text in version.split(".") if number_text.isdecimal()]


def find_dataset(roots: Sequence[str], tfds_name: str, version: str) -> RldsSource:
    """Find the folder ``<tfds_name>/<version>`` below one of several roots, local, ``gs://`` or ``s3://``.

    The first root that has it wins. ``tfds_name`` may have a configuration, ``NAME/CONFIGURATION``.

    Raises:
        SourceError: No root has the dataset (says which versions there are), or it is not a complete TFDS folder.
        stream.storage.remote.RemoteError: A bucket cannot be read.
    """
    for root in roots:
        folder = open_folder(root) / tfds_name / version
        if folder.size(NAMES[0]) is None:
            continue
        if folder.size(NAMES[1]) is None:
            raise SourceError(f"{folder}: has {NAMES[0]} but no {NAMES[1]}, so it cannot be read; copy it again")
        if isinstance(folder, LocalFolder):
            return _open(folder.path, path=str(folder))
        # TFDS itself would need TensorFlow to read a bucket.
        small_files = [name for name, num_bytes in folder.sizes().items() if num_bytes <= MAX_BYTES]
        metadata_files = [name for name in small_files if name.endswith((".json", ".txt"))]
        with stage(staging_base(None)) as metadata_copy:
            for name, content in folder.read_some(metadata_files).items():
                (metadata_copy / name).write_bytes(content)
            return _open(metadata_copy, path=str(folder))
    raise SourceError(_not_found(roots, tfds_name, version))


def _open(folder: Path, *, path: str) -> RldsSource:
    """Open a dataset by its metadata in a local folder; ``path`` is the location of the dataset itself."""
    # Only here: workers, which open shards, start in half the time without TFDS.
    import tensorflow_datasets as tfds

    metadata_contents = read_metadata(folder)
    try:
        builder_info = tfds.builder_from_directory(folder).info
        features = flatten_features(builder_info.features, context=path)
        file_format = "tfrecord" if builder_info.file_format is None else str(builder_info.file_format.value)
        splits = {split_name: tuple(split.shard_lengths) for split_name, split in sorted(builder_info.splits.items())}
    except SourceError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        raise SourceError(f"{path}: TFDS cannot read its metadata ({reason}); copy it again") from error
    if file_format not in _FORMATS:
        raise SourceError(f"{path}: its files are {file_format}, only {' and '.join(_FORMATS)} can be converted")
    for split_name, shard_lengths in splits.items():
        if not SPLIT.fullmatch(split_name) or min(shard_lengths, default=0) < 0:
            rule = "splits become folders, so their names have letters, digits and ._+-, and their shards 0 or more"
            fault = f"has a split {split_name!r:.100} of {sum(shard_lengths)} episodes"
            raise SourceError(f"{path}: {NAMES[0]} {fault}; {rule} episodes")
    fingerprint = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in metadata_contents))
    return RldsSource(
        path=path,
        fingerprint=fingerprint.hexdigest(),
        metadata=NAMES,
        features=features,
        splits=splits,
        format=file_format,
        _info=builder_info,
    )


def _versions(folder: LocalFolder | StoreFolder) -> list[str]:
    return [version for version in folder.folders() if (folder / version).size(NAMES[0])]


def _not_found(roots: Sequence[str], tfds_name: str, version: str) -> str:
    folder_names: set[str] = set()
    for root in roots:
        folder = open_folder(root)
        subfolders, dataset_folder = folder.folders(), folder / tfds_name
        if not subfolders and not (isinstance(folder, LocalFolder) and folder.path.exists()):
            return f"no such source: {root} (looked for {tfds_name}/{version} below it)"
        if versions := _versions(dataset_folder):
            advice = "give the right version with --config (datasets: {NAME: {version: ...}})"
            return f"{dataset_folder} has version {', '.join(versions)}, not {version}; {advice}"
        if names := [name for name in dataset_folder.folders() if _versions(dataset_folder / name)]:
            advice = f"name one with --config (datasets: {{NAME: {{tfds_name: {tfds_name}/{names[0]}}}}})"
            return f"{dataset_folder} has the configurations {', '.join(names)}; {advice}"
        folder_names.update(subfolders)
    tried_text = ", ".join(join(root, tfds_name, version) for root in roots)
    suggestion = f"; {closest(tfds_name, folder_names, noun='folders')}" if folder_names else ""
    return f"dataset {tfds_name} {version} is in none of the sources: tried {tried_text}{suggestion}"
