"""Copies of datasets: the index of each needed split, and all, some or none of the ArrayRecord files.

A copy can be stopped at any time: a file gets its name when it is complete and checked, then ``fetched.json`` lists its
shard, and the manifest is written last. Copying again continues, or adds files.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from stream.base.errors import ArgumentError, FormatError
from stream.base.progress import human_bytes
from stream.cache.download import Download, FetchError, download
from stream.format.catalog import Catalog, Dataset
from stream.format.index import label_path
from stream.format.manifest import (
    PARTIAL,
    Fetched,
    FileEntry,
    Manifest,
    SplitEntry,
    TableEntry,
    describe_file,
    encode_manifest,
    parse_manifest,
    read_fetched,
    read_manifest,
    write_fetched,
)
from stream.format.names import (
    FETCHED_NAME,
    LABELS,
    MANIFEST_NAME,
    QUARANTINE_NAME,
    label_file,
    shard_file,
    table_file,
    waiting_label,
)
from stream.label.commit import settle_labels
from stream.storage.files import lock_folder, make_folder, write_atomically
from stream.storage.hub import SCHEME, pin_commit
from stream.storage.hub_folder import HubFolder
from stream.storage.remote import LocalFolder, checked_url, is_remote
from stream.storage.remote_folder import Folder, RemoteFolder

_MOST_COMPARED = 16 << 20
"""Bytes of the largest table that is compared with its hash whenever a cache is opened."""


class RemoteCatalog(Catalog):
    """Datasets of a root to copy from, with the bytes of each manifest in ``contents``."""

    def __init__(self, root: str) -> None:
        self._source = _open_source(root)
        self.root = Path(str(self._source))
        self._open: dict[str, Dataset] = {}
        self.contents: dict[Path, bytes] = {}

    def copy(
        self, needed: Iterable[tuple[Dataset, Collection[str]]], local: Path, *, jobs: int, whole_index: bool = False
    ) -> tuple[list[DatasetCopy], list[Download]]:
        """Copy files to a local root, one process of a machine at a time; return the copies and their files.

        Args:
            needed: Datasets of this catalog, and the names of the shards to copy.
            whole_index: Whether to copy the index of all splits, not only of splits with these shards.

        Raises:
            ArgumentError: The folder cannot be made, or holds a different conversion.
            FetchError: A file differs from its manifest, or the disk is too small.
            RemoteError: The source cannot be read.
            OSError: The folder cannot be written.
        """
        source = str(self._source)
        try:
            make_folder(local)
        except OSError as error:
            raise ArgumentError(f"{local}: cannot be created: {error.strerror}; choose another folder") from None
        with lock_folder(local, doing="fetches into"), ExitStack() as stack:
            copies = [_plan_copy(*pair, self._source, local, whole_index=whole_index) for pair in needed]
            files = [file for copy in copies for file in copy.files]
            total_bytes = sum(file.entry.bytes for file in files)
            free_bytes = shutil.disk_usage(local).free
            if total_bytes > free_bytes:
                sizes = f"{human_bytes(total_bytes)} are to be fetched and {human_bytes(free_bytes)} are free"
                raise FetchError(f"{local}: {sizes}; free some space, or fetch a smaller split")
            incomplete = [copy for copy in copies if not copy.done]
            for copy in incomplete:
                # fetched.json names the conversion before the first file is copied.
                make_folder(copy.target)
                stack.enter_context(lock_folder(copy.target, doing="changes"))
                copy.write_fetched(source, copy.fetched)
            download(files, jobs=jobs)
            for copy in incomplete:
                _finish(copy, source, self.contents[copy.dataset.folder])
        return copies, files

    def check_converted(self, *folders: str) -> None:
        """Raise ArgumentError if the root, or some folders of a dataset, hold no complete conversion."""
        if folders or not self.complete:
            remedy = f"expected <dataset>/<version>/{MANIFEST_NAME} below the root"
            raise ArgumentError(f"{self._source}: holds no complete conversion{' of it' if folders else ''}; {remedy}")

    def _read(self, name: str, version: str) -> Dataset:
        folder = self._source / name / version
        if folder.size(FETCHED_NAME) is not None:
            raise FetchError(f"{folder}: was itself fetched in part; give its source")
        content = folder.read(MANIFEST_NAME)
        manifest = parse_manifest(content, context=f"{folder}/{MANIFEST_NAME}")
        dataset = Dataset.of(name, version, self.root / name / version, manifest)
        self.contents[dataset.folder] = content
        # The catalog drops the shards of a manifest; fetching needs them.
        return replace(dataset, manifest=manifest)


@dataclass(frozen=True, kw_only=True)
class DatasetCopy:
    """Copy of one dataset, and the files to fetch for it.

    Attributes:
        dataset: Dataset of the source, with its complete manifest.
        names: Names of all shards of the dataset, in order; ``needed`` are those of the mixture, and ``fetched`` those
            that were fetched before.
        mirrors: Whether the target has only the labels of the source, as in a cache.
        done: Whether the target is complete.
    """

    dataset: Dataset
    folder: Folder
    target: Path
    names: tuple[str, ...]
    needed: frozenset[str]
    fetched: frozenset[str]
    files: tuple[Download, ...]
    mirrors: bool
    done: bool

    def write_fetched(self, source: str, shard_names: frozenset[str]) -> None:
        """Write ``fetched.json`` with some shard names."""
        shards = tuple(shard_name for shard_name in self.names if shard_name in shard_names)
        write_fetched(self.target, Fetched(source=source, data=self.dataset.manifest.data, shards=shards))


def _open_source(root: str) -> Folder:
    if is_remote(root):
        url = pin_commit(checked_url(root))
        remote = HubFolder(url) if url.startswith(SCHEME) else RemoteFolder(url)
        remote.check()
        return remote
    if not Path(root).is_dir():
        raise ArgumentError(
            f"{root}: no such folder; expected a converted root: a folder, s3://, gs://, https:// or hf://"
        )
    return LocalFolder(Path(root))


def _plan_copy(
    dataset: Dataset, shards_needed: Collection[str], source: Folder, local: Path, *, whole_index: bool
) -> DatasetCopy:
    """Return the files to fetch for a dataset, and remove partial files of a fetch that was killed."""
    folder, target = source / dataset.name / dataset.version, local / dataset.name / dataset.version
    manifest, needed = dataset.manifest, frozenset(shards_needed)
    shard_names = tuple(shard.name for entry in manifest.splits.values() for shard in entry.shards)
    fetched_file = read_fetched(target)
    try:
        old_manifest = read_manifest(target) if (target / MANIFEST_NAME).exists() else None
    except FormatError as error:
        raise ArgumentError(f"{str(error).partition(';')[0]}; remove {target}, or choose another folder") from None
    conversion = old_manifest or fetched_file
    reindexed = conversion is not None and conversion.data != manifest.data
    if reindexed and (old_manifest is None or _conversion(old_manifest) != _conversion(manifest)):
        raise ArgumentError(f"{target}: holds another conversion than {folder}; remove it, or choose another folder")
    for partial_file in target.rglob(f".*{PARTIAL}"):
        partial_file.unlink(missing_ok=True)
    # Without fetched.json a target with a manifest is complete.
    fetched = frozenset(fetched_file.shards if fetched_file else shard_names if old_manifest else ())
    mirrors, has_all_labels = whole_index and not fetched, True
    # A cache is opened often, while training runs: its large tables are compared by their size.
    max_compared = _MOST_COMPARED if whole_index else None
    files: list[Download] = []
    for split, entry in manifest.splits.items():
        old_labels = _labels_of(old_manifest, split)
        split_folder, split_target = folder / split, target / split
        # The index of a split without shards is always fetched.
        copied_shards = [shard for shard in entry.shards if shard.name in needed | fetched]
        needs_index = bool(whole_index or copied_shards or not entry.shards)
        tables = {table_file(kind): table for kind, table in entry.index.items() if needs_index}
        shards = {shard_file(shard.name): shard.file for shard in entry.shards if shard.name in needed}
        files += _missing_files(split_folder, split_target, tables, reindexed=reindexed, max_compared=max_compared)
        files += _missing_files(split_folder, split_target, shards, reindexed=False, max_compared=0)
        if needs_index:
            files += _missing_labels(split_folder, split_target, entry.labels, old_labels, max_compared=max_compared)
        if mirrors:
            has_all_labels = has_all_labels and old_labels == dict(entry.labels)
        else:
            has_all_labels = has_all_labels and old_labels.items() >= entry.labels.items()
            _check_columns(target, split, old_labels, entry)
    is_unfinished = fetched_file is not None and len(fetched) == len(shard_names)
    is_current = old_manifest is not None and has_all_labels and not (is_unfinished or reindexed)
    return DatasetCopy(
        dataset=dataset,
        folder=folder,
        target=target,
        names=shard_names,
        needed=needed,
        fetched=fetched,
        files=tuple(files),
        mirrors=mirrors,
        done=is_current and not files and needed <= fetched,
    )


def _labels_of(manifest: Manifest | None, split: str) -> dict[str, TableEntry]:
    """Return the labels of a split in a manifest; none if it lacks the split."""
    return dict(manifest.splits[split].labels) if manifest and split in manifest.splits else {}


def _missing_files(
    folder: Folder, target: Path, entries: Mapping[str, FileEntry], *, reindexed: bool, max_compared: int | None
) -> Iterator[Download]:
    """Yield the files of a split, by name, that the target lacks; all if they were made again."""
    for file_name, entry in entries.items():
        path = target / file_name
        if reindexed or not _is_intact(path, entry, max_compared=max_compared):
            damaged = path if path.exists() and not reindexed else None
            yield Download(folder=folder, target=path, entry=entry, damaged=damaged)


def _missing_labels(
    folder: Folder,
    target: Path,
    labels: Mapping[str, TableEntry],
    old_labels: Mapping[str, TableEntry],
    *,
    max_compared: int | None,
) -> Iterator[Download]:
    """Yield the files of a split's labels that the target lacks; they are copied under their waiting names."""
    for labels_name, entry in labels.items():
        path, is_unchanged = label_path(target, labels_name, entry), old_labels.get(labels_name) == entry
        if not is_unchanged or not _is_intact(path, entry, max_compared=max_compared):
            waiting_name = waiting_label(labels_name, entry.sha256)
            is_waiting = (folder / LABELS).size(waiting_name) is not None
            yield Download(
                folder=folder / LABELS,
                target=target / LABELS / waiting_name,
                entry=entry,
                source=waiting_name if is_waiting else label_file(labels_name),
                damaged=path if path.exists() and is_unchanged else None,
            )


def _is_intact(path: Path, entry: FileEntry, *, max_compared: int | None) -> bool:
    """Return whether a file has the size of its entry, and its hash if it has at most ``max_compared`` bytes."""
    if not path.is_file() or path.stat().st_size != entry.bytes:
        return False
    return (max_compared is not None and entry.bytes > max_compared) or describe_file(path).sha256 == entry.sha256


def _conversion(manifest: Manifest) -> tuple[object, ...]:
    """Return the parts of a manifest that are the same if its dataset was only indexed again."""
    shards = {split: entry.shards for split, entry in manifest.splits.items()}
    return shards, manifest.source, manifest.parameters


def _check_columns(target: Path, split: str, labels: Mapping[str, TableEntry], entry: SplitEntry) -> None:
    """Raise ArgumentError if labels that were attached to the copy have a column of the source's labels."""
    source_names = {column: labels_name for labels_name, table in entry.labels.items() for column in table.columns}
    for labels_name, table in labels.items():
        for column in table.columns:
            if labels_name not in entry.labels and column in source_names:
                problem = f"labels {labels_name} here and labels {source_names[column]} of the source both have the"
                remedy = f"remove those here with `pairstream label ROOT DATASET --remove {labels_name}`"
                raise ArgumentError(f"{target / split}: {problem} column {column!r}; {remedy}")


def _with_local_labels(target: Path, content: bytes) -> bytes:
    """Return the content of a manifest with the labels that were attached only to the copy."""
    if not (target / MANIFEST_NAME).exists():
        return content
    old_manifest, manifest = read_manifest(target), parse_manifest(content, context=str(target))
    labels = {split: {**_labels_of(old_manifest, split), **entry.labels} for split, entry in manifest.splits.items()}
    has_more = any(len(labels[split]) > len(entry.labels) for split, entry in manifest.splits.items())
    return encode_manifest(manifest.with_labels(labels)) if has_more else content


def _finish(copy: DatasetCopy, source: str, content: bytes) -> None:
    """Write ``fetched.json``, the quarantine, and last the manifest, whose bytes are ``content``."""
    quarantine, fetched = copy.dataset.manifest.quarantine, copy.fetched | copy.needed
    copy.write_fetched(source, fetched)
    if quarantine is not None:
        quarantine_content = copy.folder.read(QUARANTINE_NAME)
        if hashlib.sha256(quarantine_content).hexdigest() != quarantine.sha256:
            raise FetchError(f"{copy.folder}/{QUARANTINE_NAME}: its SHA-256 is not that of its manifest")
        write_atomically(copy.target / QUARANTINE_NAME, quarantine_content, suffix=PARTIAL)
    if not copy.mirrors:
        content = _with_local_labels(copy.target, content)
    write_atomically(copy.target / MANIFEST_NAME, content, suffix=PARTIAL)
    settle_labels(copy.target, read_manifest(copy.target))
    if len(fetched) == len(copy.names):
        (copy.target / FETCHED_NAME).unlink()
