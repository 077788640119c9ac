"""Peers that PyTorch's DataLoader reads record by record, each a map-style dataset."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from bench.peers.protocol import METADATA, Decoder, Request, forever

_COMMIT = 1000
_ROWS = 256
_DECLARED: list[Any] = []


class MapStyle:
    """A map-style dataset of the exported pairs; element i is the sample of pair i."""

    context: str | None = None
    """Start method of the workers, None for PyTorch's default."""

    def __init__(self, request: Request) -> None:
        self.copy, self.length, self.decode = request.copy, len(request.pairs), Decoder(request)

    def __len__(self) -> int:
        return self.length

    @classmethod
    @contextmanager
    def open_batches(cls, request: Request) -> Iterator[Iterator[Any]]:
        """Give batches; shuffled pairs are drawn with their dataset's weight divided by the dataset's size."""
        import torch

        numbers = request.pairs.numbers[:, 0].tolist()
        sampler: Any = [pair_number % len(numbers) for pair_number in range(request.samples)]
        if request.order == "shuffled":
            sizes, weights = Counter(numbers), request.pairs.weights
            sampler = torch.utils.data.WeightedRandomSampler(
                [weights[number] / sizes[number] for number in numbers],
                num_samples=request.samples,
                generator=torch.Generator().manual_seed(request.seed),
            )
        loader: Any = torch.utils.data.DataLoader(
            cls(request),  # type: ignore[arg-type]
            batch_size=request.batch_size,
            sampler=sampler,
            num_workers=request.num_workers,
            multiprocessing_context=cls.context if request.num_workers else None,
            drop_last=True,
        )
        with torch_batches(loader) as batches:
            yield batches


@contextmanager
def torch_batches(loader: Any) -> Iterator[Iterator[Any]]:
    """Give a DataLoader's batches without end; its workers end with the block."""
    batches = forever(loader)
    try:
        yield batches
    finally:
        batches.close()  # type: ignore[attr-defined]
        loader._iterator = None


class Lmdb(MapStyle):
    """LMDB: one database, a record for each pair."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._database: Any = None
        self._owner = 0

    def __getitem__(self, pair_number: int) -> dict[str, Any]:
        return self.decode(self.read([pair_number])[0])

    def read(self, pair_numbers: Sequence[int]) -> list[bytes]:
        """Return some records, read in one transaction."""
        # An environment must not be used across a fork.
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._database = import_module("lmdb").open(str(self.copy), readonly=True, lock=False, readahead=False)
        with self._database.begin(buffers=False) as reading:
            return [reading.get(b"%012d" % pair_number) for pair_number in pair_numbers]

    @staticmethod
    def make_copy(request: Request) -> None:
        """Write all pairs under their numbers."""
        pairs = request.pairs
        map_size = 2 * sum(len(pairs.record(pair_number)) + 8192 for pair_number in range(len(pairs))) + (64 << 20)
        database = import_module("lmdb").open(str(request.copy), map_size=map_size)
        for start in range(0, len(pairs), _COMMIT):
            with database.begin(write=True) as writing:
                for pair_number in range(start, min(start + _COMMIT, len(pairs))):
                    writing.put(b"%012d" % pair_number, pairs.record(pair_number), append=True)
        database.sync(True)
        database.close()


class Lance(MapStyle):
    """Lance: one table of blobs; takes all rows of a batch at once, as Lance's own map-style dataset does."""

    # Lance does not survive a fork.
    context = "spawn"

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._columns = ["first", "second", "dataset", *(METADATA if request.full else ())]
        self._table: Any = None

    def __getitem__(self, pair_number: int) -> dict[str, Any]:
        return self.__getitems__([pair_number])[0]

    def __getitems__(self, pair_numbers: list[int]) -> list[dict[str, Any]]:
        if self._table is None:
            self._table = import_module("lance").dataset(str(self.copy / "pairs.lance"))
        return [self.decode(row) for row in self._table.take(pair_numbers, columns=self._columns).to_pylist()]

    @staticmethod
    def make_copy(request: Request) -> None:
        """Write all pairs as rows of a table, in their order."""
        arrow, pairs = import_module("pyarrow"), request.pairs
        fields = dict.fromkeys(("first", "second"), arrow.large_binary())
        fields |= dict.fromkeys(("dataset", "episode", "step"), arrow.int64())
        fields |= dict.fromkeys(("action", "state"), arrow.binary())
        schema = arrow.schema({**fields, "language": arrow.string()})
        groups = (range(len(pairs))[start : start + _ROWS] for start in range(0, len(pairs), _ROWS))
        batches = (arrow.RecordBatch.from_pylist(list(map(pairs.pair, group)), schema=schema) for group in groups)
        rows = arrow.RecordBatchReader.from_batches(schema, batches)
        import_module("lance").write_dataset(rows, str(request.copy / "pairs.lance"), schema=schema)


def import_torchvision() -> None:
    """Import torchvision, also a build that does not fit a PyTorch without CUDA.

    Such a build cannot load its compiled operators and then fails to extend two of them. No peer uses the operators,
    so declarations replace the two.
    """
    import torch

    try:
        import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        _DECLARED.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            _DECLARED[-1].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import_module("torchvision")
