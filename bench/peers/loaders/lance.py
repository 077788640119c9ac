"""Lance: one table of blobs, rows taken at random by PyTorch's DataLoader."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

import numpy as np

from bench.peers.loaders.torch import tensors, weighted_batches
from bench.peers.protocol import Export, Request, decode, serve

_ROWS = 256
_ALWAYS = ("first", "second", "dataset")
_FULL = (*_ALWAYS, "episode", "step", "action", "state", "language")


class _Pairs:
    """Takes all rows of a batch at once, as Lance's own map-style dataset does."""

    def __init__(self, request: Request) -> None:
        self._path = str(request.copy / "pairs.lance")
        self._columns = list(_FULL if request.full else _ALWAYS)
        self._length, self._shape, self._full = len(request.pairs), request.pairs.shape, request.full
        self._vector = tuple(request.pairs.about["vector"])
        self._table: Any = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self.__getitems__([place])[0]

    def __getitems__(self, places: list[int]) -> list[dict[str, Any]]:
        if self._table is None:
            self._table = import_module("lance").dataset(self._path)
        return [self._sample(row) for row in self._table.take(places, columns=self._columns).to_pylist()]

    def _sample(self, row: dict[str, Any]) -> dict[str, Any]:
        if self._full:
            window, width, _ = self._vector
            row["action"] = np.frombuffer(row["action"], np.float32).reshape(window, width)
            row["state"] = np.frombuffer(row["state"], np.float32)
        return tensors(decode(row, self._shape, full=self._full))


def make_copy(request: Request) -> None:
    """Write all pairs as rows of a table, in their order."""
    arrow, pairs = import_module("pyarrow"), request.pairs
    fields = [("first", arrow.large_binary()), ("second", arrow.large_binary())]
    fields += [(name, arrow.int64()) for name in ("dataset", "episode", "step")]
    fields += [("action", arrow.binary()), ("state", arrow.binary()), ("language", arrow.string())]
    schema = arrow.schema(fields)
    rows = arrow.RecordBatchReader.from_batches(schema, _batches(pairs, arrow, schema))
    import_module("lance").write_dataset(rows, str(request.copy / "pairs.lance"), schema=schema)


def _batches(pairs: Export, arrow: Any, schema: Any) -> Iterator[Any]:
    for start in range(0, len(pairs), _ROWS):
        rows = []
        for place in range(start, min(start + _ROWS, len(pairs))):
            pair = pairs.pair(place)
            rows.append({**pair, "action": pair["action"].tobytes(), "state": pair["state"].tobytes()})
        yield arrow.RecordBatch.from_pylist(rows, schema=schema)


def open_batches(request: Request) -> AbstractContextManager[Iterator[Any]]:
    """Give batches of pairs drawn by weight; Lance must not be used across a fork, so workers are spawned."""
    return weighted_batches(request, _Pairs(request), context="spawn")


if __name__ == "__main__":
    sys.exit(serve(open_batches, make_copy))
