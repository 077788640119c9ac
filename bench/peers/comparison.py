"""The run of a comparison: copies of the exported pairs, and points measured in turns with decoding alone."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.loader.parameters import Parameters
from bench.measure.child import ChildFailed, ask
from bench.measure.machine import describe_machine
from bench.measure.points import Point, measure_points, tell
from bench.measure.sweep import duration
from bench.peers.list import VENVS, Peer
from bench.peers.plot import plot
from bench.peers.protocol import Export
from bench.peers.table import SETTING, comparison_table, mixing
from stream.storage.arguments import Parser, whole
from stream.storage.files import write_whole

_LIBRARIES = ("array-record", "grain", "lmdb", "numpy", "simplejpeg", "tensorflow", "torch", "webdataset")
_PATIENCE = 300.0
_RAW = ("counts", "keys", "limit_slices")


def add_options(parser: Parser, *, name: str) -> None:
    """Add the options of all comparisons; ``name`` is that of the files in --out."""
    flag = parser.add_argument
    flag("--root", default="build/demo/oxe", help="converted root (default: %(default)s, from `make demo`)")
    flag("--mixture", default="oxe29", help="name of a mixture or dataset, or a YAML file (default: %(default)s)")
    flag("--split", default="train", help="role of the mixture, or split expression (default: %(default)s)")
    flag("--warmup", type=whole(1), default=8, help="batches that are not measured (default: %(default)s)")
    flag("--steps", type=whole(2), default=160, help="batches that are measured (default: %(default)s)")
    flag("--limit-s", type=duration, default=60.0, help="seconds after which measuring stops (default: %(default)s)")
    flag("--slice-s", type=duration, default=1.0, help="seconds of decoding alone between points (default: 1)")
    flag("--seed", type=whole(0), default=0, help="seed of the order of pairs (default: %(default)s)")
    flag("--repeat", type=whole(1), default=3, help="measurements of each point (default: %(default)s)")
    flag("--work", type=Path, default=Path("build"), metavar="DIR", help="folder for copies (default: %(default)s)")
    flag("--keep", action="store_true", help="do not remove the copies")
    flag("--out", type=Path, metavar="DIR", help=f"folder for {name}.json, {name}.md, {name}.svg and {name}.png")
    flag("--json", action="store_true", help="print all figures instead of a table")


def make_points(peers: Sequence[tuple[Peer, str]], **values: Sequence[Any]) -> list[Point]:
    """Return all combinations of peers and parameters, peers changing fastest, so that they alternate.

    The name of a point has its peer, and the parameters that differ among the points.

    Args:
        peers: Peers and their variants.
        **values: Values of each parameter of ``SETTING``.
    """
    settings: list[dict[str, Any]] = [{}]
    for name in SETTING:
        settings = [{**setting, name: value} for setting in settings for value in values[name]]
    return [
        Point(
            " ".join(
                [
                    f"{peer.name}:{variant}" if variant else peer.name,
                    *(f"{name}={setting[name]}" for name in SETTING if len(values[name]) > 1),
                ]
            ),
            {"peer": peer.name, "variant": variant, **setting},
        )
        for setting in settings
        for peer, variant in peers
    ]


def compare(
    options: argparse.Namespace,
    peers: Sequence[Peer],
    points: Sequence[Point],
    export: Callable[[Parameters, Path], set[str]],
    *,
    name: str,
) -> dict[str, Any]:
    """Export the pairs, make the copies and measure all points; return the result that ``--json`` prints.

    Args:
        options: Options from ``add_options``; ``venvs``, ``python`` and ``source`` too for peers that are not own.
        peers: Peers of the points.
        points: Points from ``make_points``.
        export: Writes the pairs to a folder and returns the hashes of their pixels.
        name: Name of the files in ``--out``.

    Raises:
        ArgumentError, FormatError: The pairs cannot be exported.
        OSError: A folder cannot be written to.
    """
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)

    def keep(result: dict[str, Any]) -> None:
        if options.out is not None:
            write_whole(options.out / f"{name}.json", json.dumps(result, indent=1) + "\n")

    with _folder(options) as work:
        tell("exporting the pairs")
        parameters = Parameters(
            root=str(Path(options.root).resolve()), mixture=options.mixture, split=options.split, seed=options.seed
        )
        hashes = export(parameters, work / "export")
        comparison = _Comparison(options, peers, points, parameters, hashes, work)
        comparison.copy()
        measure_points(
            points,
            comparison.measure,
            repeat=options.repeat,
            describe=_describe,
            after=lambda: keep(comparison.result()),
        )
        result = comparison.result()
    keep(result)
    if options.out is not None:
        write_whole(options.out / f"{name}.md", comparison_table(result).markdown() + "\n")
        plot(result, options.out / name)
    return result


class _Comparison:
    """The copies and the measurements of a comparison, with ``hashes`` of the pixels and a folder ``work``."""

    def __init__(
        self,
        options: argparse.Namespace,
        peers: Sequence[Peer],
        points: Sequence[Point],
        parameters: Parameters,
        hashes: set[str],
        work: Path,
    ) -> None:
        self._options, self._points, self._parameters = options, points, parameters
        self._hashes, self._work = hashes, work
        self._peers = {peer.name: peer for peer in peers}
        self._export = Export(work / "export")
        self._limit: tuple[int, dict[str, Any]] | None = None
        self._copies: dict[str, dict[str, Any]] = {}

    def copy(self) -> None:
        """Make the copies; a peer that fails fails all its points."""
        for peer in self._peers.values():
            points = [point for point in self._points if point.parameters["peer"] == peer.name]
            try:
                self._python(peer)
                if peer.copies:
                    tell(f"{peer.name}: making its copy")
                    most = max(point.parameters["num_workers"] for point in points)
                    copied = self._ask(peer, "copy", {**points[0].parameters, "num_workers": most})
                    self._copies[peer.name] = {key: copied[key] for key in ("bytes", "seconds", "files")}
                elif peer.own:
                    size = sum(dataset["bytes"] for dataset in self._export.datasets)
                    self._copies[peer.name] = {"bytes": size, "seconds": None, "files": None}
            except ChildFailed as error:
                missing = peer.own and "ModuleNotFoundError" in str(error)
                for point in points:
                    point.error = f"{error}; install the extra bench of this repository" if missing else str(error)

    def measure(self, point: Point) -> dict[str, Any]:
        """Measure a point once, between two slices of decoding alone."""
        peer, workers = self._peers[point.parameters["peer"]], point.parameters["num_workers"]
        # The slice after one point is the slice before the next.
        before = self._limit[1] if self._limit and self._limit[0] == workers else self._measure_limit(workers)
        run = self._ask(peer, "measure", point.parameters)
        after = self._measure_limit(workers)
        self._limit = workers, after
        run["checked_pairs"] = check_pixels(run.pop("hashes"), self._hashes) if peer.name != "tfdata" else None
        run["mixing"] = mixing(run["counts"], self._export.weights)
        slices = [part for part in (before, after) if part]
        limit = statistics.fmean(part["pairs_per_s"] for part in slices) if slices else None
        run |= {"limit_samples_per_s": limit, "limit_slices": slices}
        run["ratio"] = run["samples_per_s"] / limit if limit else None
        return run

    def result(self) -> dict[str, Any]:
        """Return all figures so far."""
        names = ("mixture", "split", "warmup", "steps", "repeat", "limit_s", "slice_s", "seed")
        return {
            "parameters": {name: getattr(self._options, name) for name in names},
            "machine": describe_machine(_LIBRARIES),
            "pairs": len(self._export),
            "datasets": len(self._export.datasets),
            "shape": list(self._export.shape),
            "weights": {dataset["name"]: dataset["weight"] for dataset in self._export.datasets},
            "peers": {
                peer.name: {key: getattr(peer, key) for key in ("what", "resume", "replay", "source", "note")}
                for peer in self._peers.values()
            },
            "copies": self._copies,
            "points": [point.as_dict(leave_out=_RAW) for point in self._points],
        }

    def _measure_limit(self, workers: int) -> dict[str, Any]:
        seconds = self._options.slice_s
        if not seconds:
            return {}
        parameters = dataclasses.asdict(dataclasses.replace(self._parameters, num_workers=workers))
        return ask("bench.peers.limit", {"parameters": parameters, "seconds": seconds}, timeout=_PATIENCE)

    def _python(self, peer: Peer) -> str:
        """Return the interpreter of a peer; raises ChildFailed if there is none."""
        if peer.own:
            return sys.executable
        options = self._options
        if peer.name == "tfdata" and options.source is None:
            raise ChildFailed("reads RLDS datasets; give the folder that the root was converted from with --source")
        if options.python is not None:
            return str(options.python)
        python = peer.python(options.venvs)
        if not python.is_file():
            venvs = "" if str(options.venvs) == VENVS else f" --venvs {options.venvs}"
            raise ChildFailed(f"not installed; run: python -m bench.peers --install {peer.name}{venvs}")
        return str(python.absolute())

    def _ask(self, peer: Peer, do: str, setting: Mapping[str, Any]) -> dict[str, Any]:
        options = self._options
        source = getattr(options, "source", None)
        request = {
            **{key: setting[key] for key in ("variant", *SETTING)},
            **{key: getattr(options, key) for key in ("warmup", "steps", "limit_s", "seed")},
            "do": do,
            "export": str(self._work / "export"),
            "copy": str(self._work / peer.name),
            "source": None if source is None else str(source.resolve()),
            "asked": time.monotonic(),
        }
        return ask(peer.module, request, python=self._python(peer), timeout=options.limit_s + _PATIENCE)


def check_pixels(found: Sequence[str], known: set[str]) -> int:
    """Return the number of checked pairs.

    Raises:
        ChildFailed: A pair has other pixels than all pairs of the root.
    """
    wrong = sum(pixels not in known for pixels in found)
    if wrong:
        raise ChildFailed(f"{wrong} of {len(found)} pairs have other pixels than those of the root")
    return len(found)


def _describe(run: Mapping[str, Any]) -> str:
    beside = "" if run["ratio"] is None else f", {run['ratio']:.3f} of the limit"
    return f"{run['samples_per_s']:,.0f} samples/s{beside}"


@contextmanager
def _folder(options: argparse.Namespace) -> Iterator[Path]:
    """Give a folder for this run alone, removed in the end."""
    options.work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="peers-", dir=options.work)).resolve()
    try:
        yield folder
    finally:
        if options.keep:
            tell(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
