"""Loose JPEG files: two files a pair and a CSV file of their names, read by PyTorch's DataLoader."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bench.peers.loaders.torch import dataset_batches
from bench.peers.protocol import Decoder, Request, serve

_FOLDER_FILES = 1000


def make_copy(request: Request) -> None:
    """Write the files, at most 1,000 a folder, and ``index.csv``."""
    with (request.copy / "index.csv").open("w", newline="") as file:
        index = csv.writer(file)
        index.writerow(("first", "second"))
        for number in range(len(request.pairs)):
            pair = request.pairs.pair(number)
            folder = f"{2 * number // _FOLDER_FILES:05d}"
            (request.copy / folder).mkdir(exist_ok=True)
            names = [f"{folder}/{number:08d}-{frame}.jpg" for frame in (0, 1)]
            for name, frame in zip(names, ("first", "second"), strict=True):
                (request.copy / name).write_bytes(pair[frame])
            index.writerow(names)


class _Pairs:
    def __init__(self, request: Request) -> None:
        self._folder, self._decode = request.copy, Decoder(request)
        with (request.copy / "index.csv").open(newline="") as file:
            self._rows = list(csv.DictReader(file))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        pair = {frame: Path(self._folder, name).read_bytes() for frame, name in self._rows[place].items()}
        return self._decode({**pair, "dataset": 0})


def open_batches(request: Request) -> AbstractContextManager[Iterator[Any]]:
    """Give batches of pairs."""
    return dataset_batches(request, _Pairs(request))


if __name__ == "__main__":
    sys.exit(serve(open_batches, make_copy))
