"""The journal of a conversion that is not complete: the folder ``.convert`` next to the splits.

The journal holds the parameters of the conversion, for each finished shard its part of the index and a status file, for
each merged split a status file, locks, and files that are being written. A shard or split is finished when its status
file exists: the status is placed last. While a complete dataset is changed, its manifest waits in the journal too. The
journal goes when the manifest is written; converted data are read without it.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from convert.errors import ConflictError
from convert.journal.status import IndexStatus, QuarantineEntry, ShardFailure, ShardStatus
from convert.journal.store import FOLDER as FOLDER
from convert.journal.store import LOCK, PARAMETERS, LocalStore, ObjectStore
from convert.source.protocol import complete_splits
from convert.storage.durable import writing
from stream.base.errors import StreamError, first_fault
from stream.format.manifest import Manifest, ShardEntry, TableEntry, encode_manifest, parse_manifest
from stream.format.names import (
    LABELS,
    MANIFEST_NAME,
    QUARANTINE_NAME,
    TABLE_KINDS,
    TableKind,
    shard_file,
    split_of,
    table_file,
)
from stream.storage.files import lock_folder
from stream.storage.remote import is_remote

MANIFEST = "manifest"
"""Name of the lock under which the manifest and the parameters are written."""
WITHDRAWN = "withdrawn.json"
"""The manifest of a complete dataset while its files are changed."""
STATUS = ".status.json"
FAILURE = ".failure.json"
INDEX = ".index"
"""Suffix of the lock under which the index of a split is merged, and of its status before ``.json``."""
RECORDS = "arrayrecord"
"""Name of the ArrayRecord file on a stage; the parts of the index are named by their tables."""
_SHARD_FILES = (".arrayrecord", ".arrow")
_PARTS = tuple(f".{table_file(table_kind)}" for table_kind in TABLE_KINDS)
"""Ends of the names of a shard's parts of the index."""
PIECE = "~"
"""Mark between the name of a shard and the episodes of a piece, which no name of a split has."""
_THREADS = 8
_Record = TypeVar("_Record", bound=BaseModel)

Parts = dict[TableKind, Path]


class Journal:
    """The journal of one dataset's conversion.

    Args:
        output: Folder ``ROOT/<dataset>/<version>``, local or in an object store.
        staging: Local folder for files on their way to an object store; default: the folder of the system.

    All methods may raise RemoteError for an object store. Methods that write raise ConvertError if a disk refuses.
    """

    def __init__(self, output: str | Path, staging: str | None = None) -> None:
        self.output = str(output)
        self._store = ObjectStore(self.output, staging) if is_remote(output) else LocalStore(output)
        self.scratch = self._store.scratch
        """Folder on whose disk files are written, to name in messages."""
        self.exists = self._store.exists
        self.lock = self._store.lock
        self.make = self._store.make
        self.remove = self._store.remove_journal
        self.remove_stale = self._store.remove_stale

    def alone(self) -> AbstractContextManager[None]:
        """Lock the folder against processes that change its labels; an object store has no labels."""
        return contextlib.nullcontext() if is_remote(self.output) else lock_folder(Path(self.output), doing="changes")

    @contextlib.contextmanager
    def stage(self, owner: str) -> Iterator[Path]:
        """Make a local folder for files on their way to the output, for the time of the context."""
        with contextlib.ExitStack() as exit_stack:
            with writing(self.scratch):
                folder = exit_stack.enter_context(self._store.stage(owner))
            yield folder

    def parameters(self) -> dict[str, Any] | None:
        """Return the parameters of the conversion here, None if none was started; raises ConflictError if damaged."""
        if (content := self._get(f"{FOLDER}/{PARAMETERS}")) is None:
            return None
        location = f"{self.output}/{FOLDER}/{PARAMETERS}"
        try:
            return TypeAdapter(dict[str, Any]).validate_json(content)
        except ValidationError as error:
            raise ConflictError(f"{location}: not a JSON object ({first_fault(error)}); run with --overwrite") from None

    def begin(self, parameters: Mapping[str, Any]) -> None:
        """Start or continue a conversion; raises ConflictError if one with other parameters was started here."""
        self.make()
        with self.lock(MANIFEST, wait=True):
            # Another process may have finished, and removed the journal, while this one waited.
            self.make()
            if self.parameters() is None:
                content = json.dumps(dict(parameters), indent=1, sort_keys=True).encode()
                self._store.put(f"{FOLDER}/{PARAMETERS}", content, owner=MANIFEST, unless_exists=True)
        check_parameters(self.parameters() or {}, parameters, location=self.output)

    def status(self, stem: str) -> ShardStatus | None:
        """Return the status of a shard if it is finished and its files exist with the right sizes."""
        return self._statuses([stem]).get(stem)

    def statuses(self, stems: Iterable[str]) -> dict[str, ShardStatus]:
        """Return the statuses of the shards among these that are finished."""
        finished = self.finished()
        return self._statuses(stem for stem in stems if stem in finished)

    def _statuses(self, stems: Iterable[str]) -> dict[str, ShardStatus]:
        status_by_stem = self._read(ShardStatus, {f"{FOLDER}/{stem}{STATUS}": stem for stem in stems})
        expected_sizes: dict[str, dict[str, int]] = {}
        for stem, status in status_by_stem.items():
            expected_sizes[stem] = {part_file(stem, kind): entry.bytes for kind, entry in status.parts.items()}
            expected_sizes[stem][_records_file(stem)] = status.entry.file.bytes
        actual = self._store.sizes(chain.from_iterable(expected_sizes.values())).items()
        return {stem: status for stem, status in status_by_stem.items() if expected_sizes[stem].items() <= actual}

    def _read(self, record_type: type[_Record], key_by_file: Mapping[str, str]) -> dict[str, _Record]:
        """Return the records in files that exist and are valid, by the value of the name."""
        records = {}
        for name, content in self._store.get(key_by_file).items():
            with contextlib.suppress(ValidationError):
                records[key_by_file[name]] = record_type.model_validate_json(content)
        return records

    def _get(self, name: str) -> bytes | None:
        return self._store.get([name]).get(name)

    def complete_files(self, entries: Iterable[ShardEntry]) -> set[str]:
        """Return the stems of the shards whose ArrayRecord file exists with the right size."""
        entry_by_file = {_records_file(entry.name): entry for entry in entries}
        actual_sizes = self._store.sizes(entry_by_file)
        return {entry.name for name, entry in entry_by_file.items() if actual_sizes.get(name) == entry.file.bytes}

    def has_index(self, table_entries: Mapping[TableKind, TableEntry], split: str) -> bool:
        """Return whether the tables of a split exist with the right sizes."""
        expected_sizes = {f"{split}/{table_file(kind)}": entry.bytes for kind, entry in table_entries.items()}
        return self._store.sizes(expected_sizes) == expected_sizes

    def finished(self) -> set[str]:
        """Return the stems of all shards that have a status file, from one listing."""
        return {name.removesuffix(STATUS) for name in self._store.names(FOLDER) if name.endswith(STATUS)}

    def finish(self, status: ShardStatus) -> None:
        """Record a shard as finished, after its files are in place."""
        stem = status.stem
        self._store.put(f"{FOLDER}/{stem}{STATUS}", status.model_dump_json().encode(), owner=stem)

    def forget(self, stems: Set[str]) -> None:
        """Remove the statuses of shards and their pieces, so that they are converted again."""
        self._store.remove(f"{FOLDER}/{stem}{STATUS}" for stem in self.finished() if stem.partition(PIECE)[0] in stems)

    def index_status(self, split: str) -> IndexStatus | None:
        """Return the status of a split's index if it is merged and its tables exist with the right sizes."""
        status = self._read(IndexStatus, {_index_file(split): split}).get(split)
        return status if status is not None and self.has_index(status.index, split) else None

    def finish_index(self, status: IndexStatus) -> None:
        """Record the index of a split as merged, after its tables are in place."""
        self._store.put(_index_file(status.split), status.model_dump_json().encode(), owner=status.split + INDEX)

    def fail(self, failure: ShardFailure) -> None:
        """Leave a note of a shard that failed, to be read on any machine, unless the disk is full."""
        note_name = f"{FOLDER}/{failure.shard}{FAILURE}"
        with contextlib.suppress(OSError, StreamError):
            self._store.put(note_name, failure.model_dump_json().encode(), owner=failure.shard)

    def failures(self, stems: Iterable[str]) -> dict[str, ShardFailure]:
        """Return the notes of the shards among these that failed."""
        existing = self._store.names(FOLDER)
        stem_by_file = {f"{FOLDER}/{stem}{FAILURE}": stem for stem in stems if stem + FAILURE in existing}
        return self._read(ShardFailure, stem_by_file)

    def placed(self) -> set[str]:
        """Return the stems of the shards of which a file was moved into place, from one listing."""
        suffixes = (STATUS, *_PARTS)
        journal_files = self._store.names(FOLDER)
        return {name.removesuffix(suffix) for suffix in suffixes for name in journal_files if name.endswith(suffix)}

    def place(self, stem: str, stage_folder: Path) -> None:
        """Move the complete files of a shard, each named by its kind, from a stage into place, parts first."""
        for kind in TABLE_KINDS:
            self._store.place(stage_folder / kind, part_file(stem, kind))
        if (stage_folder / RECORDS).exists():
            self._store.place(stage_folder / RECORDS, _records_file(stem))

    def records(self, status: ShardStatus, folder: Path) -> Path:
        """Return the local ArrayRecord file of a piece; one in an object store is copied to ``folder``."""
        return self._store.fetch(_records_file(status.stem), status.entry.file, folder)

    def parts(self, statuses: Sequence[ShardStatus], folder: Path) -> list[Parts]:
        """Return local files with the parts of shards; parts in an object store are copied to ``folder``."""

        def fetch(status: ShardStatus) -> Parts:
            part_names = {kind: part_file(status.stem, kind) for kind in TABLE_KINDS}
            return {kind: self._store.fetch(name, status.parts[kind], folder) for kind, name in part_names.items()}

        with ThreadPoolExecutor(_THREADS) as thread_pool:
            return list(thread_pool.map(fetch, statuses))

    def tables(self, split: str, table_entries: Mapping[TableKind, TableEntry], folder: Path) -> Path:
        """Return a local folder with the tables of a split; raises ShardError if one is not what its entry says."""
        for kind, entry in table_entries.items():
            table_path = self._store.fetch(f"{split}/{table_file(kind)}", entry, folder)
        return table_path.parent

    def place_index(self, split: str, stage_folder: Path) -> None:
        """Move the complete tables of a split that a stage has into place."""
        self._store.remove([_index_file(split)])
        for table_name in map(table_file, TABLE_KINDS):
            if (stage_folder / table_name).exists():
                self._store.place(stage_folder / table_name, f"{split}/{table_name}")

    def clear(self, stems: Collection[str], splits: Iterable[str]) -> None:
        """Remove what belongs to shards and splits that the manifest has, and the journal with the last of them.

        The rest belongs to another process that adds a split.
        """
        suffixes = (STATUS, FAILURE, LOCK, *_PARTS)
        removable = {WITHDRAWN, *(stem + suffix for stem in stems for suffix in suffixes)}
        removable |= {split + INDEX + suffix for split in splits for suffix in (".json", LOCK)}
        journal_files = self._store.names(FOLDER)
        removable |= {name for name in journal_files if name.partition(PIECE)[0] in stems}
        if journal_files - removable <= {PARAMETERS, MANIFEST + LOCK}:
            self.remove()
        else:
            self._store.remove(f"{FOLDER}/{name}" for name in removable & journal_files)

    def clear_pieces(self, stem: str) -> None:
        """Remove the files of the pieces of a finished shard, except their locks."""
        piece_files = [name for name in self._store.names(FOLDER) if name.startswith(stem + PIECE)]
        self._store.remove(f"{FOLDER}/{name}" for name in piece_files if not name.endswith(LOCK))

    def manifest(self) -> Manifest | None:
        """Return the manifest in the output, None if there is none; raises FormatError if it cannot be used."""
        return self._manifest(MANIFEST_NAME)

    def withdrawn(self) -> Manifest | None:
        """Return the manifest that was withdrawn to change files that it describes, None if none was."""
        return self._manifest(f"{FOLDER}/{WITHDRAWN}")

    def _manifest(self, name: str) -> Manifest | None:
        content = self._get(name)
        return None if content is None else parse_manifest(content, context=f"{self.output}/{name}")

    def withdraw(self, owner: str = MANIFEST) -> None:
        """Take the manifest out of the output, under the lock ``owner``, before a file that it describes changes."""
        if (content := self._get(MANIFEST_NAME)) is not None:
            self._store.put(f"{FOLDER}/{WITHDRAWN}", content, owner=owner)
            self._store.remove([MANIFEST_NAME])

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest, which makes the conversion complete."""
        content = encode_manifest(manifest)
        parse_manifest(content, context=f"{self.output}/{MANIFEST_NAME}")
        self._store.put(MANIFEST_NAME, content, owner=MANIFEST)

    def quarantine(self) -> Mapping[str, Sequence[QuarantineEntry]]:
        """Return the list of what was left out, by shard."""
        entries_by_shard = defaultdict[str, list[QuarantineEntry]](list)
        for json_line in (self._get(QUARANTINE_NAME) or b"").splitlines():
            entry = QuarantineEntry.model_validate_json(json_line)
            entries_by_shard[entry.shard].append(entry)
        return entries_by_shard

    def write_quarantine(self, content: bytes) -> None:
        """Write the list of what was left out; an empty one is removed."""
        if content:
            self._store.put(QUARANTINE_NAME, content, owner=MANIFEST)
        else:
            self._store.remove([QUARANTINE_NAME])

    def splits(self) -> dict[str, list[str]]:
        """Return the converted files by split, finished or not."""
        table_names = {table_file(kind) for kind in TABLE_KINDS}
        files_by_split = {}
        for split in self._store.folders():
            names = self._store.names(split)
            shard_files = {name for name in names if name.startswith(f"{split}-") and name.endswith(_SHARD_FILES)}
            label_files = {f"{LABELS}/{name}" for name in self._store.names(f"{split}/{LABELS}")}
            if converted_files := sorted(shard_files | names & table_names | label_files):
                files_by_split[split] = converted_files
        return files_by_split

    def remove_output(self) -> None:
        """Remove what a conversion wrote: the manifest first, so that a partial removal never looks complete."""
        self._store.remove([MANIFEST_NAME, QUARANTINE_NAME])
        self.remove()
        for split, file_names in self.splits().items():
            self._store.remove(f"{split}/{name}" for name in file_names)
        self._store.remove_folders()

    def adopt(self, other_journal: Journal, manifest: Manifest) -> None:
        """Replace what a conversion wrote by the complete conversion of another folder, of which nothing is left.

        Until then the other folder has its manifest, so that the same command can continue after a kill.
        """
        self.remove_output()
        file_names = [QUARANTINE_NAME] if manifest.quarantine else []
        for split, split_entry in manifest.splits.items():
            file_names += [f"{split}/{table_file(kind)}" for kind in split_entry.index]
            file_names += [_records_file(entry.name) for entry in split_entry.shards]
        # The stores of one --output are of one kind.
        self._store.adopt(other_journal._store, file_names)  # type: ignore[arg-type]
        self.make()
        self.write_manifest(manifest)
        self.remove()
        other_journal._store.remove(file_names)
        other_journal.remove_output()


def part_file(stem: str, kind: TableKind) -> str:
    """Return the name of a shard's part of a table.

    >>> part_file("train-00007-of-01024", "steps")
    '.convert/train-00007-of-01024.steps.arrow'
    """
    return f"{FOLDER}/{stem}.{table_file(kind)}"


def _records_file(stem: str) -> str:
    return f"{FOLDER if PIECE in stem else split_of(stem)}/{shard_file(stem)}"


def _index_file(split: str) -> str:
    return f"{FOLDER}/{split}{INDEX}.json"


def check_parameters(old_parameters: Mapping[str, Any], new_parameters: Mapping[str, Any], *, location: str) -> None:
    """Raise ConflictError if two sets of parameters differ, naming each difference.

    ``frame_offsets`` are not named: they follow from ``frames`` and ``offset``. Complete splits are no difference:
    earlier versions recorded them as ``episodes``.
    """
    if complete_splits(old_parameters.get("episodes") or "") is not None:
        old_parameters = {**old_parameters, "episodes": None}
    new_parameters = json.loads(json.dumps(dict(new_parameters)))
    changes = [
        f"{name} was {old_parameters.get(name)!r}, now {new_parameters.get(name)!r}"
        for name in sorted({*old_parameters, *new_parameters} - {"frame_offsets"})
        if old_parameters.get(name) != new_parameters.get(name)
    ]
    if changes:
        remedy = "Use another --output, the old parameters, or --overwrite"
        raise ConflictError(f"{location} holds a conversion with other parameters: {'; '.join(changes)}. {remedy}")
