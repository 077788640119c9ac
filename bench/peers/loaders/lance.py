"""Lance: one table of blobs, rows taken at random by PyTorch's DataLoader."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from bench.peers.loaders.torch import dataset_batches
from bench.peers.protocol import METADATA, Decoder, Export, Request, flat, serve

_ROWS = 256


class _Pairs:
    """A dataset that takes all rows of a batch at once, as Lance's own map-style dataset does."""

    def __init__(self, request: Request) -> None:
        self._path = str(request.copy / "pairs.lance")
        self._columns = ["first", "second", "dataset", *(METADATA if request.full else ())]
        self._length, self._decode = len(request.pairs), Decoder(request)
        self._table: Any = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self.__getitems__([place])[0]

    def __getitems__(self, places: list[int]) -> list[dict[str, Any]]:
        if self._table is None:
            self._table = import_module("lance").dataset(self._path)
        return [self._decode(row) for row in self._table.take(places, columns=self._columns).to_pylist()]


def make_copy(request: Request) -> None:
    """Write all pairs as rows of a table, in their order."""
    arrow = import_module("pyarrow")
    fields = [("first", arrow.large_binary()), ("second", arrow.large_binary())]
    fields += [(name, arrow.int64()) for name in ("dataset", "episode", "step")]
    fields += [("action", arrow.binary()), ("state", arrow.binary()), ("language", arrow.string())]
    schema = arrow.schema(fields)
    rows = arrow.RecordBatchReader.from_batches(schema, _batches(request.pairs, arrow, schema))
    import_module("lance").write_dataset(rows, str(request.copy / "pairs.lance"), schema=schema)


def _batches(pairs: Export, arrow: Any, schema: Any) -> Iterator[Any]:
    for start in range(0, len(pairs), _ROWS):
        rows = [flat(pairs.pair(place)) for place in range(start, min(start + _ROWS, len(pairs)))]
        yield arrow.RecordBatch.from_pylist(rows, schema=schema)


def open_batches(request: Request) -> AbstractContextManager[Iterator[Any]]:
    """Give batches of pairs drawn by weight; workers are spawned, because Lance does not survive a fork."""
    return dataset_batches(request, _Pairs(request), context="spawn")


if __name__ == "__main__":
    sys.exit(serve(open_batches, make_copy))
