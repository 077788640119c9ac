"""The journal of a conversion into an object store: the same objects in the same places as the files of a local one.

Files are written into a staging folder of the local disk, checked, stored under their final names, and compared by size
and hash; then the status of the shard or split is stored. There are no locks: two conversions of one shard only waste
work, for they store the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from convert.errors import ShardError
from convert.journal.journal import (
    FAILURE,
    FOLDER,
    INDEX,
    KINDS,
    PARAMETERS,
    RECORDS,
    STATUS,
    WITHDRAWN,
    FileKind,
    Journal,
    Parts,
    is_output_file,
    journal_files,
    part_file,
)
from convert.journal.parameters import check_parameters, parse_parameters
from convert.journal.status import IndexStatus, ShardFailure, ShardStatus
from convert.storage.durable import writing
from convert.storage.object_store import StoreFolder
from convert.storage.staging import stage, staging_base, sweep
from stream.format.manifest import FileEntry, Manifest, ShardEntry, TableEntry, encode_manifest, parse_manifest
from stream.format.names import MANIFEST_NAME, QUARANTINE_NAME, TABLE_KINDS, TableKind, shard_file, split_of, table_file
from stream.storage.remote import CHUNK, RemoteError, is_remote

_THREADS = 8


class RemoteJournal:
    """The journal of one dataset's conversion into ``s3://`` or ``gs://``; see ``Journal``. All methods may raise
    RemoteError."""

    def __init__(self, output: str, staging: str | None = None) -> None:
        self.output = StoreFolder(output)
        self.folder = self.output / FOLDER
        self.workplace = staging_base(staging)
        self._sizes: dict[str, dict[str, int]] = {}

    def exists(self) -> bool:
        """Return whether a conversion was begun here and its manifest is not written."""
        return bool(self.folder.sizes())

    def make(self) -> None:
        """Do nothing: folders are a part of names."""

    def parameters(self) -> dict[str, Any] | None:
        """Return the parameters that the conversion here was started with, None if none was."""
        try:
            return parse_parameters(self.folder.read(PARAMETERS), where=f"{self.folder}/{PARAMETERS}")
        except FileNotFoundError:
            return None

    def begin(self, parameters: Mapping[str, Any]) -> None:
        """Start or go on with a conversion; raises ConflictError if one with other parameters was started here."""
        if self.parameters() is None:
            content = json.dumps(dict(parameters), indent=1, sort_keys=True).encode()
            self.folder.write(PARAMETERS, content, unless_there=True)
        check_parameters(self.parameters() or {}, parameters, where=str(self.output))

    def status(self, stem: str) -> ShardStatus | None:
        """Return the status of a shard if it is finished and its files exist with the right sizes."""
        names = [stem + STATUS, *(part_file(stem, kind) for kind in TABLE_KINDS)]
        sizes = {name: size for name in names if (size := self.folder.size(name)) is not None}
        return self._statuses([stem], sizes).get(stem)

    def statuses(self, stems: Iterable[str]) -> dict[str, ShardStatus]:
        """Return the statuses of the shards that are finished, of those that are given."""
        return self._statuses(stems, self.folder.sizes())

    def _statuses(self, stems: Iterable[str], existing: Mapping[str, int]) -> dict[str, ShardStatus]:
        names = {stem + STATUS: stem for stem in stems}
        names = {name: stem for name, stem in names.items() if name in existing}
        found = {}
        for name, content in self.folder.read_some(names).items():
            with contextlib.suppress(ValidationError):
                status = ShardStatus.model_validate_json(content)
                stem = names[name]
                parts = all(existing.get(part_file(stem, kind)) == file.bytes for kind, file in status.parts.items())
                if parts and self.has_file(status.entry):
                    found[stem] = status
        return found

    def has_file(self, entry: ShardEntry) -> bool:
        """Return whether the ArrayRecord file of a shard is in place with the right size, as first seen."""
        return self._existing(split_of(entry.name)).get(shard_file(entry.name)) == entry.file.bytes

    def has_index(self, index: Mapping[TableKind, TableEntry], split: str) -> bool:
        """Return whether the tables of a split are in place with the right sizes, as first seen."""
        existing = self._existing(split)
        return all(existing.get(table_file(kind)) == entry.bytes for kind, entry in index.items())

    def _existing(self, split: str) -> dict[str, int]:
        """Return the sizes of the objects in a split's folder when this was first asked."""
        if split not in self._sizes:
            self._sizes[split] = (self.output / split).sizes()
        return self._sizes[split]

    def finished(self) -> set[str]:
        """Return the stems of all shards that have a status; one look at the folder."""
        return {name.removesuffix(STATUS) for name in self.folder.sizes() if name.endswith(STATUS)}

    def finish(self, status: ShardStatus) -> None:
        """Record a shard as finished, after its files are in place."""
        self.folder.write(status.entry.name + STATUS, status.model_dump_json().encode())

    def forget(self, stem: str) -> None:
        """Remove the status of a shard, so that it is converted again."""
        self.folder.remove([stem + STATUS])

    def index_status(self, split: str) -> IndexStatus | None:
        """Return the status of a split's index if it is merged and its tables exist with the right sizes."""
        try:
            status = IndexStatus.model_validate_json(self.folder.read(f"{split}{INDEX}.json"))
        except (FileNotFoundError, ValidationError):
            return None
        return status if self.has_index(status.index, split) else None

    def finish_index(self, status: IndexStatus) -> None:
        """Record the index of a split as merged, after its tables are in place."""
        self.folder.write(f"{status.split}{INDEX}.json", status.model_dump_json().encode())

    def fail(self, failure: ShardFailure) -> None:
        """Leave a note of a shard that failed; if the store does not take it, there is none."""
        with contextlib.suppress(RemoteError):
            self.folder.write(failure.shard + FAILURE, failure.model_dump_json().encode())

    def failures(self, stems: Iterable[str]) -> dict[str, ShardFailure]:
        """Return the notes of shards that failed, of those that are given."""
        existing = self.folder.sizes()
        names = {stem + FAILURE: stem for stem in stems if stem + FAILURE in existing}
        found = {}
        for name, content in self.folder.read_some(names).items():
            with contextlib.suppress(ValidationError):
                found[names[name]] = ShardFailure.model_validate_json(content)
        return found

    @contextlib.contextmanager
    def lock(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        """Yield True: an object store has no locks."""
        yield True

    @contextlib.contextmanager
    def staged(self, stem: str) -> Iterator[dict[FileKind, Path]]:
        """Give the files of a shard, by ``KINDS``, paths to be written at, for the time of the context."""
        with self._stage() as folder:
            yield {kind: folder / kind for kind in KINDS}

    @contextlib.contextmanager
    def _stage(self) -> Iterator[Path]:
        with contextlib.ExitStack() as stack:
            with writing(self.workplace):
                folder = stack.enter_context(stage(self.workplace))
            yield folder

    def place(self, stem: str, files: Mapping[FileKind, Path]) -> None:
        """Store files of a shard, by ``KINDS``, that were written and checked."""
        for kind in TABLE_KINDS:
            self.folder.upload(files[kind], part_file(stem, kind))
        if RECORDS in files:
            (self.output / split_of(stem)).upload(files[RECORDS], shard_file(stem))

    @contextlib.contextmanager
    def parts(self, statuses: Sequence[ShardStatus]) -> Iterator[list[Parts]]:
        """Give the parts of shards as local files, fetched several at a time, for the time of the context."""

        def fetch(status: ShardStatus) -> Parts:
            names = {kind: part_file(status.entry.name, kind) for kind in TABLE_KINDS}
            return {kind: self._fetch(self.folder, name, status.parts[kind], here) for kind, name in names.items()}

        with self._stage() as here, ThreadPoolExecutor(_THREADS) as pool:
            yield list(pool.map(fetch, statuses))

    @contextlib.contextmanager
    def index(self, split: str, index: Mapping[TableKind, TableEntry]) -> Iterator[Path]:
        """Give a local folder with the tables of a split that the manifest describes, for the time of the context."""
        with self._stage() as here:
            for kind, entry in index.items():
                self._fetch(self.output / split, table_file(kind), entry, here)
            yield here

    def _fetch(self, folder: StoreFolder, name: str, entry: FileEntry, here: Path) -> Path:
        digest = hashlib.sha256()
        target = here / name
        with writing(self.workplace), folder.open(name, size=entry.bytes) as source, target.open("wb") as sink:
            while content := source.read(CHUNK):
                digest.update(content)
                sink.write(content)
        if digest.hexdigest() != entry.sha256:
            raise ShardError(f"{folder}/{name}: not what was stored there; remove it and run the same command again")
        return target

    @contextlib.contextmanager
    def merging(self, split: str) -> Iterator[Path]:
        """Give a folder to write the index of a split in, for the time of the context."""
        with self._stage() as folder:
            yield folder

    def place_index(self, split: str, folder: Path) -> None:
        """Store the tables of a split that were written and checked."""
        self.folder.remove([f"{split}{INDEX}.json"])
        for kind in TABLE_KINDS:
            (self.output / split).upload(folder / table_file(kind), table_file(kind))

    def remove_stale(self) -> None:
        """Remove what killed processes of this machine left on its disk; in the store nothing is half-written."""
        sweep(self.workplace)

    def remove(self) -> None:
        """Remove the journal and all that is in it; the parameters last, for they say that it exists."""
        self.folder.remove(sorted(self.folder.sizes(), key=lambda name: name == PARAMETERS))

    def clear(self, stems: Iterable[str], splits: Iterable[str]) -> None:
        """Remove what belongs to shards and splits that the manifest has, and the journal with the last of them."""
        existing = self.folder.sizes()
        mine = existing.keys() & set(journal_files(stems, splits))
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda name: self.folder.remove([name]), sorted(mine)))
        if existing.keys() - mine <= {PARAMETERS}:
            self.remove()

    def manifest(self) -> Manifest | None:
        """Return the manifest in the output, None if there is none; raises FormatError if it cannot be used."""
        return _read_manifest(self.output, MANIFEST_NAME)

    def withdrawn(self) -> Manifest | None:
        """Return the manifest that was withdrawn to change files that it describes, None if none was."""
        return _read_manifest(self.folder, WITHDRAWN)

    def withdraw(self) -> None:
        """Take the manifest out of the output before a file that it describes gets another content."""
        with contextlib.suppress(FileNotFoundError):
            self.folder.write(WITHDRAWN, self.output.read(MANIFEST_NAME))
            self.output.remove([MANIFEST_NAME])

    def write_manifest(self, manifest: Manifest) -> None:
        """Store the manifest, which makes the conversion complete."""
        self.output.write(MANIFEST_NAME, encode_manifest(manifest))

    def quarantine(self) -> bytes:
        """Return the content of the list of what was left out, empty if there is none."""
        try:
            return self.output.read(QUARANTINE_NAME)
        except FileNotFoundError:
            return b""

    def write_quarantine(self, content: bytes) -> None:
        """Store the list of what was left out; an empty one is removed."""
        if content:
            self.output.write(QUARANTINE_NAME, content)
        else:
            self.output.remove([QUARANTINE_NAME])

    def splits(self) -> list[str]:
        """Return the names of the splits of which objects exist, finished or not."""
        names = (split for split in self.output.folders() if split != FOLDER)
        return [split for split in names if any(is_output_file(name, split) for name in (self.output / split).sizes())]

    def remove_output(self) -> None:
        """Remove what a conversion wrote: the manifest first, so that nothing half-removed is taken for complete."""
        self.output.remove([MANIFEST_NAME, QUARANTINE_NAME])
        self.remove()
        with ThreadPoolExecutor(_THREADS) as pool:
            for split in self.splits():
                folder = self.output / split
                mine = [name for name in folder.sizes() if is_output_file(name, split)]
                list(pool.map(folder.remove, ([name] for name in mine)))


def _read_manifest(folder: StoreFolder, name: str) -> Manifest | None:
    try:
        content = folder.read(name)
    except FileNotFoundError:
        return None
    return parse_manifest(content, where=f"{folder}/{name}")


AnyJournal = Journal | RemoteJournal


def open_journal(output: str | Path, staging: str | None = None) -> AnyJournal:
    """Return the journal of the conversion into a folder ``ROOT/<dataset>/<version>``, local or remote.

    Args:
        output: The folder.
        staging: A local folder for files on their way to an object store; default: that of the system.
    """
    return RemoteJournal(str(output), staging) if is_remote(output) else Journal(output)
