"""``python -m bench.formats``: the same frame pairs in six formats: speed of reading, time of writing, size on disk.

Pairs of a converted root are stored without metadata as loose JPEG files, WebDataset shards, TFRecord, LMDB,
ArrayRecord for plain Grain, and in our format, and each store is read by its library. The formats are compared as
`bench.peers` compares loaders, by the same protocol and with the same columns, in this environment. Every batch size
and number of workers in ``--batch-sizes`` and ``--workers`` is measured in both ``--orders``.

A store of several files has at least one for each worker. All decode with simplejpeg, except tf.data. The pixels of
each run are compared with those of the root.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from bench.measure.command import print_result, run_command, wholes
from bench.peers.comparison import add_options, compare, make_points
from bench.peers.export import export_frames
from bench.peers.list import Peer
from bench.peers.protocol import ORDERS
from bench.peers.table import comparison_table
from stream.storage.arguments import Parser, interrupt_on_kill, whole
from stream.storage.errors import closest


def _format(name: str, module: str, what: str) -> Peer:
    return Peer(name=name, module=f"bench.{module}", what=what, own=True)


_ALL = (
    _format("jpeg", "formats.jpeg", "two files a pair, torch DataLoader"),
    _format(
        "webdataset",
        "peers.loaders.webdataset",
        "tar shards, torch DataLoader; shuffled: shards drawn at random and a buffer of 256 pairs, not all pairs",
    ),
    _format(
        "tfrecord",
        "formats.tfrecord",
        "tf.data with its own decoder (the same pixels), workers are threads; shuffled: order of files and a buffer of "
        "1,000 pairs, not all pairs",
    ),
    _format("lmdb", "peers.loaders.lmdb", "one database, torch DataLoader"),
    _format("arrayrecord", "peers.loaders.grain", "group_size:1, grain.MapDataset with mp_prefetch"),
    _format("ours", "formats.ours", "stream.make_loader; without workers it decodes in threads"),
)
FORMATS = {peer.name: peer for peer in _ALL}


def _several(known: Sequence[str], noun: str) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = list(dict.fromkeys(part.strip() for part in text.split(",")))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"no {noun} {name!r}; {closest(name, known, noun=f'{noun}s')}")
        return names

    return read


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m bench.formats",
        description="Store the same frame pairs in several formats and measure how fast each gives batches.",
    )
    flag, names = parser.add_argument, ",".join(FORMATS)
    flag("--pairs", type=whole(1), help="number of pairs, spread over the mixture (default: all)")
    flag("--formats", type=_several(list(FORMATS), "format"), default=list(FORMATS), metavar="A,B", help=f"of {names}")
    flag("--orders", type=_several(ORDERS, "order"), default=list(ORDERS), metavar="A,B", help=",".join(ORDERS))
    flag("--batch-sizes", type=wholes(1), default=[64], metavar="A,B", help="rows of a batch (default: 64)")
    flag("--workers", type=wholes(0), default=[2], metavar="A,B", help="worker processes (default: 2)")
    add_options(parser, name="formats")
    return parser


def _compare(options: argparse.Namespace) -> dict[str, Any]:
    formats = [FORMATS[name] for name in options.formats]
    points = make_points(
        [(peer, "") for peer in formats],
        metadata=["none"],
        order=options.orders,
        batch_size=options.batch_sizes,
        num_workers=options.workers,
    )
    return compare(
        options,
        formats,
        points,
        lambda parameters, folder: export_frames(parameters, folder, pairs=options.pairs),
        name="formats",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    options = _parser().parse_args(arguments)

    def work() -> int:
        result = _compare(options)
        print_result(result, lambda result: comparison_table(result).text(), as_json=options.json)
        return 0 if any(point["repeats"] for point in result["points"]) else 1

    interrupt_on_kill()
    return run_command(work, place=options.work)
