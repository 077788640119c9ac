"""``python -m bench.peers``: the same pairs and the same JPEG decoder in what people would pick instead of our loader.

Each peer lives in a virtual environment of its own, ``--install`` makes them. All pairs of the mixture are exported
once, byte for byte; each peer makes its own copy of them, then gives batches in fresh processes, ``--repeat`` times in
alternating order. tf.data has no copy: it reads the RLDS source (``--source``), decodes and resizes while training.
Between the peers decoding alone is measured (`bench.measure.decode_limit`), and ``of limit`` is samples/s to the mean
of the slices before and after.

``first batch s`` counts from the start of the process. ``PSS MB`` is of all processes of a peer, the highest of some
looks beside the measured steps. ``copy s`` is what making the copy took, ``copy MB`` what it takes on disk (for ours
the converted root). ``off by`` is the largest deviation of a dataset's count from its weight in the measured steps, in
pairs. ``resume`` (to the exact next batch) and ``replay`` (of any step) are from documentation, see `bench.peers.list`.
The files come from the page cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.loader.sweep import PARAMETERS, Parameters
from bench.measure.child import ChildFailed, ask
from bench.measure.command import ended_by_kill, print_result, run_command
from bench.measure.machine import describe_machine
from bench.measure.points import Point, measure_points, median, tell
from bench.peers.export import export_pairs
from bench.peers.install import InstallFailed, install
from bench.peers.list import PEERS, VENVS, Peer
from bench.peers.plot import plot
from bench.peers.protocol import Export
from bench.peers.table import format_markdown, format_text, mixing, point_name
from stream.storage.arguments import Parser, whole
from stream.storage.errors import closest
from stream.storage.files import write_whole

RESULT_FILE = "peers.json"
_LIBRARIES = ("grain", "numpy", "simplejpeg")
_METADATA = ("full", "none")
_PATIENCE = 300.0
_RAW = ("counts", "keys", "limit_slices")


class Comparison:
    """One run: what was exported, the copies, and the points.

    Args:
        options: of the command line.
        work: a folder of this run alone.

    Raises:
        ArgumentError, FormatError: the pairs cannot be exported.
    """

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self._options, self._work = options, work
        self._parameters = Parameters(
            root=str(Path(options.root).resolve()),
            mixture=options.mixture,
            batch_size=options.batch_size,
            num_workers=options.num_workers,
            seed=options.seed,
        )
        tell("exporting the pairs")
        self._hashes = export_pairs(self._parameters, work / "export", most=options.max_pairs)
        self._export = Export(work / "export")
        self._limit: dict[str, Any] | None = None
        self.copies: dict[str, dict[str, Any]] = {}
        self.points = [
            Point(
                point_name(peer.name, variant, metadata, options.metadata),
                {"peer": peer.name, "variant": variant, "metadata": metadata},
            )
            for metadata in options.metadata
            for peer, variant in options.peers
        ]

    def run(self) -> dict[str, Any]:
        """Make the copies and measure all points; returns what ``--json`` prints."""
        self.copies["ours"] = {"bytes": sum(dataset["bytes"] for dataset in self._export.datasets), "seconds": None}
        for name in dict.fromkeys(point.parameters["peer"] for point in self.points):
            self._copy(PEERS[name])
        measure_points(self.points, self._measure, repeat=self._options.repeat, describe=_describe, after=self._keep)
        return self.result()

    def result(self) -> dict[str, Any]:
        """Return all figures that there are."""
        options = self._options
        points = []
        for point in self.points:
            told = point.as_dict()
            told["median"] = median(point.runs, leave_out=_RAW) if point.runs else None
            points.append(told)
        names = ("batch_size", "num_workers", "warmup", "steps", "repeat", "limit_s", "slice_s", "seed", "metadata")
        return {
            "parameters": {name: getattr(options, name) for name in names} | {"mixture": options.mixture},
            "machine": describe_machine(_LIBRARIES),
            "pairs": len(self._export),
            "datasets": len(self._export.datasets),
            "shape": list(self._export.shape),
            "weights": {dataset["name"]: dataset["weight"] for dataset in self._export.datasets},
            "peers": {name: _about(PEERS[name]) for name in dict.fromkeys(p.parameters["peer"] for p in self.points)},
            "copies": self.copies,
            "points": points,
        }

    def _keep(self) -> None:
        if self._options.out is not None:
            write_whole(self._options.out / RESULT_FILE, json.dumps(self.result(), indent=1) + "\n")

    def _copy(self, peer: Peer) -> None:
        try:
            self._python(peer)
            if peer.copies:
                tell(f"{peer.name}: making its copy")
                self.copies[peer.name] = self._ask(peer, "copy", "", "full")
        except ChildFailed as error:
            for point in self.points:
                if point.parameters["peer"] == peer.name:
                    point.error = str(error)

    def _measure(self, point: Point) -> dict[str, Any]:
        peer = PEERS[point.parameters["peer"]]
        before = self._limit or self._measure_limit()
        run = self._ask(peer, "measure", point.parameters["variant"], point.parameters["metadata"])
        self._limit = after = self._measure_limit()
        run["checked_pairs"] = check_pixels(run.pop("hashes"), self._hashes) if peer.name != "tfdata" else None
        run["mixing"] = mixing(run["counts"], self._export.weights)
        slices = [part for part in (before, after) if part]
        limit = statistics.fmean(part["pairs_per_s"] for part in slices) if slices else None
        run |= {"limit_samples_per_s": limit, "limit_slices": slices}
        run["ratio"] = run["samples_per_s"] / limit if limit else None
        return run

    def _measure_limit(self) -> dict[str, Any]:
        if not self._options.slice_s:
            return {}
        parameters = dataclasses.asdict(self._parameters)
        return ask("bench.peers.limit", {"parameters": parameters, "seconds": self._options.slice_s}, timeout=_PATIENCE)

    def _python(self, peer: Peer) -> str:
        """The interpreter for a peer; raises ChildFailed, saying what to do, if it cannot be run."""
        options = self._options
        if peer.name == "tfdata" and options.source is None:
            raise ChildFailed("reads RLDS datasets; give the folder that the root was converted from with --source")
        if peer.own:
            return sys.executable
        if options.python is not None:
            return str(options.python)
        python = peer.python(options.venvs)
        if not python.is_file():
            venvs = "" if str(options.venvs) == VENVS else f" --venvs {options.venvs}"
            raise ChildFailed(f"not installed; run: python -m bench.peers --install {peer.name}{venvs}")
        return str(python.absolute())

    def _ask(self, peer: Peer, do: str, variant: str, metadata: str) -> dict[str, Any]:
        options = self._options
        request = {
            "do": do,
            "export": str(self._work / "export"),
            "copy": str(self._work / peer.name),
            "batch_size": options.batch_size,
            "num_workers": options.num_workers,
            "warmup": options.warmup,
            "steps": options.steps,
            "limit_s": options.limit_s,
            "metadata": metadata,
            "variant": variant,
            "seed": options.seed,
            "source": None if options.source is None else str(options.source.resolve()),
            "asked": time.monotonic(),
        }
        return ask(peer.module, request, python=self._python(peer), timeout=options.limit_s + _PATIENCE)


def check_pixels(found: Sequence[str], known: set[str]) -> int:
    """Return how many pairs were looked at; raises ChildFailed if one has other pixels than any pair of the root."""
    wrong = sum(pixels not in known for pixels in found)
    if wrong:
        raise ChildFailed(f"{wrong} of {len(found)} pairs have other pixels than those of the root")
    return len(found)


def _describe(run: dict[str, Any]) -> str:
    beside = "" if run["ratio"] is None else f", {run['ratio']:.3f} of the limit"
    return f"{run['samples_per_s']:,.0f} samples/s{beside}"


def _about(peer: Peer) -> dict[str, str]:
    return {name: getattr(peer, name) for name in ("what", "resume", "replay", "source", "note")}


@contextmanager
def _folder(options: argparse.Namespace) -> Iterator[Path]:
    """A folder of this run alone, removed in the end."""
    options.work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="peers-", dir=options.work)).resolve()
    try:
        yield folder
    finally:
        if options.keep:
            tell(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


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
        description="Measure our loader beside what people would pick instead.",
        epilog=f"Peers: {', '.join(PEERS)}.",
    )
    seconds = PARAMETERS["limit_s"][0]
    flag = parser.add_argument
    flag("--install", type=_names, metavar="PEER,...|all", help="make the peers' environments, and nothing else")
    flag("--venvs", type=Path, default=Path(VENVS), metavar="DIR", help=f"where these are (default: {VENVS})")
    flag("--python", type=Path, metavar="PATH", help="an interpreter that has all peers, in place of these")
    flag("--peers", type=_peers, default=_peers("all"), metavar="PEER,...|all", help="also tfdata:sample and so on")
    flag("--root", default="build/demo/oxe", help="converted root (default: what `make demo` leaves)")
    flag("--mixture", default="oxe29", help="name of a mixture or dataset, or a YAML file (default: oxe29)")
    flag("--source", type=Path, metavar="DIR", help="RLDS datasets that the root was converted from, for tfdata")
    flag("--batch-size", type=whole(1), default=64, help="rows of a batch (default: 64)")
    flag("--num-workers", type=whole(1), default=2, help="worker processes, or threads of tf.data (default: 2)")
    flag("--warmup", type=whole(1), default=8, help="batches that are not measured (default: 8)")
    flag("--steps", type=whole(2), default=160, help="batches that are measured (default: 160)")
    flag("--limit-s", type=seconds, default=60.0, help="or as many as there are after so long (default: 60)")
    flag("--slice-s", type=seconds, default=1.0, help="of decoding alone between peers, 0 for none (default: 1)")
    flag("--metadata", type=_metadata, default=["full"], help="full, none (the dataset's number) or full,none")
    flag("--seed", type=whole(0), default=0, help="of the order of pairs (default: 0)")
    flag("--repeat", type=whole(1), default=3, help="measurements of each peer (default: 3)")
    flag("--max-pairs", type=whole(1), default=20_000, help="refuse mixtures with more pairs (default: 20000)")
    flag("--work", type=Path, default=Path("build"), metavar="DIR", help="where copies are made (default: build)")
    flag("--keep", action="store_true", help="do not remove the copies")
    flag("--out", type=Path, metavar="DIR", help=f"folder for {RESULT_FILE}, peers.md, peers.svg and peers.png")
    flag("--json", action="store_true", help="print all figures instead of a table")
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


def _compare(options: argparse.Namespace) -> dict[str, Any]:
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    with _folder(options) as work:
        result = Comparison(options, work).run()
    if options.out is not None:
        write_whole(options.out / RESULT_FILE, json.dumps(result, indent=1) + "\n")
        write_whole(options.out / "peers.md", format_markdown(result))
        plot(result, [options.out / "peers.svg", options.out / "peers.png"])
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(arguments)

    def work() -> int:
        if options.install:
            return _install(options)
        result = _compare(options)
        print_result(result, format_text, as_json=options.json)
        return 0 if any(point["repeats"] for point in result["points"]) else 1

    with ended_by_kill():
        return run_command(work, place=options.work)


if __name__ == "__main__":
    sys.exit(main())
