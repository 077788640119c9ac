"""Copies of datasets: the index of each split that is needed, and all or some of the ArrayRecord files, or none.

It is safe to stop at any time: a file gets its name when it is complete and checked, then ``fetched.json`` lists its
shard, and the manifest comes last. Copying again continues, or adds files.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection, Iterable, Mapping
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
from stream.storage.files import alone, make_folder, write_whole
from stream.storage.remote import LocalFolder, checked_url, is_remote
from stream.storage.remote_folder import Folder, RemoteFolder

_MOST_COMPARED = 16 << 20
"""Bytes of the largest table of a cache that is compared with its hash whenever the cache is opened."""


class RemoteCatalog(Catalog):
    """Datasets of a root to copy from, with the bytes of each manifest in ``contents``."""

    def __init__(self, root: str) -> None:
        self._source = _open_source(root)
        self.root = Path(str(self._source))
        self._open: dict[str, Dataset] = {}
        self.contents: dict[Path, bytes] = {}

    def copy(
        self, needed: Iterable[tuple[Dataset, Collection[str]]], local: Path, *, jobs: int, whole_index: bool = False
    ) -> tuple[list[Order], list[Download]]:
        """Copy files to a local root, alone among the processes of this machine.

        Args:
            needed: Datasets of this catalog, and the names of the shards to copy.
            local: Folder of the copy.
            jobs: Number of files to copy at the same time.
            whole_index: Whether to copy the index of all splits, and not that of splits with such shards alone.

        Returns:
            Content of the copy, and the files that were copied.

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
        with alone(local, doing="fetches into"), ExitStack() as stack:
            orders = [
                _order(dataset, frozenset(names), self._source, local, whole_index=whole_index)
                for dataset, names in needed
            ]
            files = [file for order in orders for file in order.files]
            size = sum(file.entry.bytes for file in files)
            free = shutil.disk_usage(local).free
            if size > free:
                raise FetchError(
                    f"{local}: {human_bytes(size)} are to be fetched and {human_bytes(free)} are free; free "
                    "some space, or fetch a smaller split"
                )
            changing = [order for order in orders if not order.done]
            for order in changing:
                # fetched.json names the conversion before the first file is copied.
                make_folder(order.target)
                stack.enter_context(alone(order.target, doing="changes"))
                order.write_known(source, order.known)
            download(files, jobs=jobs)
            for order in changing:
                _finish(order, source, self.contents[order.dataset.folder])
        return orders, files

    def check_converted(self, *folders: str) -> None:
        """Raise ArgumentError if the root, or some folders of a dataset, hold no complete conversion."""
        if folders or not self.complete:
            raise ArgumentError(
                f"{self._source}: holds no complete conversion{' of it' if folders else ''}; expected "
                f"<dataset>/<version>/{MANIFEST_NAME} below the root"
            )

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
class Order:
    """Files to fetch for one dataset.

    Attributes:
        dataset: Dataset of the source, with its complete manifest.
        folder: Folder of the source.
        target: Folder of the copy.
        names: Names of all shards of the dataset, in order.
        needed: Names of the shards that the mixture needs.
        known: Names of the shards that were fetched before.
        files: Files that are missing at the target.
        mirrors: Whether the target has the labels of the source alone: nobody attaches any to a cache.
        done: Whether the target is complete.
    """

    dataset: Dataset
    folder: Folder
    target: Path
    names: tuple[str, ...]
    needed: frozenset[str]
    known: frozenset[str]
    files: tuple[Download, ...]
    mirrors: bool
    done: bool

    def write_known(self, source: str, names: frozenset[str]) -> None:
        """Write ``fetched.json`` with some shard names."""
        shards = tuple(name for name in self.names if name in names)
        write_fetched(self.target, Fetched(source=source, data=self.dataset.manifest.data, shards=shards))


def _open_source(root: str) -> Folder:
    if is_remote(root):
        remote = RemoteFolder(checked_url(root))
        remote.check()
        return remote
    if not Path(root).is_dir():
        raise ArgumentError(f"{root}: no such folder; expected a converted root: a folder, s3://, gs:// or https://")
    return LocalFolder(Path(root))


def _order(dataset: Dataset, needed: frozenset[str], source: Folder, local: Path, *, whole_index: bool) -> Order:
    """Return the files to fetch for a dataset, and remove partial files of a fetch that was killed.

    Raises:
        ArgumentError: The target holds a different conversion.
    """
    folder, target = source / dataset.name / dataset.version, local / dataset.name / dataset.version
    manifest = dataset.manifest
    names = tuple(shard.name for entry in manifest.splits.values() for shard in entry.shards)
    fetched = read_fetched(target)
    try:
        old = read_manifest(target) if (target / MANIFEST_NAME).exists() else None
    except FormatError as error:
        raise ArgumentError(f"{str(error).partition(';')[0]}; remove {target}, or choose another folder") from None
    data = old.data if old else fetched.data if fetched else manifest.data
    reindexed = data != manifest.data
    if reindexed and not (old and _same_shards(old, manifest)):
        raise ArgumentError(f"{target}: holds another conversion than {folder}; remove it, or choose another folder")
    for leftover in target.rglob(f".*{PARTIAL}"):
        leftover.unlink(missing_ok=True)
    known = frozenset(fetched.shards if fetched else names if old else ())
    files = []
    mirrors, known_labels = whole_index and not known, True
    # A cache is opened often, so its large tables are compared while training runs.
    most_compared = _MOST_COMPARED if whole_index else None
    for split, entry in manifest.splits.items():
        shards = {shard_file(shard.name): shard.file for shard in entry.shards if shard.name in needed}
        # The index of a split without shards is always fetched.
        touched = whole_index or not entry.shards or any(shard.name in needed | known for shard in entry.shards)
        tables = {table_file(kind): table for kind, table in entry.index.items() if touched}
        for name, file in {**tables, **shards}.items():
            path, is_table = target / split / name, name in tables
            intact = _is_intact(path, file, most=most_compared if is_table else 0)
            if not intact or (reindexed and is_table):
                damaged = path if path.exists() and not (intact or reindexed) else None
                files.append(Download(folder=folder / split, target=path, entry=file, damaged=damaged))
        before = old.splits[split].labels if old and split in old.splits else {}
        for name, file in entry.labels.items() if touched else ():
            path = label_path(target / split, name, file)
            if before.get(name) != file or not _is_intact(path, file, most=most_compared):
                place, waiting = folder / split / LABELS, waiting_label(name, file.sha256)
                stored = label_file(name) if place.size(waiting) is None else waiting
                copy = target / split / LABELS / waiting
                damaged = path if path.exists() and before.get(name) == file else None
                files.append(Download(folder=place, target=copy, entry=file, source=stored, damaged=damaged))
        known_labels = known_labels and before.items() >= entry.labels.items()
        if mirrors:
            known_labels = known_labels and before.keys() == entry.labels.keys()
        else:
            _check_columns(target, split, before, entry)
    unfinished = fetched is not None and len(known) == len(names)
    return Order(
        dataset=dataset,
        folder=folder,
        target=target,
        names=names,
        needed=needed,
        known=known,
        files=tuple(files),
        mirrors=mirrors,
        done=old is not None and known_labels and not (unfinished or reindexed or files) and needed <= known,
    )


def _is_intact(path: Path, file: FileEntry, *, most: int | None) -> bool:
    """Return whether a file has the size of its entry, and its hash if it has at most some bytes (None: any number)."""
    if not path.is_file() or path.stat().st_size != file.bytes:
        return False
    return (most is not None and file.bytes > most) or describe_file(path).sha256 == file.sha256


def _same_shards(old: Manifest, new: Manifest) -> bool:
    """Return whether two manifests belong to one conversion; their indexes may differ."""
    shards = [{split: entry.shards for split, entry in manifest.splits.items()} for manifest in (old, new)]
    return shards[0] == shards[1] and (old.source, old.parameters) == (new.source, new.parameters)


def _check_columns(target: Path, split: str, here: Mapping[str, TableEntry], entry: SplitEntry) -> None:
    """Raise ArgumentError if labels that were attached to the copy have a column of the source's labels."""
    theirs = {column: name for name, table in entry.labels.items() for column in table.columns}
    for name, table in here.items():
        for column in table.columns:
            if name not in entry.labels and column in theirs:
                raise ArgumentError(
                    f"{target / split}: labels {name} here and labels {theirs[column]} of the source both have the "
                    f"column {column!r}; remove those here with `pairstream label ROOT DATASET --remove {name}`"
                )


def _with_own_labels(target: Path, content: bytes) -> bytes:
    """Return the content of a manifest with the labels that were attached to the copy alone."""
    if not (target / MANIFEST_NAME).exists():
        return content
    here, new = read_manifest(target), parse_manifest(content, context=str(target))
    labels = {
        split: {**(here.splits[split].labels if split in here.splits else {}), **entry.labels}
        for split, entry in new.splits.items()
    }
    more = any(len(own) > len(new.splits[split].labels) for split, own in labels.items())
    return encode_manifest(new.with_labels(labels)) if more else content


def _finish(order: Order, source: str, content: bytes) -> None:
    """Write ``fetched.json``, the quarantine, and last the manifest, whose bytes are ``content``."""
    quarantine, here = order.dataset.manifest.quarantine, order.known | order.needed
    order.write_known(source, here)
    if quarantine is not None:
        listed = order.folder.read(QUARANTINE_NAME)
        if hashlib.sha256(listed).hexdigest() != quarantine.sha256:
            raise FetchError(f"{order.folder}/{QUARANTINE_NAME}: its SHA-256 is not that of its manifest")
        write_whole(order.target / QUARANTINE_NAME, listed, suffix=PARTIAL)
    if not order.mirrors:
        content = _with_own_labels(order.target, content)
    write_whole(order.target / MANIFEST_NAME, content, suffix=PARTIAL)
    settle_labels(order.target, read_manifest(order.target))
    if len(here) == len(order.names):
        (order.target / FETCHED_NAME).unlink()
