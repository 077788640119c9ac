"""The journal of a conversion that is not complete: the folder ``.convert`` beside the splits.

It holds the parameters of the conversion, for each finished shard its part of the index and a status file, for each
merged split a status file, locks, and files that are being written. A shard or split is finished when its status file
exists: the status is renamed into place last. While a complete dataset is changed, its manifest waits here too. The
journal goes when the manifest is written. Nothing in it is needed to read what was converted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ValidationError

from convert.errors import ConvertError, ShardError
from convert.journal.parameters import check_parameters, parse_parameters
from convert.journal.status import IndexStatus, ShardFailure, ShardStatus
from convert.storage.durable import describe_file, write_durably, writing
from convert.storage.staging import machine
from stream.format.manifest import Manifest, ShardEntry, TableEntry, encode_manifest, read_manifest
from stream.format.names import MANIFEST_NAME, QUARANTINE_NAME, TABLE_KINDS, TableKind, shard_file, split_of, table_file

FOLDER = ".convert"
MANIFEST = "manifest"
"""The name of the lock under which the manifest and the parameters are written."""
PARAMETERS = "parameters.json"
WITHDRAWN = "withdrawn.json"
"""The manifest of a complete dataset while its files are changed."""
STATUS = ".status.json"
FAILURE = ".failure.json"
INDEX = ".index"
"""Suffix of the lock under which the index of a split is merged, and of its status before ``.json``."""
RECORDS: Final = "arrayrecord"
FileKind = Literal["arrayrecord", "episodes", "steps", "records"]
KINDS: tuple[FileKind, ...] = (RECORDS, *TABLE_KINDS)
"""The files that converting a shard writes: its ArrayRecord file and its part of each table of the index."""
_LOCK = ".lock"
_TEMPORARY = ".tmp"
_STALE = 24 * 3600.0
"""Seconds after which a temporary file of another machine counts as left behind."""

Parts = dict[TableKind, Path]


class Journal:
    """The journal of one dataset's conversion, in the folder ``ROOT/<dataset>/<version>``."""

    def __init__(self, output: str | Path) -> None:
        self.output = Path(output)
        self.folder = self.output / FOLDER
        self.workplace = self.output
        """The folder on whose disk files are written, to name in messages."""

    def exists(self) -> bool:
        """Return whether a conversion was begun here and its manifest is not written."""
        return self.folder.exists()

    def make(self) -> None:
        """Make the folder of the journal, if it does not exist."""
        with writing(self.output):
            self.folder.mkdir(parents=True, exist_ok=True)

    def parameters(self) -> dict[str, Any] | None:
        """Return the parameters that the conversion here was started with, None if none was."""
        path = self.folder / PARAMETERS
        try:
            return parse_parameters(path.read_bytes(), where=str(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def begin(self, parameters: Mapping[str, Any]) -> None:
        """Start or go on with a conversion.

        Raises:
            ConflictError: One with other parameters was started here.
            ConvertError: The folder cannot be written.
        """
        self.make()
        with writing(self.output), self.lock(MANIFEST, wait=True):
            # Another process may have finished, and removed the journal, while this one waited.
            self.make()
            target = self.folder / PARAMETERS
            if not target.exists():
                temporary = self.temporary(MANIFEST)
                write_durably(temporary, json.dumps(dict(parameters), indent=1, sort_keys=True).encode())
                # A link fails if another process was first; both then compare with what exists.
                try:
                    os.link(temporary, target)
                except FileExistsError:
                    pass
                except OSError:
                    # Some network file systems have no links; there the last of several processes wins.
                    os.replace(temporary, target)
                temporary.unlink(missing_ok=True)
        check_parameters(self.parameters() or {}, parameters, where=self.output)

    def temporary(self, name: str) -> Path:
        """Return an unused path in the journal, on the same file system as the output.

        Args:
            name: Name of the lock under which it is written, for a shard's files ``<stem>.<kind>``.
        """
        return self.folder / f"{name}.{machine()}-{os.getpid()}-{secrets.token_hex(4)}{_TEMPORARY}"

    def status(self, stem: str) -> ShardStatus | None:
        """Return the status of a shard if it is finished and its files exist with the right sizes."""
        try:
            status = ShardStatus.model_validate_json((self.folder / (stem + STATUS)).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        parts = ((self._part(stem, kind), entry) for kind, entry in status.parts.items())
        if not all(_has_size(path, entry.bytes) for path, entry in parts):
            return None
        return status if self.has_file(status.entry) else None

    def statuses(self, stems: Iterable[str]) -> dict[str, ShardStatus]:
        """Return the statuses of the shards that are finished, of those that are given."""
        existing = self.finished()
        found = {stem: self.status(stem) for stem in stems if stem in existing}
        return {stem: status for stem, status in found.items() if status is not None}

    def has_file(self, entry: ShardEntry) -> bool:
        """Return whether the ArrayRecord file of a shard is in place with the right size."""
        return _has_size(self.output / split_of(entry.name) / shard_file(entry.name), entry.file.bytes)

    def has_index(self, index: Mapping[TableKind, TableEntry], split: str) -> bool:
        """Return whether the tables of a split are in place with the right sizes."""
        return all(_has_size(self.output / split / table_file(kind), entry.bytes) for kind, entry in index.items())

    def finished(self) -> set[str]:
        """Return the stems of all shards that have a status file; one look at the folder."""
        return {name.removesuffix(STATUS) for name in _listdir(self.folder) if name.endswith(STATUS)}

    def finish(self, status: ShardStatus) -> None:
        """Record a shard as finished, after its files are in place."""
        self._write_status(status.entry.name, STATUS, status)

    def forget(self, stem: str) -> None:
        """Remove the status of a shard, so that it is converted again."""
        with writing(self.output):
            (self.folder / (stem + STATUS)).unlink(missing_ok=True)

    def index_status(self, split: str) -> IndexStatus | None:
        """Return the status of a split's index if it is merged and its tables exist with the right sizes."""
        try:
            status = IndexStatus.model_validate_json((self.folder / f"{split}{INDEX}.json").read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValidationError):
            return None
        return status if self.has_index(status.index, split) else None

    def finish_index(self, status: IndexStatus) -> None:
        """Record the index of a split as merged, after its tables are in place."""
        self._write_status(status.split + INDEX, ".json", status)

    def _write_status(self, owner: str, suffix: str, status: BaseModel) -> None:
        with writing(self.output):
            temporary = self.temporary(owner)
            write_durably(temporary, status.model_dump_json().encode())
            temporary.replace(self.folder / (owner + suffix))

    def fail(self, failure: ShardFailure) -> None:
        """Leave a note of a shard that failed, for whoever looks from another machine; it goes with the journal.

        A note that cannot be written, as on a full disk, is left out: the failure itself is raised anyway.
        """
        with contextlib.suppress(OSError):
            temporary = self.temporary(failure.shard)
            temporary.write_text(failure.model_dump_json())
            temporary.replace(self.folder / (failure.shard + FAILURE))

    def failures(self, stems: Iterable[str]) -> dict[str, ShardFailure]:
        """Return the notes of shards that failed, of those that are given."""
        existing = set(_listdir(self.folder))
        found = {}
        for stem in stems:
            if stem + FAILURE in existing:
                with contextlib.suppress(FileNotFoundError, ValidationError):
                    found[stem] = ShardFailure.model_validate_json((self.folder / (stem + FAILURE)).read_bytes())
        return found

    @contextlib.contextmanager
    def lock(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        """Hold the lock of a shard or split; yields False if another process has it, or waits with ``wait``.

        The kernel gives a lock back however its holder ends. On a file system without locks, or with locks that only
        one machine sees, two processes may convert one shard: they write under unused names and rename, so that only
        wastes work.
        """
        with writing(self.output):
            file = os.open(self.folder / (name + _LOCK), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    yield False
                    return
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
                    raise
            else:
                self._remove_leftovers(name)
            yield True
        finally:
            os.close(file)

    @contextlib.contextmanager
    def staged(self, stem: str) -> Iterator[dict[FileKind, Path]]:
        """Give the files of a shard, by ``KINDS``, paths to be written at, for the time of the context."""
        files: dict[FileKind, Path] = {kind: self.temporary(f"{stem}.{kind}") for kind in KINDS}
        try:
            yield files
        finally:
            for path in files.values():
                path.unlink(missing_ok=True)

    def place(self, stem: str, files: Mapping[FileKind, Path]) -> None:
        """Rename files of a shard, by ``KINDS``, that were written and checked, into place."""
        with writing(self.output):
            for kind in TABLE_KINDS:
                files[kind].replace(self._part(stem, kind))
            if RECORDS in files:
                folder = self.output / split_of(stem)
                folder.mkdir(parents=True, exist_ok=True)
                files[RECORDS].replace(folder / shard_file(stem))

    def _part(self, stem: str, kind: TableKind) -> Path:
        return self.folder / part_file(stem, kind)

    @contextlib.contextmanager
    def parts(self, statuses: Sequence[ShardStatus]) -> Iterator[list[Parts]]:
        """Give the parts of shards as local files, for the time of the context."""
        yield [{kind: self._part(status.entry.name, kind) for kind in TABLE_KINDS} for status in statuses]

    @contextlib.contextmanager
    def index(self, split: str, index: Mapping[TableKind, TableEntry]) -> Iterator[Path]:
        """Give a local folder with the tables of a split that the manifest describes, for the time of the context.

        Raises:
            ShardError: A table has another content than the manifest says.
        """
        for kind, entry in index.items():
            path = self.output / split / table_file(kind)
            if describe_file(path).sha256 != entry.sha256:
                raise ShardError(f"{path}: not what the manifest says; remove it and run the same command again")
        yield self.output / split

    @contextlib.contextmanager
    def merging(self, split: str) -> Iterator[Path]:
        """Give a folder to write the index of a split in, for the time of the context."""
        folder = self.temporary(split + INDEX)
        try:
            with writing(self.output):
                folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def place_index(self, split: str, folder: Path) -> None:
        """Rename the tables of a split, that were written and checked, into place."""
        with writing(self.output):
            (self.folder / f"{split}{INDEX}.json").unlink(missing_ok=True)
            target = self.output / split
            target.mkdir(parents=True, exist_ok=True)
            for kind in TABLE_KINDS:
                (folder / table_file(kind)).replace(target / table_file(kind))

    def remove_stale(self) -> None:
        """Remove what killed processes left half-written, except of shards that somebody is converting now."""
        for name in {_owner(name) for name in _listdir(self.folder)} - {""}:
            try:
                with self.lock(name):
                    pass
            except ConvertError as error:
                # Another process may have finished meanwhile, and removed the journal.
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise

    def remove(self) -> None:
        """Remove the journal and all that is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def clear(self, stems: Iterable[str], splits: Iterable[str]) -> None:
        """Remove what belongs to shards and splits that the manifest has, and the journal with the last of them.

        The rest belongs to another process that adds a split.
        """
        for name in journal_files(stems, splits):
            (self.folder / name).unlink(missing_ok=True)
        if set(_listdir(self.folder)) <= {PARAMETERS, MANIFEST + _LOCK}:
            self.remove()

    def manifest(self) -> Manifest | None:
        """Return the manifest in the output, None if there is none; raises FormatError if it cannot be used."""
        return read_manifest(self.output) if (self.output / MANIFEST_NAME).exists() else None

    def withdrawn(self) -> Manifest | None:
        """Return the manifest that was withdrawn to change files that it describes, None if none was."""
        path = self.folder / WITHDRAWN
        return read_manifest(path) if path.exists() else None

    def withdraw(self) -> None:
        """Take the manifest out of the output before a file that it describes gets another content."""
        with writing(self.output), contextlib.suppress(FileNotFoundError):
            (self.output / MANIFEST_NAME).replace(self.folder / WITHDRAWN)

    def write_manifest(self, manifest: Manifest) -> None:
        """Put the manifest into place, which makes the conversion complete."""
        temporary = self.temporary(MANIFEST)
        write_durably(temporary, encode_manifest(manifest))
        read_manifest(temporary)
        temporary.replace(self.output / MANIFEST_NAME)

    def quarantine(self) -> bytes:
        """Return the content of the list of what was left out, empty if there is none."""
        path = self.output / QUARANTINE_NAME
        return path.read_bytes() if path.exists() else b""

    def write_quarantine(self, content: bytes) -> None:
        """Put the list of what was left out into place; an empty one is removed."""
        target = self.output / QUARANTINE_NAME
        if not content:
            target.unlink(missing_ok=True)
            return
        temporary = self.temporary(MANIFEST)
        write_durably(temporary, content)
        temporary.replace(target)

    def splits(self) -> list[str]:
        """Return the names of the splits of which files exist, finished or not."""
        found = self.output.iterdir() if self.output.is_dir() else ()
        return sorted(
            folder.name
            for folder in found
            if folder.is_dir() and any(is_output_file(path.name, folder.name) for path in folder.iterdir())
        )

    def remove_output(self) -> None:
        """Remove what a conversion wrote: the manifest first, so that nothing half-removed is taken for complete."""
        with writing(self.output):
            (self.output / MANIFEST_NAME).unlink(missing_ok=True)
            (self.output / QUARANTINE_NAME).unlink(missing_ok=True)
            self.remove()
            for split in self.splits():
                folder = self.output / split
                for path in list(folder.iterdir()):
                    if is_output_file(path.name, split):
                        path.unlink()
                if not any(folder.iterdir()):
                    folder.rmdir()

    def _remove_leftovers(self, owner: str) -> None:
        """Remove temporary files under a lock that is held, of this machine or old: no other machine sees the lock."""
        for name in _listdir(self.folder):
            if _owner(name) != owner:
                continue
            path = self.folder / name
            with contextlib.suppress(FileNotFoundError):
                if _machine_of(name) != machine() and time.time() - path.stat().st_mtime < _STALE:
                    continue
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()


def _machine_of(name: str) -> str:
    return name.removesuffix(_TEMPORARY).rpartition(".")[2].partition("-")[0]


def _owner(name: str) -> str:
    """Return the lock under which a temporary file is written; empty for other files."""
    if not name.endswith(_TEMPORARY):
        return ""
    owner = name.removesuffix(_TEMPORARY).rpartition(".")[0]
    for kind in KINDS:
        owner = owner.removesuffix(f".{kind}")
    return owner


def part_file(stem: str, kind: TableKind) -> str:
    """Return the file name of a shard's part of a table.

    >>> part_file("train-00007-of-01024", "steps")
    'train-00007-of-01024.steps.arrow'
    """
    return f"{stem}.{table_file(kind)}"


def journal_files(stems: Iterable[str], splits: Iterable[str]) -> Iterator[str]:
    """Yield the names of the files in a journal that belong to shards and splits of the manifest."""
    suffixes = (STATUS, FAILURE, _LOCK, *(f".{table_file(kind)}" for kind in TABLE_KINDS))
    yield from (stem + suffix for stem in stems for suffix in suffixes)
    yield from (split + INDEX + suffix for split in splits for suffix in (".json", _LOCK))
    yield WITHDRAWN


def is_output_file(name: str, split: str) -> bool:
    """Return whether a file of a split's folder is one that a conversion wrote."""
    tables = {table_file(kind) for kind in TABLE_KINDS}
    return name in tables or (name.startswith(f"{split}-") and name.endswith((".arrayrecord", ".arrow")))


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except (FileNotFoundError, NotADirectoryError):
        return False


def _listdir(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
