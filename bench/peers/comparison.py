"""The run of a comparison: copies of the exported samples, and points measured in turns with decoding alone."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.loader.parameters import Parameters
from bench.measure.child import ChildFailed, ask
from bench.measure.command import tell
from bench.measure.points import Point, combine
from bench.peers.list import VENVS, Peer
from bench.peers.protocol import PIXEL_DIGITS, Export
from bench.peers.table import SETTING, mixing
from bench.peers.windows import SAMPLES

_PATIENCE_S = 300.0
RAW_FIGURES = ("counts", "keys", "limit_slices")
"""Figures of a run without a median."""


def make_points(peers: Sequence[Peer], **values: Sequence[Any]) -> list[Point]:
    """Return all combinations of peers and parameters, peers changing fastest, so that they alternate.

    The name of a point has its peer, and the parameters that differ among the points.
    """
    settings = combine({name: values[name] for name in SETTING})
    differing = combine({name: values[name] for name in SETTING if len(values[name]) > 1})
    return [
        Point(f"{peer.name}{f' {shown.name}' if shown.parameters else ''}", {"peer": peer.name, **setting.parameters})
        for setting, shown in zip(settings, differing, strict=True)
        for peer in peers
    ]


class Comparison:
    """Copies and measurements of the peers of a study."""

    def __init__(self, options: Any, peers: Sequence[Peer], parameters: Parameters, hashes: set[str], work: Path):
        self._options, self._parameters, self._hashes, self._work = options, parameters, hashes, work
        self._peers = {peer.name: peer for peer in peers}
        self._export = Export(work / "export")
        self._copies: dict[str, dict[str, Any]] = {}
        self._limits: dict[int, dict[str, Any]] = {}
        samples_file = work / "export" / SAMPLES
        self._samples: dict[str, str] = json.loads(samples_file.read_text()) if samples_file.is_file() else {}
        self._checked: dict[str, int] = {}

    def copy(self, points: Sequence[Point]) -> None:
        """Make the copies of all peers; points of a peer that cannot make its copy fail."""
        for peer in self._peers.values():
            peer_points = [point for point in points if point.parameters["peer"] == peer.name]
            try:
                self._python(peer)
                if peer.copies:
                    tell(f"{peer.name}: making its copy")
                    num_workers = max(point.parameters["num_workers"] for point in peer_points)
                    copied = self._ask(peer, "copy", {**peer_points[0].parameters, "num_workers": num_workers})
                    self._copies[peer.name] = {key: copied[key] for key in ("bytes", "seconds", "files")}
                elif peer.own:
                    num_bytes = sum(dataset["bytes"] for dataset in self._export.datasets)
                    self._copies[peer.name] = {"bytes": num_bytes, "seconds": None, "files": None}
                if self._samples:
                    self._check(peer, peer_points[0])
            except ChildFailed as error:
                missing = peer.own and "ModuleNotFoundError" in str(error)
                for point in peer_points:
                    point.error = f"{error}; install the extra bench of this repository" if missing else str(error)

    def _check(self, peer: Peer, point: Point) -> None:
        """Compare every sample of a peer with those of the export; raises ChildFailed if one differs.

        Pixels are compared for exact peers only.
        """
        tell(f"{peer.name}: checking {len(self._samples):,} samples")
        rows = min(point.parameters["batch_size"], len(self._samples))
        setting = {**point.parameters, "order": "sequential", "batch_size": rows}
        hashes = self._ask(peer, "check", setting, steps=2 * len(self._samples) // rows)["samples"]
        start = 0 if peer.exact else PIXEL_DIGITS
        wrong = [key for key, expected in self._samples.items() if hashes.get(key, "")[start:] != expected[start:]]
        if wrong:
            counts = f"{len(wrong):,} of {len(self._samples):,}"
            raise ChildFailed(f"{counts} samples differ, such as episode/step {wrong[0]}")
        self._checked[peer.name] = len(self._samples)

    def measure(self, point: Point) -> dict[str, Any]:
        """Measure a point once, between two slices of decoding alone."""
        peer, num_workers = self._peers[point.parameters["peer"]], point.parameters["num_workers"]
        # The slice after one point is the slice before the next.
        before = self._limits.pop(num_workers, None) or self._measure_limit(num_workers)
        run = self._ask(peer, "measure", point.parameters)
        after = self._measure_limit(num_workers)
        self._limits = {num_workers: after}
        run["checked_pairs"] = check_pixels(run.pop("hashes"), self._hashes) if peer.exact else None
        run["mixing"] = mixing(run["counts"], self._export.weights)
        slices = [turn for turn in (before, after) if turn]
        limit = statistics.fmean(turn["pairs_per_s"] for turn in slices) if slices else None
        run |= {"limit_samples_per_s": limit, "limit_slices": slices}
        run["ratio"] = run["samples_per_s"] / limit if limit else None
        return run

    def about(self) -> dict[str, Any]:
        """Return the entries of the result besides its points."""
        shown = ("what", "resume", "replay", "source", "note", "exact", "versions")
        return {
            "pairs": len(self._export),
            "datasets": len(self._export.datasets),
            "shape": list(self._export.shape),
            "frames": self._export.frames,
            "checked": self._checked,
            "weights": {dataset["name"]: dataset["weight"] for dataset in self._export.datasets},
            "peers": {peer_name: {key: getattr(peer, key) for key in shown} for peer_name, peer in self._peers.items()},
            "copies": self._copies,
        }

    def _measure_limit(self, num_workers: int) -> dict[str, Any]:
        if not self._options.slice_s:
            return {}
        names = ("root", "mixture", "split", "seed", "batch_size")
        loader = {name: getattr(self._parameters, name) for name in names} | self._export.about.get("loader", {})
        request = {"loader": loader, "processes": max(1, num_workers), "seconds": self._options.slice_s}
        return ask("bench.measure.decode_limit", request, timeout=_PATIENCE_S)

    def _python(self, peer: Peer) -> str:
        """Return the interpreter of a peer; raises ChildFailed if it does not exist."""
        options = self._options
        if peer.own:
            return sys.executable
        if peer.name == "tfdata" and options.source is None:
            raise ChildFailed("reads RLDS datasets; give the folder that the root was converted from with --source")
        if options.python is not None:
            return str(options.python)
        python = peer.python(options.venvs)
        if not python.is_file():
            venvs = "" if str(options.venvs) == VENVS else f" --venvs {options.venvs}"
            missing = f"{peer.environment or peer.name}{venvs}"
            raise ChildFailed(f"not installed; run: python -m bench.peers --install {missing}")
        return str(python.absolute())

    def _ask(self, peer: Peer, do: str, setting: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
        options = self._options
        request = {
            **{key: setting[key] for key in SETTING},
            **{key: getattr(options, key) for key in ("warmup", "steps", "limit_s", "seed")},
            "adapter": peer.adapter,
            "do": do,
            "export": str(self._work / "export"),
            "copy": str(self._work / peer.name),
            "source": None if options.source is None else str(options.source.resolve()),
            "asked": time.monotonic(),
            **changes,
        }
        return ask("bench.peers.protocol", request, python=self._python(peer), timeout=options.limit_s + _PATIENCE_S)


def check_pixels(hashes: Sequence[str], expected: set[str]) -> int:
    """Return the number of checked pairs; raises ChildFailed if a pair has other pixels than all pairs of the root."""
    wrong = sum(pixels not in expected for pixels in hashes)
    if wrong:
        raise ChildFailed(f"{wrong} of {len(hashes)} pairs have other pixels than those of the root")
    return len(hashes)
