"""The shards of a mixture, kept as columns: 20,000 of them are a few MB, here and in each worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np

from stream.format import FILE_KINDS
from stream.shards import ShardInfo

if TYPE_CHECKING:
    from stream.manifest import FileEntry, Manifest, ShardEntry  # which brings pydantic; a worker does without

_COUNTS = ("records", "steps", "episodes", "paired_episodes")


@dataclass(frozen=True, eq=False)
class _Split:
    """The shards of one split. counts: ``_COUNTS`` and the number of the first episode, int64 [shards, 5]; sizes in
    bytes, SHA-256, and whether there is one, [shards, kinds]."""

    member: int
    dataset: str
    name: str
    folder: str
    stems: np.ndarray
    counts: np.ndarray
    sizes: np.ndarray
    digests: np.ndarray
    hashed: np.ndarray


class ShardList(Sequence[ShardInfo]):
    """Shards by number; what is asked for is made anew each time."""

    def __init__(self) -> None:
        self._splits: list[_Split] = []
        self._ends = np.zeros(0, np.int64)

    def add(self, manifest: Manifest, split: str, folder: Path, *, dataset: str, member: int = 0) -> int:
        """Append the shards of a split, in order; ``folder`` is the dataset's, with the manifest.

        Returns:
            the number of the first of them.
        """
        shards = manifest.splits[split].shards
        episodes = np.array([shard.episodes for shard in shards], np.int64)
        counts = [[shard.records, shard.steps, shard.episodes, shard.paired_episodes] for shard in shards]
        files = [[(file.bytes, _digest(kind, file)) for kind, file in _files(shard)] for shard in shards]
        table = (len(shards), len(FILE_KINDS))
        hashes = [[digest or "00" * 32 for _, digest in row] for row in files]
        self._splits.append(
            _Split(
                member=member,
                dataset=dataset,
                name=split,
                folder=str(folder / split),
                stems=np.array([shard.name.encode() for shard in shards], "S"),
                counts=np.column_stack([np.array(counts, np.int64).reshape(-1, 4), np.cumsum(episodes) - episodes]),
                sizes=np.array([[size for size, _ in row] for row in files], np.int64).reshape(table),
                digests=np.array([[bytes.fromhex(digest) for digest in row] for row in hashes], "V32").reshape(table),
                hashed=np.array([[digest is not None for _, digest in row] for row in files], bool).reshape(table),
            )
        )
        begin = len(self)
        self._ends = np.append(self._ends, begin + len(shards))
        return begin

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def column(self, name: str) -> list[int]:
        """Return ``records``, ``steps``, ``episodes`` or ``paired_episodes`` of all shards."""
        place = _COUNTS.index(name)
        return [count for split in self._splits for count in split.counts[:, place].tolist()]

    @overload
    def __getitem__(self, index: int) -> ShardInfo: ...
    @overload
    def __getitem__(self, index: slice) -> list[ShardInfo]: ...
    def __getitem__(self, index: int | slice) -> ShardInfo | list[ShardInfo]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(f"shard {index} of {len(self)}")
        place = int(np.searchsorted(self._ends, index, side="right"))
        split = self._splits[place]
        row = index - int(self._ends[place]) + len(split.stems)
        records, steps, episodes, paired, first = split.counts[row].tolist()
        files = zip(FILE_KINDS, split.sizes[row].tolist(), split.digests[row], split.hashed[row].tolist(), strict=True)
        return ShardInfo(
            member=split.member,
            dataset=split.dataset,
            split=split.name,
            stem=split.stems[row].decode(),
            folder=split.folder,
            records=records,
            steps=steps,
            episodes=episodes,
            paired_episodes=paired,
            first_episode=first,
            files={kind: (size, digest.tobytes().hex() if hashed else None) for kind, size, digest, hashed in files},
        )


def _files(shard: ShardEntry) -> list[tuple[str, FileEntry]]:
    return sorted(shard.files.items(), key=lambda item: FILE_KINDS.index(item[0]))


def _digest(kind: str, file: FileEntry) -> str | None:
    return file.tail_sha256 if kind == "arrayrecord" else file.sha256
