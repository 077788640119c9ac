"""``python -m bench.formats``: the same frame pairs in six formats: speed of reading, time of writing, size on disk.

Pairs of a converted root are stored without metadata as loose JPEG files, WebDataset shards, TFRecord, LMDB,
ArrayRecord for plain Grain, and in our format, and each store is read by its library. The formats are compared as
`bench.peers` compares loaders, by the same protocol and with the same columns, in this environment. Every batch size
and number of workers in ``--batch-sizes`` and ``--workers`` is measured in both ``--orders``.

A store of several files has at least one for each worker. All decode with simplejpeg, except tf.data. The pixels of
each run are compared with those of the root.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.measure.options import known, option, several, wholes
from bench.measure.points import Point
from bench.peers.comparison import ComparisonOptions, comparison, make_points
from bench.peers.export import export_frames
from bench.peers.list import Peer
from bench.peers.protocol import ORDERS
from stream.base.arguments import whole

_ADAPTERS = {
    "jpeg": ("peers.loaders.stores:Jpeg", "two files a pair, torch DataLoader"),
    "webdataset": (
        "peers.loaders.streams:Webdataset",
        "tar shards, torch DataLoader; shuffled: shards drawn at random and a buffer of 256 pairs, not all pairs",
    ),
    "tfrecord": (
        "peers.loaders.stores:Tfrecord",
        "tf.data with its own decoder (the same pixels), workers are threads; shuffled: order of files and a buffer of "
        "1,000 pairs, not all pairs",
    ),
    "lmdb": ("peers.loaders.torch:Lmdb", "one database, torch DataLoader"),
    "arrayrecord": ("peers.loaders.streams:Grain", "group_size:1, grain.MapDataset with mp_prefetch"),
    "ours": (
        "peers.loaders.stores:Converted",
        "stream.make_loader; its copy is a conversion; without workers it decodes in threads",
    ),
}
FORMATS = {
    name: Peer(name=name, adapter=f"bench.{adapter}", what=what, own=True)
    for name, (adapter, what) in _ADAPTERS.items()
}


@dataclass(frozen=True, kw_only=True)
class FormatsOptions(ComparisonOptions):
    """Options of the command."""

    pairs: int | None = option(None, whole(1), "number of pairs, spread over the mixture; by default all")
    formats: tuple[str, ...] = option(tuple(FORMATS), several(known(FORMATS, "format")), "formats", metavar="A,B")
    orders: tuple[str, ...] = option(ORDERS, several(known(ORDERS, "order")), "orders of pairs", metavar="A,B")
    batch_sizes: tuple[int, ...] = option((64,), wholes(1), "rows of a batch", metavar="A,B")
    workers: tuple[int, ...] = option((2,), wholes(0), "worker processes", metavar="A,B")


def _points(given: FormatsOptions) -> tuple[list[Peer], list[Point]]:
    formats = [FORMATS[name] for name in given.formats]
    points = make_points(
        [(peer, "") for peer in formats],
        metadata=["none"],
        order=given.orders,
        batch_size=given.batch_sizes,
        num_workers=given.workers,
    )
    return formats, points


COMMAND = comparison(
    name="formats",
    about="Store the same frame pairs in several formats and measure how fast each gives batches.",
    options=FormatsOptions,
    points=_points,
    export=lambda given, parameters, folder: export_frames(parameters, folder, pairs=given.pairs),
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
