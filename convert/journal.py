"""The journal of a conversion that is not complete: the folder ``.convert`` beside the splits.

It holds the parameters of the conversion, a status file for each finished shard, locks, and files that are being
written. A shard is finished when its status file is there: that is renamed into place last. The journal goes when the
manifest is written. Nothing in it is needed to read what was converted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from convert.errors import ConflictError, ConvertError, ShardError, UsageError
from stream.format import FILE_KINDS, MANIFEST_NAME, QUARANTINE_NAME, shard_file
from stream.manifest import Manifest, ShardEntry, encode_manifest, read_manifest

FOLDER = ".convert"
MANIFEST = "manifest"
"""The name of the lock under which the manifest is written."""
PARAMETERS = "parameters.json"
STATUS = ".status.json"
FAILURE = ".failure.json"
_LOCK = ".lock"
_TEMPORARY = ".tmp"
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT)


class QuarantineEntry(BaseModel):
    """Something of the source that was left out. episode: record number in the source file; step: in the episode."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    shard: str
    source_file: str
    episode: int
    step: int | None = None
    reason: str
    detail: str


class ShardStatus(BaseModel):
    """What converting one shard gave.

    sizes: "HxW" of stored frames and how many. passed, transcoded: frames. bytes_in: of the source records read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    entry: ShardEntry
    spans: tuple[tuple[int, int], ...]
    sizes: dict[str, int]
    passed: int
    transcoded: int
    bytes_in: int
    quarantine: tuple[QuarantineEntry, ...]

    @property
    def bytes_out(self) -> int:
        """Size of the shard's files."""
        return sum(file.bytes for file in self.entry.files.values())


class ShardFailure(BaseModel):
    """Why a shard failed when it was last tried. host: the machine of the worker."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    shard: str
    host: str
    message: str


class Journal:
    """The journal of one dataset's conversion, in the folder ``ROOT/<dataset>/<version>``."""

    def __init__(self, output: str | Path) -> None:
        self.output = Path(output)
        self.folder = self.output / FOLDER
        self.workplace = self.output
        """The folder on whose disk files are written, to name in messages."""

    def exists(self) -> bool:
        """Whether a conversion was begun here and its manifest is not written."""
        return self.folder.exists()

    def make(self) -> None:
        """Make the folder of the journal, if it is not there."""
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
            ConflictError: one with other parameters was started here.
            ConvertError: the folder cannot be written.
        """
        self.make()
        with writing(self.output):
            target = self.folder / PARAMETERS
            if not target.exists():
                temporary = self.temporary("parameters")
                write_durably(temporary, json.dumps(dict(parameters), indent=1, sort_keys=True).encode())
                # A link fails if another process was first; both then compare with what is there.
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

        ``name``: that of the lock under which it is written, and for a shard's files ``<stem>.<kind>``.
        """
        return self.folder / f"{name}.{os.getpid()}-{secrets.token_hex(4)}{_TEMPORARY}"

    def status(self, stem: str, split: str) -> ShardStatus | None:
        """Return the status of a shard if it is finished and its files are there with the right sizes."""
        try:
            status = ShardStatus.model_validate_json((self.folder / (stem + STATUS)).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        return status if self.has_files(status.entry, split) else None

    def statuses(self, stems: Mapping[str, str]) -> dict[str, ShardStatus]:
        """Return the statuses of the shards that are finished, of those that are given with their splits."""
        there = self.finished()
        found = {stem: self.status(stem, split) for stem, split in stems.items() if stem in there}
        return {stem: status for stem, status in found.items() if status is not None}

    def has_files(self, entry: ShardEntry, split: str) -> bool:
        """Whether the files of a shard are in place with the right sizes."""
        for kind, file in entry.files.items():
            try:
                if (self.output / split / shard_file(entry.name, kind)).stat().st_size != file.bytes:
                    return False
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def finished(self) -> set[str]:
        """Return the stems of all shards that have a status file; one look at the folder."""
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return set()
        return {name.removesuffix(STATUS) for name in names if name.endswith(STATUS)}

    def finish(self, status: ShardStatus) -> None:
        """Record a shard as finished, after its files are in place."""
        with writing(self.output):
            temporary = self.temporary(status.entry.name)
            write_durably(temporary, status.model_dump_json().encode())
            temporary.replace(self.folder / (status.entry.name + STATUS))

    def fail(self, failure: ShardFailure) -> None:
        """Leave a note of a shard that failed, for whoever looks from another machine; it goes with the journal.

        Where no note can be left, as on a full disk, there is none: the failure itself is what has to be heard.
        """
        with contextlib.suppress(OSError):
            temporary = self.temporary(failure.shard)
            temporary.write_text(failure.model_dump_json())
            temporary.replace(self.folder / (failure.shard + FAILURE))

    def failures(self, stems: Iterable[str]) -> dict[str, ShardFailure]:
        """Return the notes of shards that failed, of those that are given."""
        there = set(_listdir(self.folder))
        found = {}
        for stem in stems:
            if stem + FAILURE in there:
                with contextlib.suppress(FileNotFoundError, ValidationError):
                    found[stem] = ShardFailure.model_validate_json((self.folder / (stem + FAILURE)).read_bytes())
        return found

    @contextlib.contextmanager
    def lock(self, stem: str, *, wait: bool = False) -> Iterator[bool]:
        """Hold the lock of a shard; yields False where another process has it, unless it should ``wait`` for that.

        The kernel gives it back however the holder ends. A file system without locks is used without: shards are still
        written under unused names and renamed, so two conversions of one shard only waste work.
        """
        with writing(self.output):
            file = os.open(self.folder / (stem + _LOCK), os.O_RDWR | os.O_CREAT, 0o666)
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
                self._remove_leftovers(stem)
            yield True
        finally:
            os.close(file)

    @contextlib.contextmanager
    def staged(self, stem: str) -> Iterator[dict[str, Path]]:
        """Give the files of a shard, by kind, places of their own to be written in, for the time of the context."""
        files = {kind: self.temporary(f"{stem}.{kind}") for kind in FILE_KINDS}
        try:
            yield files
        finally:
            for path in files.values():
                path.unlink(missing_ok=True)

    def place(self, stem: str, split: str, files: Mapping[str, Path]) -> None:
        """Rename the files of a shard, by kind, that were written and checked, into place."""
        with writing(self.output):
            folder = self.output / split
            folder.mkdir(parents=True, exist_ok=True)
            for kind, path in files.items():
                path.replace(folder / shard_file(stem, kind))

    def remove_stale(self) -> None:
        """Remove what killed processes left half-written, except of shards that somebody is converting now."""
        for stem in {_owner(name) for name in _listdir(self.folder)} - {"", "parameters"}:
            try:
                with self.lock(stem):
                    pass
            except ConvertError as error:
                # Another process may have finished meanwhile, and removed the journal.
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise

    def remove(self) -> None:
        """Remove the journal and all that is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def clear(self, stems: Iterable[str]) -> None:
        """Remove what belongs to shards that the manifest has, and the journal with the last of them.

        What is left belongs to another process that adds a split.
        """
        for stem in stems:
            for suffix in (STATUS, FAILURE, _LOCK):
                (self.folder / (stem + suffix)).unlink(missing_ok=True)
        if set(_listdir(self.folder)) <= {PARAMETERS, MANIFEST + _LOCK}:
            self.remove()

    def manifest(self) -> Manifest | None:
        """Return the manifest in the output, None if there is none; raises FormatError if it cannot be used."""
        return read_manifest(self.output) if (self.output / MANIFEST_NAME).exists() else None

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
        """Put the list of what was left out into place; an empty one is none."""
        target = self.output / QUARANTINE_NAME
        if not content:
            target.unlink(missing_ok=True)
            return
        temporary = self.temporary(MANIFEST)
        write_durably(temporary, content)
        temporary.replace(target)

    @contextlib.contextmanager
    def step_files(self, split: str, shards: Sequence[ShardEntry], columns: Sequence[str]) -> Iterator[list[Path]]:
        """Give local ``steps`` files with these columns at least, for the time of the context."""
        yield [self.output / split / shard_file(shard.name, "steps") for shard in shards]

    def remove_output(self) -> None:
        """Remove what a conversion wrote: the manifest first, so that nothing half-removed is taken for complete."""
        with writing(self.output):
            (self.output / MANIFEST_NAME).unlink(missing_ok=True)
            (self.output / QUARANTINE_NAME).unlink(missing_ok=True)
            for folder in list(self.output.iterdir()) if self.output.is_dir() else []:
                if folder.name == FOLDER:
                    self.remove()
                elif folder.is_dir():
                    for path in list(folder.iterdir()):
                        if is_shard_file(path.name, folder.name):
                            path.unlink()
                    if not any(folder.iterdir()):
                        folder.rmdir()

    def _remove_leftovers(self, stem: str) -> None:
        for name in _listdir(self.folder):
            if _owner(name) == stem:
                (self.folder / name).unlink(missing_ok=True)


def _owner(name: str) -> str:
    """The lock under which a temporary file is written; empty for other files."""
    if not name.endswith(_TEMPORARY):
        return ""
    owner = name.removesuffix(_TEMPORARY).rpartition(".")[0]
    for kind in FILE_KINDS:
        owner = owner.removesuffix(f".{kind}")
    return owner


def is_shard_file(name: str, split: str) -> bool:
    """Whether a file of a split's folder is one that a conversion wrote."""
    return name.startswith(f"{split}-") and name.endswith((".arrayrecord", ".arrow"))


def parse_parameters(content: bytes, *, where: str) -> dict[str, Any]:
    """Return the parameters of a conversion from their file; raises ConflictError if that is something else."""
    try:
        found = json.loads(content)
    except ValueError as error:
        raise ConflictError(f"{where}: not JSON ({error}); run with --overwrite") from None
    if not isinstance(found, dict):
        raise ConflictError(f"{where}: not a JSON object; run with --overwrite")
    return found


def check_parameters(before: Mapping[str, Any], now: Mapping[str, Any], *, where: str | Path) -> None:
    """Raise ConflictError, naming each that differs, unless two sets of parameters are equal."""
    now = json.loads(json.dumps(dict(now)))
    differ = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    if differ:
        changes = "; ".join(f"{key} was {before.get(key)!r}, now {now.get(key)!r}" for key in differ)
        raise ConflictError(
            f"{where} holds a conversion with other parameters: {changes}. Use another --output, the old parameters, "
            "or --overwrite"
        )


def write_durably(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def writing(where: Path) -> Iterator[None]:
    """Turn the errors of a file system that cannot be written into one clear error."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ShardError(f"{where}: the disk is full; make room and run the same command again") from error
        if error.errno in _NOT_WRITABLE:
            raise UsageError(f"{where} cannot be written: {error.strerror}; choose another --output") from error
        raise ConvertError(f"{where}: {error.strerror or error} ({error.filename or ''})") from error


def _listdir(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
