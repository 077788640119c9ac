"""The shards of a mixture, kept as columns: 20,000 of them are a few MB, here and in each worker."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np

from stream.format import FILE_KINDS, shard_file
from stream.shards import ShardInfo

if TYPE_CHECKING:
    from stream.manifest import FileEntry, ShardEntry  # which brings pydantic; a worker does without

_COUNTS = ("records", "steps", "episodes", "paired_episodes")


@dataclass(frozen=True, eq=False)
class SplitShards:
    """The shards of one split, in order. counts: ``_COUNTS`` and the number of the first episode, int64 [shards, 5];
    sizes in bytes, SHA-256, and whether there is one, [shards, kinds]."""

    stems: np.ndarray
    counts: np.ndarray
    sizes: np.ndarray
    digests: np.ndarray
    hashed: np.ndarray

    @classmethod
    def of(cls, shards: Sequence[ShardEntry]) -> SplitShards:
        """Take over what a manifest says of the shards of a split."""
        counts = [[shard.records, shard.steps, shard.episodes, shard.paired_episodes] for shard in shards]
        table = np.array(counts, np.int64).reshape(-1, 4)
        files = [[(file.bytes, _digest(kind, file)) for kind, file in _files(shard)] for shard in shards]
        shape = (len(shards), len(FILE_KINDS))
        hashes = [[digest or "00" * 32 for _, digest in row] for row in files]
        return cls(
            stems=np.array([shard.name.encode() for shard in shards], "S"),
            counts=np.column_stack([table, np.cumsum(table[:, 2]) - table[:, 2]]),
            sizes=np.array([[size for size, _ in row] for row in files], np.int64).reshape(shape),
            digests=np.array([[bytes.fromhex(digest) for digest in row] for row in hashes], "V32").reshape(shape),
            hashed=np.array([[digest is not None for _, digest in row] for row in files], bool).reshape(shape),
        )

    @property
    def episodes(self) -> list[int]:
        """Of each shard."""
        return self.counts[:, 2].tolist()

    def __len__(self) -> int:
        return len(self.stems)


class _Placed(NamedTuple):
    shards: SplitShards
    member: int
    dataset: str
    split: str
    folder: str


class ShardFiles(NamedTuple):
    """What of a shard's ``ShardInfo`` it takes to find its files, which is had in a fifth of the time.

    stem: of the files, with the folder. sizes: in bytes, by FILE_KINDS.
    """

    member: int
    stem: str
    sizes: list[int]
    first_episode: int

    def file(self, kind: str) -> str:
        """Where the file of a kind lies."""
        return shard_file(self.stem, kind)


class ShardList(Sequence[ShardInfo]):
    """Shards of several splits by number; what is asked for is made anew each time."""

    def __init__(self) -> None:
        self._splits: list[_Placed] = []
        self._ends: list[int] = []

    def add(self, shards: SplitShards, split: str, folder: Path, *, dataset: str, member: int = 0) -> int:
        """Append the shards of a split; ``folder`` is the dataset's, with the manifest.

        Returns:
            the number of the first of them.
        """
        self._splits.append(_Placed(shards, member, dataset, split, str(folder / split)))
        begin = len(self)
        self._ends.append(begin + len(shards))
        return begin

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def column(self, name: str) -> np.ndarray:
        """Return ``records``, ``steps``, ``episodes`` or ``paired_episodes`` of all shards, int64."""
        place = _COUNTS.index(name)
        return np.concatenate([np.zeros(0, np.int64), *(split.shards.counts[:, place] for split in self._splits)])

    @overload
    def __getitem__(self, index: int) -> ShardInfo: ...
    @overload
    def __getitem__(self, index: slice) -> list[ShardInfo]: ...
    def __getitem__(self, index: int | slice) -> ShardInfo | list[ShardInfo]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        (shards, member, dataset, split, folder), row = self._find(index)
        records, steps, episodes, paired, first = shards.counts[row].tolist()
        sizes, digests, hashed = shards.sizes[row].tolist(), shards.digests[row], shards.hashed[row].tolist()
        return ShardInfo(
            member=member,
            dataset=dataset,
            split=split,
            stem=shards.stems[row].decode(),
            folder=folder,
            records=records,
            steps=steps,
            episodes=episodes,
            paired_episodes=paired,
            first_episode=first,
            files={
                kind: (sizes[number], digests[number].tobytes().hex() if hashed[number] else None)
                for number, kind in enumerate(FILE_KINDS)
            },
        )

    def files(self, index: int) -> ShardFiles:
        """Where the files of a shard lie."""
        split, row = self._find(index)
        stem = f"{split.folder}/{split.shards.stems[row].decode()}"
        return ShardFiles(split.member, stem, split.shards.sizes[row].tolist(), split.shards.counts.item(row, 4))

    def _find(self, index: int) -> tuple[_Placed, int]:
        """The split of a shard, and its number there."""
        if not 0 <= index < len(self):
            raise IndexError(f"shard {index} of {len(self)}")
        place = bisect_right(self._ends, index)
        split = self._splits[place]
        return split, index - self._ends[place] + len(split.shards)


def _files(shard: ShardEntry) -> list[tuple[str, FileEntry]]:
    return sorted(shard.files.items(), key=lambda item: FILE_KINDS.index(item[0]))


def _digest(kind: str, file: FileEntry) -> str | None:
    return file.tail_sha256 if kind == "arrayrecord" else file.sha256
