"""The loader of this repository, as a peer of the others."""

from __future__ import annotations

from contextlib import closing

import stream
from bench.peers.protocol import Request
from stream.loader.iterator import LoaderIterator


class Ours:
    """The converted root itself; without metadata batches have the dataset's number."""

    @staticmethod
    def open_batches(request: Request) -> closing[LoaderIterator]:
        """Return the loader's batches."""
        about = request.pairs.about
        loader = stream.make_loader(
            about["root"],
            about["mixture"],
            split=about["split"],
            batch_size=request.batch_size,
            num_workers=request.num_workers,
            metadata="full" if request.full else "dataset_only",
            seed=request.seed,
        )
        return closing(iter(loader))
