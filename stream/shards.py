"""Open shards: a bounded cache of ArrayRecord readers and memory-mapped sidecars, shared by threads."""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from stream.errors import LimitError
from stream.format import TAIL_BYTES, FormatError, hash_end, open_sidecar, shard_file
from stream.record_reader import open_reader

if TYPE_CHECKING:
    from array_record.python.array_record_module import ArrayRecordReader

    from stream.manifest import Manifest  # which brings pydantic; a worker does without

_MAX_OPEN = 1024


@dataclass(frozen=True)
class ShardInfo:
    """Where a shard lies and what its manifest says of it.

    member: number of its dataset in the mixture. folder: of its split. first_episode: number of its first episode in
    the split. files: by kind the size in bytes, and the SHA-256 in hex: of all of a sidecar, and of an ArrayRecord
    file's end (see ``FileEntry``), None if the manifest does not have it.
    """

    member: int
    dataset: str
    split: str
    stem: str
    folder: str
    records: int
    episodes: int
    paired_episodes: int
    first_episode: int
    files: dict[str, tuple[int, str | None]] = field(hash=False)

    def path(self, kind: str) -> Path:
        """Where the file of a kind lies."""
        return Path(self.folder, shard_file(self.stem, kind))


def list_shards(manifest: Manifest, split: str, folder: Path, *, dataset: str, member: int = 0) -> Iterator[ShardInfo]:
    """The shards of a split, in order; ``folder`` is the dataset's, with the manifest."""
    place, episodes = str(folder / split), 0
    for shard in manifest.splits[split].shards:
        yield ShardInfo(
            member=member,
            dataset=dataset,
            split=split,
            stem=shard.name,
            folder=place,
            records=shard.records,
            episodes=shard.episodes,
            paired_episodes=shard.paired_episodes,
            first_episode=episodes,
            files={
                kind: (file.bytes, file.tail_sha256 if kind == "arrayrecord" else file.sha256)
                for kind, file in shard.files.items()
            },
        )
        episodes += shard.episodes


Sound = dict[str, tuple[int, int]]
"""By path, inode and time of change of a file whose content was found to be that of the manifest."""


class OpenShard:
    """One shard; its files are opened when they are first used. Errors are FormatError or OSError.

    When a file is first opened, its content is compared with the manifest: all of a sidecar, and of an ArrayRecord file
    its end; its records are compared with their own checksums when they are read.

    Args:
        info: where it lies.
        sound: files that need not be compared again, added to.
    """

    def __init__(self, info: ShardInfo, sound: Sound | None = None) -> None:
        self.info = info
        self._sound: Sound = {} if sound is None else sound
        self.prepared: object = None
        """What a reader of the sidecars made of them, so that it does so once."""

    @cached_property
    def reader(self) -> ArrayRecordReader:
        """The open ArrayRecord file."""
        path = self._checked("arrayrecord")
        reader = open_reader(str(path))
        if not reader.ok():
            # The library tells a lack of file handles no different from damage; this raises it.
            path.open("rb").close()
        if not reader.ok() or reader.num_records() != self.info.records:
            raise FormatError(
                f"{path}: {reader.num_records()} readable records, the manifest says {self.info.records}; the file is "
                "damaged or of another conversion"
            )
        return reader

    def read(self, record: int) -> bytes:
        """Return the bytes of one record; any damage of them raises FormatError."""
        try:
            return self.reader.read(record, record + 1)[0]
        except (FormatError, LimitError, OSError):
            raise
        # array_record raises RuntimeError, ValueError or IndexError, depending on what is damaged.
        except Exception as error:
            raise FormatError(f"cannot be read ({' '.join(str(error).split())[:200]})") from None

    @cached_property
    def steps(self) -> pa.Table:
        """The ``steps`` sidecar."""
        return open_sidecar(self._checked("steps"))

    @cached_property
    def episodes(self) -> pa.Table:
        """The ``episodes`` sidecar."""
        return self._sidecar("episodes", self.info.episodes)

    @cached_property
    def records(self) -> dict[str, np.ndarray]:
        """The columns of the ``records`` sidecar, integers [records], without a copy."""
        table = self._sidecar("records", self.info.records)
        return {name: column_array(table, name) for name in table.column_names}

    @cached_property
    def language(self) -> tuple[np.ndarray, pa.Array]:
        """Instruction of each step: int32 [steps] into an array of texts."""
        column = _single(self.steps, "language")
        return column.indices.to_numpy(), column.dictionary

    def _sidecar(self, kind: str, rows: int) -> pa.Table:
        table = open_sidecar(self._checked(kind))
        if len(table) != rows:
            raise FormatError(f"{self.info.path(kind)}: {len(table)} rows, the manifest says {rows}")
        return table

    def _checked(self, kind: str) -> Path:
        """Where a file lies, once it is known to be that of the manifest."""
        path = self.info.path(kind)
        stat, (expected, digest) = path.stat(), self.info.files[kind]
        if stat.st_size != expected:
            raise FormatError(
                f"{path}: {stat.st_size:,} bytes, the manifest says {expected:,}; the file is damaged or of another "
                "conversion"
            )
        if digest is not None and self._sound.get(str(path)) != (stat.st_ino, stat.st_mtime_ns):
            if digest != hash_end(path, TAIL_BYTES if kind == "arrayrecord" else expected).hex():
                raise FormatError(
                    f"{path}: its content is not that of the manifest; the file is damaged or of another conversion"
                )
            self._sound[str(path)] = (stat.st_ino, stat.st_mtime_ns)
        return path


class ShardCache:
    """Shards that were used last, at most ``max_open`` of them; safe to use from several threads.

    A sidecar holds no file handle once it is mapped, a reader holds one. A shard that falls out of the cache closes
    when the last thread lets go of it.
    """

    def __init__(self, shards: list[ShardInfo], *, max_open: int | None = None) -> None:
        self._shards = shards
        self._max_open = max_open or default_max_open()
        self._open: OrderedDict[int, OpenShard] = OrderedDict()
        self._sound: Sound = {}
        self._lock = threading.Lock()

    def __getitem__(self, index: int) -> OpenShard:
        with self._lock:
            shard = self._open.get(index)
            if shard is None:
                shard = self._open[index] = OpenShard(self._shards[index], self._sound)
                while len(self._open) > self._max_open:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(index)
        return shard

    def forget(self, index: int) -> None:
        """Close a shard, so that a file that was repaired is opened anew."""
        with self._lock:
            self._open.pop(index, None)

    def __len__(self) -> int:
        return len(self._open)


def default_max_open() -> int:
    """How many readers may be open: half of the file handles that this process may have, at most 1,024."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = 4096 if soft == resource.RLIM_INFINITY else soft
    return max(
        4, min(_MAX_OPEN, (soft - len(os.listdir("/proc/self/fd"))) // 2 if Path("/proc").is_dir() else soft // 4)
    )


def _single(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def column_array(table: pa.Table, name: str, *, fill: int | None = None) -> np.ndarray:
    """Return a numeric column in its own type, [rows] or [rows, values], without a copy where that is possible.

    Booleans become uint8. Columns with nulls become float, NaN where there is none; with ``fill`` they keep their type
    and have that number there.
    """
    array = _single(table, name)
    rows = len(array)
    values, size = array, None
    if isinstance(array.type, pa.FixedSizeListType):
        size = array.type.list_size
        values = array.values[array.offset * size : (array.offset + rows) * size]
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    if array.null_count or values.null_count:
        # Not safe: integers beyond 2^53 have no float64 of their own, the closest one is taken.
        values = values.cast(pa.float64(), safe=False).fill_null(np.nan) if fill is None else values.fill_null(fill)
        numbers = values.to_numpy(zero_copy_only=False)
        numbers = numbers.reshape(rows, size) if size is not None else numbers
        if array.null_count:
            numbers = numbers.copy()
            numbers[np.asarray(array.is_null())] = np.nan if fill is None else fill
        return numbers
    numbers = values.to_numpy(zero_copy_only=False)
    return numbers.reshape(rows, size) if size is not None else numbers
