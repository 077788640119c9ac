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
documentation (`peers.yaml`). The files come from the page cache.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measure.options import known, one_of, option, several
from bench.measure.points import Point
from bench.peers.comparison import ComparisonOptions, comparison, make_points
from bench.peers.export import export_mixture
from bench.peers.list import PEERS, VENVS, InstallFailed, Peer
from stream.base.arguments import run_command, whole


def _peer(text: str) -> str:
    """Read ``peer`` or ``peer:variant``."""
    name, _, variant = text.partition(":")
    peer = PEERS[known(PEERS, "peer")(name)]
    if variant and variant not in peer.variants:
        variants = ", ".join(filter(None, peer.variants)) or "it has none"
        raise argparse.ArgumentTypeError(f"no variant {variant!r} of {name}; variants: {variants}")
    return text


def _peers(text: str) -> tuple[str, ...]:
    return tuple(PEERS) if text == "all" else several(_peer)(text)


@dataclass(frozen=True, kw_only=True)
class PeersOptions(ComparisonOptions):
    """Options of the command."""

    install: tuple[str, ...] | None = option(None, _peers, "make environments and exit", metavar="PEER,...|all")
    venvs: Path = option(Path(VENVS), Path, "folder of the environments", metavar="DIR")
    python: Path | None = option(None, Path, "an interpreter that has all peers, instead of these", metavar="PATH")
    peers: tuple[str, ...] = option(tuple(PEERS), _peers, "peers or peer:variant", metavar="PEER,...|all")
    source: Path | None = option(None, Path, "RLDS datasets of the root, for tfdata", metavar="DIR")
    batch_size: int = option(64, whole(1), "rows of a batch")
    num_workers: int = option(2, whole(1), "worker processes, or threads of tf.data")
    metadata: tuple[str, ...] = option(("full",), several(one_of(("full", "none"))), "full, none or full,none")
    max_pairs: int = option(20_000, whole(1), "refuse mixtures with more pairs")


def _points(given: PeersOptions) -> tuple[list[Peer], list[Point]]:
    chosen = []
    for name in given.peers:
        peer, _, variant = name.partition(":")
        chosen += [(PEERS[peer], one) for one in ([variant] if variant else PEERS[peer].variants)]
    points = make_points(
        list(dict.fromkeys(chosen)),
        metadata=given.metadata,
        order=["shuffled"],
        batch_size=[given.batch_size],
        num_workers=[given.num_workers],
    )
    return list(dict.fromkeys(peer for peer, _ in chosen)), points


COMMAND = comparison(
    name="peers",
    about="Compare our loader with the loaders that people use instead.",
    epilog=f"Peers: {', '.join(PEERS)}.",
    options=PeersOptions,
    points=_points,
    export=lambda given, parameters, folder: export_mixture(parameters, folder, most=given.max_pairs),
)


def _install(given: PeersOptions) -> int:
    failed = 0
    for name in dict.fromkeys(name.partition(":")[0] for name in given.install or ()):
        try:
            if not PEERS[name].own:
                PEERS[name].install(given.venvs)
        except InstallFailed as error:
            print(f"error: {error}", file=sys.stderr)
            failed = 1
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    given = COMMAND.parse(arguments)
    if given.install:
        return run_command(lambda: _install(given), path=given.venvs)
    return COMMAND.main(arguments)
