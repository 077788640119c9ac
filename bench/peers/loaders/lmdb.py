"""LMDB: one database, a record for each pair, read at random by PyTorch's DataLoader."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from bench.peers.loaders.torch import dataset_batches
from bench.peers.protocol import Decoder, Request, pack, serve

_COMMIT = 1000


class _Pairs:
    def __init__(self, request: Request) -> None:
        self._path, self._length, self._decode = str(request.copy), len(request.pairs), Decoder(request)
        self._database: Any = None
        self._owner = 0

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int) -> dict[str, Any]:
        # An environment must not be used across a fork.
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._database = import_module("lmdb").open(self._path, readonly=True, lock=False, readahead=False)
        with self._database.begin(buffers=False) as reading:
            return self._decode(reading.get(b"%012d" % place))


def make_copy(request: Request) -> None:
    """Write all pairs under their numbers."""
    pairs = request.pairs
    room = 2 * (int(pairs.spans[-1, 2]) + 8192 * len(pairs)) + (64 << 20)
    database = import_module("lmdb").open(str(request.copy), map_size=room)
    for start in range(0, len(pairs), _COMMIT):
        with database.begin(write=True) as writing:
            for place in range(start, min(start + _COMMIT, len(pairs))):
                writing.put(b"%012d" % place, pack(pairs.pair(place)), append=True)
    database.sync(True)
    database.close()


def open_batches(request: Request) -> AbstractContextManager[Iterator[Any]]:
    """Give batches of pairs drawn by weight."""
    return dataset_batches(request, _Pairs(request))


if __name__ == "__main__":
    sys.exit(serve(open_batches, make_copy))
