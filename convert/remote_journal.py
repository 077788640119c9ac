"""The journal of a conversion into an object store: the same objects in the same places as the files of a local one.

Files are written into a staging folder of the local disk, checked, stored under their final names, and compared by size
and hash; then the status of the shard is stored. There are no locks: two conversions of one shard only waste work, for
they store the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from convert.errors import ShardError
from convert.journal import (
    FAILURE,
    FOLDER,
    PARAMETERS,
    STATUS,
    Journal,
    ShardFailure,
    ShardStatus,
    check_parameters,
    is_shard_file,
    parse_parameters,
    writing,
)
from convert.staging import stage, staging_base, sweep
from stream.format import FILE_KINDS, MANIFEST_NAME, QUARANTINE_NAME, open_sidecar, shard_file
from stream.manifest import Manifest, ShardEntry, encode_manifest, parse_manifest
from stream.remote import CHUNK, RemoteError, RemoteFolder, is_remote

_THREADS = 8


class RemoteJournal:
    """The journal of one dataset's conversion into ``s3://`` or ``gs://``; see ``Journal``. All methods may raise
    RemoteError."""

    def __init__(self, output: str, staging: str | None = None) -> None:
        self.output = RemoteFolder(output)
        self.folder = self.output / FOLDER
        self.workplace = staging_base(staging)
        self._sizes: dict[str, dict[str, int]] = {}

    def exists(self) -> bool:
        """Whether a conversion was begun here and its manifest is not written."""
        return bool(self.folder.sizes())

    def make(self) -> None:
        """There is nothing to make: folders are a part of names."""

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

    def status(self, stem: str, split: str) -> ShardStatus | None:
        """Return the status of a shard if it is finished and its files are there with the right sizes."""
        return self.statuses({stem: split}).get(stem)

    def statuses(self, stems: Mapping[str, str]) -> dict[str, ShardStatus]:
        """Return the statuses of the shards that are finished, of those that are given with their splits."""
        names = {stem + STATUS: stem for stem in stems}
        if len(names) > 1:
            there = self.folder.sizes()
            names = {name: stem for name, stem in names.items() if name in there}
        found = {}
        for name, content in self.folder.read_some(names).items():
            with contextlib.suppress(ValidationError):
                status = ShardStatus.model_validate_json(content)
                if self.has_files(status.entry, stems[names[name]]):
                    found[names[name]] = status
        return found

    def has_files(self, entry: ShardEntry, split: str) -> bool:
        """Whether the files of a shard are in place with the right sizes, as of the first time that this was asked."""
        if split not in self._sizes:
            self._sizes[split] = (self.output / split).sizes()
        there = self._sizes[split]
        return all(there.get(shard_file(entry.name, kind)) == file.bytes for kind, file in entry.files.items())

    def finished(self) -> set[str]:
        """Return the stems of all shards that have a status; one look at the folder."""
        return {name.removesuffix(STATUS) for name in self.folder.sizes() if name.endswith(STATUS)}

    def finish(self, status: ShardStatus) -> None:
        """Record a shard as finished, after its files are in place."""
        self.folder.write(status.entry.name + STATUS, status.model_dump_json().encode())

    def fail(self, failure: ShardFailure) -> None:
        """Leave a note of a shard that failed; where the store does not take it, there is none."""
        with contextlib.suppress(RemoteError):
            self.folder.write(failure.shard + FAILURE, failure.model_dump_json().encode())

    def failures(self, stems: Iterable[str]) -> dict[str, ShardFailure]:
        """Return the notes of shards that failed, of those that are given."""
        there = self.folder.sizes()
        names = {stem + FAILURE: stem for stem in stems if stem + FAILURE in there}
        found = {}
        for name, content in self.folder.read_some(names).items():
            with contextlib.suppress(ValidationError):
                found[names[name]] = ShardFailure.model_validate_json(content)
        return found

    @contextlib.contextmanager
    def lock(self, stem: str, *, wait: bool = False) -> Iterator[bool]:
        """Yield True: an object store has no locks."""
        yield True

    @contextlib.contextmanager
    def staged(self, stem: str) -> Iterator[dict[str, Path]]:
        """Give the files of a shard, by kind, places of their own to be written in, for the time of the context."""
        with self._stage() as folder:
            yield {kind: folder / shard_file(stem, kind) for kind in FILE_KINDS}

    @contextlib.contextmanager
    def _stage(self) -> Iterator[Path]:
        with contextlib.ExitStack() as stack:
            with writing(self.workplace):
                folder = stack.enter_context(stage(self.workplace))
            yield folder

    def place(self, stem: str, split: str, files: Mapping[str, Path]) -> None:
        """Store the files of a shard, by kind, that were written and checked."""
        folder = self.output / split
        for kind, path in files.items():
            folder.upload(path, shard_file(stem, kind))

    def remove_stale(self) -> None:
        """Remove what killed processes of this machine left on its disk; in the store nothing is half-written."""
        sweep(self.workplace)

    def remove(self) -> None:
        """Remove the journal and all that is in it; the parameters last, for they say that it is there."""
        self.folder.remove(sorted(self.folder.sizes(), key=lambda name: name == PARAMETERS))

    def clear(self, stems: Iterable[str]) -> None:
        """Remove the statuses of shards that the manifest has, and the journal with the last of them."""
        there = self.folder.sizes()
        mine = {stem + suffix for stem in stems for suffix in (STATUS, FAILURE)} & set(there)
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda name: self.folder.remove([name]), sorted(mine)))
        if set(there) - mine <= {PARAMETERS}:
            self.remove()

    def manifest(self) -> Manifest | None:
        """Return the manifest in the output, None if there is none; raises FormatError if it cannot be used."""
        try:
            content = self.output.read(MANIFEST_NAME)
        except FileNotFoundError:
            return None
        return parse_manifest(content, where=f"{self.output}/{MANIFEST_NAME}")

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
        """Store the list of what was left out; an empty one is none."""
        if content:
            self.output.write(QUARANTINE_NAME, content)
        else:
            self.output.remove([QUARANTINE_NAME])

    @contextlib.contextmanager
    def step_files(self, split: str, shards: Sequence[ShardEntry], columns: Sequence[str]) -> Iterator[list[Path]]:
        """Give local ``steps`` files with these columns, fetched one by one, for the time of the context."""
        folder = self.output / split

        def fetch(entry: ShardEntry) -> Path:
            name = shard_file(entry.name, "steps")
            whole, kept = here / f"{name}.whole", here / name
            digest = hashlib.sha256()
            with writing(self.workplace):
                with folder.open(name, size=entry.files["steps"].bytes) as source, whole.open("wb") as sink:
                    while content := source.read(CHUNK):
                        digest.update(content)
                        sink.write(content)
                if digest.hexdigest() != entry.files["steps"].sha256:
                    raise ShardError(
                        f"{folder}/{name}: not what was stored there; remove it and run the same command again"
                    )
                table = open_sidecar(whole).select(columns)
                with pa.OSFile(str(kept), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                    writer.write_table(table)
                whole.unlink()
            return kept

        with self._stage() as here, ThreadPoolExecutor(_THREADS) as pool:
            yield list(pool.map(fetch, shards))

    def remove_output(self) -> None:
        """Remove what a conversion wrote: the manifest first, so that nothing half-removed is taken for complete."""
        self.output.remove([MANIFEST_NAME, QUARANTINE_NAME])
        self.remove()
        with ThreadPoolExecutor(_THREADS) as pool:
            for split in self.output.folders():
                folder = self.output / split
                mine = [name for name in folder.sizes() if is_shard_file(name, split)]
                list(pool.map(folder.remove, ([name] for name in mine)))


AnyJournal = Journal | RemoteJournal


def open_journal(output: str | Path, staging: str | None = None) -> AnyJournal:
    """Return the journal of the conversion into a folder ``ROOT/<dataset>/<version>``, local or remote.

    Args:
        output: the folder.
        staging: a local folder for files on their way to an object store; default: that of the system.
    """
    return RemoteJournal(str(output), staging) if is_remote(output) else Journal(output)
