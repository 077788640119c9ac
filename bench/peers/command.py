"""``python -m bench.peers``: the same pairs and the same JPEG decoder in the loaders that people use instead of ours.

Each peer has a virtual environment of its own, which ``--install`` makes. All pairs of the mixture are exported once,
byte for byte. Each peer makes its own copy of them, then gives batches in fresh processes, ``--repeat`` times in
alternating order. tf.data has no copy: it reads the RLDS source (``--source``), and decodes and resizes while training.
Between the points decoding alone is measured (`bench.measure.decode_limit`); ``of limit`` is samples/s divided by the
mean of the slices before and after.

``first batch s`` counts from the start of the process. ``memory MB`` is the proportional set size of all processes of a
peer, the highest of some samples outside the measured steps. ``copy s`` is the time to make the copy, ``copy MB`` its
size on disk (of ours: the converted root). ``off by`` is the largest difference, in pairs, between a dataset's count in
the measured steps and its weight. ``resume`` (to the exact next batch) and ``replay`` (of any step) are from
documentation (`bench.peers.list`). The files come from the page cache.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.measure.command import print_result, run_command
from bench.peers.comparison import add_options, compare, make_points
from bench.peers.export import export_mixture
from bench.peers.install import InstallFailed, install
from bench.peers.list import PEERS, VENVS, Peer
from bench.peers.table import comparison_table
from stream.storage.arguments import Parser, interrupt_on_kill, whole
from stream.storage.errors import closest

_METADATA = ("full", "none")


def _names(text: str) -> list[str]:
    names = list(PEERS) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        peer, _, variant = name.partition(":")
        if peer not in PEERS:
            raise argparse.ArgumentTypeError(f"no peer {peer!r}; {closest(peer, PEERS, noun='peers')}")
        if variant and variant not in PEERS[peer].variants:
            known = ", ".join(filter(None, PEERS[peer].variants)) or "it has none"
            raise argparse.ArgumentTypeError(f"no variant {variant!r} of {peer}; variants: {known}")
    return list(dict.fromkeys(names))


def _peers(text: str) -> list[tuple[Peer, str]]:
    chosen = []
    for name in _names(text):
        peer, _, variant = name.partition(":")
        chosen += [(PEERS[peer], one) for one in ([variant] if variant else PEERS[peer].variants)]
    return list(dict.fromkeys(chosen))


def _metadata(text: str) -> list[str]:
    values = list(dict.fromkeys(value.strip() for value in text.split(",")))
    if wrong := [value for value in values if value not in _METADATA]:
        raise argparse.ArgumentTypeError(f"found {wrong[0]!r}, expected full, none or full,none")
    return values


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m bench.peers",
        description="Compare our loader with the loaders that people use instead.",
        epilog=f"Peers: {', '.join(PEERS)}.",
    )
    flag = parser.add_argument
    flag("--install", type=_names, metavar="PEER,...|all", help="make the peers' environments and exit")
    flag("--venvs", type=Path, default=Path(VENVS), metavar="DIR", help="folder of these (default: %(default)s)")
    flag("--python", type=Path, metavar="PATH", help="an interpreter that has all peers, instead of these")
    flag("--peers", type=_peers, default=_peers("all"), metavar="PEER,...|all", help="peers or peer:variant to compare")
    flag("--source", type=Path, metavar="DIR", help="RLDS datasets that the root was converted from, for tfdata")
    flag("--batch-size", type=whole(1), default=64, help="rows of a batch (default: %(default)s)")
    flag("--num-workers", type=whole(1), default=2, help="worker processes, or threads of tf.data (default: 2)")
    flag("--metadata", type=_metadata, default=["full"], help="full, none (the dataset's number) or full,none")
    flag("--max-pairs", type=whole(1), default=20_000, help="refuse mixtures with more pairs (default: %(default)s)")
    add_options(parser, name="peers")
    return parser


def _install(options: argparse.Namespace) -> int:
    failed = 0
    for name in dict.fromkeys(name.partition(":")[0] for name in options.install):
        if PEERS[name].own:
            continue
        try:
            install(PEERS[name], options.venvs, lambda line: print(line, flush=True))
        except InstallFailed as error:
            print(f"error: {error}", file=sys.stderr)
            failed = 1
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    options = _parser().parse_args(arguments)

    def work() -> int:
        if options.install:
            return _install(options)
        points = make_points(
            options.peers,
            metadata=options.metadata,
            order=["shuffled"],
            batch_size=[options.batch_size],
            num_workers=[options.num_workers],
        )
        result = compare(
            options,
            list(dict.fromkeys(peer for peer, _ in options.peers)),
            points,
            lambda parameters, folder: export_mixture(parameters, folder, most=options.max_pairs),
            name="peers",
        )
        print_result(result, lambda result: comparison_table(result).text(), as_json=options.json)
        return 0 if any(point["repeats"] for point in result["points"]) else 1

    interrupt_on_kill()
    return run_command(work, place=options.work)
