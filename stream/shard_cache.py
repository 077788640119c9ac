"""Shards that stay open: a bounded cache, and which shards are not worth a place in it."""

from __future__ import annotations

import os
import resource
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from stream.places import ColumnPlaces
from stream.shards import CHECKED, OpenShard, ShardInfo

_MAX_OPEN = 1024
_RECORDS = CHECKED.index("records")
"""Nothing of a shard is used without this sidecar."""
_MANY = 4
"""To look up so many records takes as long as to open their shard: 70 and 245 microseconds (docs/reliability.md)."""
_LATELY = 128
"""Of shards that were found not worth opening, so many are remembered. Simulated with the numbers of shards of the
real 29 datasets and 1,024 open ones: 0.33 of the rows of oxe29 with equal weights are in an open shard, and 0.32 with
1,024 remembered, 0.21 where every shard is opened that is asked for; were it known beforehand which are the 1,024 that
are used most, 0.36."""


class ShardCache:
    """Open shards, at most ``max_open`` of them; safe to use from several threads.

    A sidecar holds no file handle once it is mapped, a reader holds one. A shard that falls out of the cache closes
    when the last thread lets go of it.

    Args:
        shards: all there are.
        max_open: see ``default_max_open``.

    Attributes:
        sound: see ``stream.shards.Sound``, of each shard. places: of the columns of all shards.
    """

    def __init__(self, shards: Sequence[ShardInfo], *, max_open: int | None = None) -> None:
        self.sound = np.zeros((len(shards), len(CHECKED)), np.int64)
        self.places = ColumnPlaces(len(shards))
        self._shards = shards
        self._max_open = max_open or default_max_open()
        self._open: OrderedDict[int, OpenShard] = OrderedDict()
        self._asked: OrderedDict[int, None] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, index: int) -> OpenShard:
        """Return a shard; it is opened if it is not, and the one that was used the longest time ago closes for it."""
        shard = self._open.get(index)
        if shard is not None and len(self._open) < self._max_open:
            # None has had to close yet, so it need not be known which was used last.
            return shard
        with self._lock:
            shard = self._open.get(index)
            if shard is None:
                shard = self._open[index] = OpenShard(self._shards[index], self.sound[index], self.places, index)
                while len(self._open) > self._max_open:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(index)
        return shard

    def find_open(self, index: int) -> OpenShard | None:
        """Return a shard if it is open; this counts as no use of it."""
        return self._open.get(index)

    def not_worth_opening(self, shards: Iterable[int]) -> set[int]:
        """Return those shards of a batch in which single records are better looked up: another would close for them,
        they were open before, the batch has few of their records, and they are not among the last of which this was
        said (the rule of 2Q, Johnson and Shasha 1994).

        Args:
            shards: of each row.
        """
        found: set[int] = set()
        if len(self._open) < self._max_open:
            return found
        with self._lock:
            for index, count in Counter(shards).items():
                if index in self._open or count >= _MANY or not self.sound.item(index, _RECORDS):
                    continue
                if index in self._asked:
                    del self._asked[index]
                    continue
                found.add(index)
                self._asked[index] = None
                if len(self._asked) > _LATELY:
                    self._asked.popitem(last=False)
        return found

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
