"""TFDS datasets: where they are, their shard files, and the records of a file as episodes."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from convert.errors import DamagedEpisode, DamagedRecord, SourceError
from convert.source.describe import describe_features
from convert.source.episode import Episode, episode_id
from convert.source.places import candidates, refuse_layout
from convert.source.protocol import SPLIT, ReadRequest, Source, SourceEpisode, SourceShard, Span, covers, join_digests
from convert.source.rlds.array_record import ArrayRecordFile
from convert.source.rlds.features import flatten_features
from convert.source.rlds.metadata import MAX_BYTES, NAMES, read_metadata
from convert.source.rlds.parser import EpisodeParser
from convert.source.rlds.tfrecord import TFRecordFile
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
    def open(self, wanted: ReadRequest, spans: Sequence[Span]) -> Iterator[RldsReader]:
        """Open the file to read it from its start."""
        folder, path = open_folder(self.path.rpartition("/")[0]), Path(self.path)
        records: TFRecordFile | ArrayRecordFile
        with contextlib.ExitStack() as stack:
            if self.format == "array_record":
                if isinstance(folder, StoreFolder):
                    path = stack.enter_context(stage(staging_base(wanted.staging))) / self.name
                    folder.download(self.name, path, num_bytes=self.bytes)
                records = ArrayRecordFile(path, name=self.name)
            else:
                opened = (
                    path.open("rb") if isinstance(folder, LocalFolder) else folder.open(self.name, num_bytes=self.bytes)
                )
                records = TFRecordFile(stack.enter_context(opened), name=self.name, size=self.bytes)
            yield RldsReader(self, records, EpisodeParser(wanted.cameras, wanted.features), spans)

    def differs(self, wanted: ReadRequest, spans: Sequence[Span], *, digest: str, left_out: Mapping[str, int]) -> bool:
        """Return whether the file has changed."""
        with self.open(wanted, spans) as reader:
            unread = Counter(item.reason for _, item in reader.records() if isinstance(item, DamagedEpisode))
        # The digest covers the stored checksums only, which a flipped bit in the data does not change.
        same = all(left_out.get(reason, 0) == unread[reason] for reason in ("undeclared", "unreadable"))
        return not same or join_digests([reader.digests]) != digest


@dataclass(frozen=True)
class RldsReader:
    """A reader of the episodes of an open file."""

    shard: RldsShard
    file: TFRecordFile | ArrayRecordFile
    parser: EpisodeParser
    spans: Sequence[Span]

    @property
    def digests(self) -> dict[str, str]:
        """Digest of the file in hex by name: of a TFRecord over the lengths and checksums that it stores."""
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
        """Yield the number and content of every wanted record; data after the declared records come as one damage."""
        name, declared = self.shard.name, self.shard.every[1]
        last = max(stop for _, stop in self.spans)
        damage = None
        position = 0
        for item in self.file.read(lambda number: covers(self.spans, number) or number >= declared):
            if position >= declared:
                detail = f"the file goes on after its {declared} declared records"
                yield position, DamagedEpisode(detail, reason="undeclared")
                break
            if isinstance(item, DamagedRecord) and item.rest:
                damage = str(item)
                break
            if item is not None and covers(self.spans, position):
                yield position, item if isinstance(item, bytes) else DamagedEpisode(str(item), reason="unreadable")
            position += 1
            if position >= last < declared:
                break
        damage = damage or f"{name}: ends after {position} of its {declared} declared records"
        for missing in range(position, last):
            if covers(self.spans, missing):
                yield missing, DamagedEpisode(damage, reason="unreadable")


@dataclass(frozen=True, kw_only=True)
class RldsSource(Source):
    """A TFDS dataset in ``<root>/<tfds_name>/<version>``; ``format`` is TFDS's name of the format of its files."""

    format: str
    _info: Any = field(repr=False, compare=False)

    def shards(self, split: str) -> tuple[RldsShard, ...]:
        """Return the shard files of a split, in order.

        Raises:
            SourceError: Files are missing; says how many and which.
        """
        try:
            # Only the names count: metadata from elsewhere may name files outside of the folder.
            names = [Path(path).name for path in self._info.splits[split].filepaths]
        except Exception as error:
            raise SourceError(f"{self.path}: dataset_info.json gives split {split} no files ({error})") from None
        sizes = open_folder(self.path).sizes()
        if missing := [name for name in names if name not in sizes]:
            raise SourceError(
                f"{self.path}: {len(missing)} of {len(names)} files of split {split} are missing: "
                f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}; copy them, or leave the split out "
                "with --splits"
            )
        return tuple(
            RldsShard(
                split=split,
                index=index,
                count=len(names),
                path=join(self.path, name),
                name=name,
                records=self.splits[split][index],
                bytes=sizes[name],
                format=self.format,
            )
            for index, name in enumerate(names)
        )


def find(place: str, roots: Sequence[str], layout: Mapping[str, Any]) -> RldsSource:
    """Find a dataset by the path of its folder, or by its name below one of several roots; it describes itself.

    Args:
        place: A path or ``NAME`` below a root, with the version or without it for the newest.
        roots: Folders, local, ``gs://`` or ``s3://``.
        layout: Empty, as the files are as TFDS writes them.

    Raises:
        SourceError: There is no such dataset, or it is not a complete TFDS folder.
        stream.storage.remote.RemoteError: A bucket cannot be read.
    """
    refuse_layout("rlds", layout)
    tried = candidates(place, roots)
    for path in tried:
        folder = open_folder(path)
        versions = [""] if folder.size(NAMES[0]) is not None else sorted(_versions(folder), key=_version_key)[-1:]
        if versions:
            root, name, version = join(path, *filter(None, versions)).rsplit("/", 2)
            source = find_dataset([root], name, version)
            facts = {"version": version, "description": f"RLDS dataset {name} {version}."}
            entry = describe_features(source.features, name=name, splits=source.splits, lengths=()) | facts
            return replace(source, entry=entry)
    where = ", ".join(tried) or "nothing, as there is no --source"
    raise SourceError(f"rlds:{place}: no {NAMES[0]}, nor a version with it; tried {where}")


def _version_key(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdecimal()]


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
        # TFDS itself would take TensorFlow to read a bucket.
        small = [
            name for name, size in folder.sizes().items() if name.endswith((".json", ".txt")) and size <= MAX_BYTES
        ]
        with stage(staging_base(None)) as copy:
            for name, content in folder.read_some(small).items():
                (copy / name).write_bytes(content)
            return _open(copy, path=str(folder))
    raise SourceError(_not_found(roots, tfds_name, version))


def _open(folder: Path, *, path: str) -> RldsSource:
    """Open a dataset by its metadata in a local folder; ``path`` is the location of the dataset itself."""
    contents = read_metadata(folder)
    try:
        info = tfds.builder_from_directory(folder).info
        features = flatten_features(info.features, where=path)
        kind = "tfrecord" if info.file_format is None else str(info.file_format.value)
        splits = {name: tuple(split.shard_lengths) for name, split in sorted(info.splits.items())}
    except SourceError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        raise SourceError(f"{path}: TFDS cannot read its metadata ({reason}); copy it again") from error
    if kind not in _FORMATS:
        raise SourceError(f"{path}: its files are {kind}, only {' and '.join(_FORMATS)} can be converted")
    for name, lengths in splits.items():
        if not SPLIT.fullmatch(name) or min(lengths, default=0) < 0:
            raise SourceError(
                f"{path}: {NAMES[0]} has a split {name!r:.100} of {sum(lengths)} episodes; splits become folders, so "
                "their names have letters, digits and ._+-, and their shards 0 or more episodes"
            )
    digest = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents))
    return RldsSource(
        path=path,
        fingerprint=digest.hexdigest(),
        metadata=NAMES,
        features=features,
        splits=splits,
        format=kind,
        _info=info,
    )


def _versions(folder: LocalFolder | StoreFolder) -> list[str]:
    return [name for name in folder.folders() if (folder / name).size(NAMES[0])]


def _not_found(roots: Sequence[str], tfds_name: str, version: str) -> str:
    present: set[str] = set()
    for root in roots:
        folder = open_folder(root)
        names = folder.folders()
        if not names and not (isinstance(folder, LocalFolder) and folder.path.exists()):
            return f"no such source: {root} (looked for {tfds_name}/{version} below it)"
        versions = _versions(folder / tfds_name)
        if versions:
            return (
                f"{folder / tfds_name} has version {', '.join(versions)}, not {version}; give the right version with "
                "--config (datasets: {NAME: {version: ...}})"
            )
        configs = [name for name in (folder / tfds_name).folders() if _versions(folder / tfds_name / name)]
        if configs:
            return (
                f"{folder / tfds_name} has the configurations {', '.join(configs)}; name one with --config "
                f"(datasets: {{NAME: {{tfds_name: {tfds_name}/{configs[0]}}}}})"
            )
        present.update(names)
    tried = ", ".join(join(root, tfds_name, version) for root in roots)
    hint = f"; {closest(tfds_name, present, noun='folders')}" if present else ""
    return f"dataset {tfds_name} {version} is in none of the sources: tried {tried}{hint}"
