"""The run of a comparison: copies of the exported pairs, and points measured in turns with decoding alone."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.loader.parameters import Parameters
from bench.measure.child import ChildFailed, ask
from bench.measure.command import Command, Result, tell, work_folder
from bench.measure.options import number, option
from bench.measure.points import Point, Prepared, Repeated, combine, study
from bench.peers.list import VENVS, Peer
from bench.peers.protocol import PIXEL_DIGITS, Export
from bench.peers.table import SETTING, comparison_table, mixing, plot
from stream.base.arguments import whole
from stream.storage.files import write_whole

_PATIENCE = 300.0
SAMPLES = "samples.json"
"""File of an export with the hash of every sample, if all are to be checked."""
_RAW = ("counts", "keys", "limit_slices")


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(Repeated):
    """Options of all comparisons."""

    root: str = option("build/demo/oxe", str, "converted root, as `make demo` leaves it")
    mixture: str = option("oxe29", str, "name of a mixture or dataset, or a YAML file")
    split: str = option("train", str, "role of the mixture, or split expression")
    warmup: int = option(8, whole(1), "batches that are not measured")
    steps: int = option(160, whole(2), "batches that are measured")
    limit_s: float = option(60.0, number(0), "seconds after which measuring stops")
    slice_s: float = option(1.0, number(0), "seconds of decoding alone between points")
    seed: int = option(0, whole(0), "seed of the order of pairs")
    work: Path = option(Path("build"), Path, "folder for copies", metavar="DIR")
    keep: bool = option(False, bool, "do not remove the copies")


def comparison(
    *,
    points: Callable[[Any], tuple[Sequence[Peer], list[Point]]],
    export: Callable[[Any, Parameters, Path], set[str]],
    **about: Any,
) -> Command:
    """Return a command that compares peers.

    Args:
        points: Returns the peers and points of the options, from ``make_points``.
        export: Writes the pairs of a mixture to a folder and returns the hashes of their pixels.
        about: Further attributes of ``Command``; the options are ``ComparisonOptions``, and ``venvs``, ``python`` and
            ``source`` for peers that are not own.
    """

    @contextmanager
    def prepare(given: Any) -> Iterator[Prepared]:
        peers, chosen = points(given)
        with work_folder("peers", given.work, keep=given.keep) as work:
            tell("exporting the pairs")
            root = str(Path(given.root).resolve())
            parameters = Parameters(root=root, mixture=given.mixture, split=given.split, seed=given.seed)
            hashes = export(given, parameters, work / "export")
            run = _Comparison(given, peers, parameters, hashes, work)
            run.copy(chosen)
            yield Prepared(points=chosen, measure=run.measure, about=run.about)

    def write(result: Result, folder: Path) -> None:
        write_whole(folder / f"{about['name']}.md", comparison_table(result).markdown() + "\n")
        plot(result, folder / about["name"])

    return study(
        prepare=prepare,
        describe=_line,
        table=comparison_table,
        summarise=lambda points: [point.as_dict(leave_out=_RAW) for point in points],
        files=write,
        some_fail=True,
        libraries=("array-record", "grain", "lmdb", "numpy", "simplejpeg", "tensorflow", "torch", "webdataset"),
        **about,
    )


def make_points(peers: Sequence[tuple[Peer, str]], **values: Sequence[Any]) -> list[Point]:
    """Return all combinations of peers and parameters, peers changing fastest, so that they alternate.

    The name of a point has its peer, and the parameters that differ among the points.

    Args:
        peers: Peers and their variants.
        **values: Values of each parameter of ``SETTING``.
    """
    settings = combine({name: values[name] for name in SETTING})
    differing = combine({name: values[name] for name in SETTING if len(values[name]) > 1})
    return [
        Point(
            f"{peer.name}{variant and f':{variant}'}{f' {named.name}' if named.parameters else ''}",
            {"peer": peer.name, "variant": variant, **setting.parameters},
        )
        for setting, named in zip(settings, differing, strict=True)
        for peer, variant in peers
    ]


class _Comparison:
    """The copies and the measurements of a comparison, with ``hashes`` of the pixels and a folder ``work``."""

    def __init__(self, given: Any, peers: Sequence[Peer], parameters: Parameters, hashes: set[str], work: Path) -> None:
        self._given, self._parameters, self._hashes, self._work = given, parameters, hashes, work
        self._peers = {peer.name: peer for peer in peers}
        self._export = Export(work / "export")
        self._copies: dict[str, dict[str, Any]] = {}
        self._limit: tuple[int, dict[str, Any]] | None = None
        known = work / "export" / SAMPLES
        self._samples: dict[str, str] = json.loads(known.read_text()) if known.is_file() else {}
        self._checked: dict[str, int] = {}

    def copy(self, points: Sequence[Point]) -> None:
        """Make the copies of all peers; points of a peer that cannot make one fail."""
        for peer in self._peers.values():
            mine = [point for point in points if point.parameters["peer"] == peer.name]
            try:
                self._python(peer)
                if peer.copies:
                    tell(f"{peer.name}: making its copy")
                    most = max(point.parameters["num_workers"] for point in mine)
                    copied = self._ask(peer, "copy", {**mine[0].parameters, "num_workers": most})
                    self._copies[peer.name] = {key: copied[key] for key in ("bytes", "seconds", "files")}
                elif peer.own:
                    size = sum(dataset["bytes"] for dataset in self._export.datasets)
                    self._copies[peer.name] = {"bytes": size, "seconds": None, "files": None}
                if self._samples:
                    self._check(peer, mine[0])
            except ChildFailed as error:
                missing = peer.own and "ModuleNotFoundError" in str(error)
                for point in mine:
                    point.error = f"{error}; install the extra bench of this repository" if missing else str(error)

    def _check(self, peer: Peer, point: Point) -> None:
        """Compare every sample of a peer with those of the export, pixels if they are to be equal.

        Raises:
            ChildFailed: One differs.
        """
        tell(f"{peer.name}: checking {len(self._samples):,} samples")
        rows = min(point.parameters["batch_size"], len(self._samples))
        setting = {**point.parameters, "order": "sequential", "batch_size": rows}
        found = self._ask(peer, "check", setting, steps=2 * len(self._samples) // rows)["samples"]
        start = 0 if peer.exact else PIXEL_DIGITS
        wrong = [key for key, known in self._samples.items() if found.get(key, "")[start:] != known[start:]]
        if wrong:
            raise ChildFailed(
                f"{len(wrong):,} of {len(self._samples):,} samples differ, such as episode/step {wrong[0]}"
            )
        self._checked[peer.name] = len(self._samples)

    def measure(self, point: Point) -> dict[str, Any]:
        """Measure a point once, between two slices of decoding alone."""
        peer, workers = self._peers[point.parameters["peer"]], point.parameters["num_workers"]
        # The slice after one point is the slice before the next.
        before = self._limit[1] if self._limit and self._limit[0] == workers else self._measure_limit(workers)
        run = self._ask(peer, "measure", point.parameters)
        after = self._measure_limit(workers)
        self._limit = workers, after
        run["checked_pairs"] = check_pixels(run.pop("hashes"), self._hashes) if peer.exact else None
        run["mixing"] = mixing(run["counts"], self._export.weights)
        slices = [part for part in (before, after) if part]
        limit = statistics.fmean(part["pairs_per_s"] for part in slices) if slices else None
        run |= {"limit_samples_per_s": limit, "limit_slices": slices}
        run["ratio"] = run["samples_per_s"] / limit if limit else None
        return run

    def about(self) -> dict[str, Any]:
        """Return what the result says beside its points."""
        return {
            "pairs": len(self._export),
            "datasets": len(self._export.datasets),
            "shape": list(self._export.shape),
            "frames": self._export.frames,
            "checked": self._checked,
            "weights": {dataset["name"]: dataset["weight"] for dataset in self._export.datasets},
            "peers": {
                peer.name: {
                    key: getattr(peer, key)
                    for key in ("what", "resume", "replay", "source", "note", "exact", "versions")
                }
                for peer in self._peers.values()
            },
            "copies": self._copies,
        }

    def _measure_limit(self, workers: int) -> dict[str, Any]:
        if not self._given.slice_s:
            return {}
        names = ("root", "mixture", "split", "seed", "batch_size")
        loader = {name: getattr(self._parameters, name) for name in names} | self._export.about.get("loader", {})
        request = {"loader": loader, "processes": max(1, workers), "seconds": self._given.slice_s}
        return ask("bench.measure.decode_limit", request, timeout=_PATIENCE)

    def _python(self, peer: Peer) -> str:
        """Return the interpreter of a peer; raises ChildFailed if there is none."""
        given = self._given
        if peer.own:
            return sys.executable
        if peer.name == "tfdata" and given.source is None:
            raise ChildFailed("reads RLDS datasets; give the folder that the root was converted from with --source")
        if given.python is not None:
            return str(given.python)
        python = peer.python(given.venvs)
        if not python.is_file():
            venvs = "" if str(given.venvs) == VENVS else f" --venvs {given.venvs}"
            raise ChildFailed(
                f"not installed; run: python -m bench.peers --install {peer.environment or peer.name}{venvs}"
            )
        return str(python.absolute())

    def _ask(self, peer: Peer, do: str, setting: Mapping[str, Any], **other: Any) -> dict[str, Any]:
        given = self._given
        source = getattr(given, "source", None)
        request = {
            **{key: setting[key] for key in ("variant", *SETTING)},
            **{key: getattr(given, key) for key in ("warmup", "steps", "limit_s", "seed")},
            "adapter": peer.adapter,
            "do": do,
            "export": str(self._work / "export"),
            "copy": str(self._work / peer.name),
            "source": None if source is None else str(source.resolve()),
            "asked": time.monotonic(),
            **other,
        }
        return ask("bench.peers.protocol", request, python=self._python(peer), timeout=given.limit_s + _PATIENCE)


def check_pixels(found: Sequence[str], known: set[str]) -> int:
    """Return the number of checked pairs.

    Raises:
        ChildFailed: A pair has other pixels than all pairs of the root.
    """
    wrong = sum(pixels not in known for pixels in found)
    if wrong:
        raise ChildFailed(f"{wrong} of {len(found)} pairs have other pixels than those of the root")
    return len(found)


def _line(run: Mapping[str, Any]) -> str:
    beside = "" if run["ratio"] is None else f", {run['ratio']:.3f} of the limit"
    return f"{run['samples_per_s']:,.0f} samples/s{beside}"
