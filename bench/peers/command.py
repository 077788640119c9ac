"""``python -m bench.peers``: the same samples and the same JPEG decoder in the loaders that people use instead of ours.

``--study`` chooses the samples and the loaders (`peers.yaml`):

- ``pairs``: the pairs of a mixture, with their weights. tf.data makes no copy. It reads the RLDS source (``--source``),
  and decodes and resizes while training.
- ``formats``: ``--pairs`` frame pairs without metadata as loose JPEG files, WebDataset shards, TFRecord, LMDB,
  ArrayRecord for plain Grain, and in our format. All run in this environment. All but tf.data decode with simplejpeg.
- ``windows``: a window around every step of one dataset (``--mixture``) of a root in the layout ``frames``. A window
  has ``--window`` frames up to the step and ``--action-steps`` actions from it on. Beyond an episode the closest step
  is repeated and masked. LeRobot reads an export of ``pairstream export``, its frames as JPEGs or as its own AV1 video.
  Every sample of every loader is compared first: actions, masks, and the pixels of all but video.

Peers have separate virtual environments, which ``--install`` makes. Samples are exported once, byte for byte. Each peer
makes its own copy of them, then gives batches in fresh processes, ``--repeat`` times in alternating order. Between the
points decoding alone is measured; ``of limit`` is samples/s divided by the mean of the slices before and after. The
pixels of each run are compared with those of the root.

``first batch s`` counts from the start of the process. ``memory MB`` is the highest proportional set size of all
processes. ``copy MB`` is the size of the copy on disk (of ours: the converted root). ``off by`` is the largest
difference, in pairs, between a dataset's count and its weight. ``resume`` (to the exact next batch) and ``replay`` (of
any step) are from documentation. The files come from the page cache.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.loader.parameters import Parameters
from bench.measure.child import BenchFailed
from bench.measure.command import Result, tell, work_folder
from bench.measure.options import number, one_of, option, several, wholes
from bench.measure.points import Prepared, Repeated, study
from bench.peers.comparison import RAW_FIGURES, Comparison, make_points
from bench.peers.export import export_frames, export_pairs
from bench.peers.list import PEERS, STUDIES, VENVS
from bench.peers.protocol import ORDERS
from bench.peers.table import comparison_table, plot
from bench.peers.windows import export_windows
from stream.base.arguments import run_command, whole_number
from stream.base.errors import ArgumentError, closest
from stream.storage.files import write_atomically


@dataclass(frozen=True, kw_only=True)
class PeersOptions(Repeated):
    """Options of the command."""

    install: tuple[str, ...] | None = option(None, several(str), "make environments and exit", metavar="PEER,...|all")
    venvs: Path = option(Path(VENVS), Path, "folder of the environments", metavar="DIR")
    python: Path | None = option(None, Path, "an interpreter that has all peers, instead of these", metavar="PATH")
    study: str = option("pairs", one_of(tuple(STUDIES)), f"one of {', '.join(STUDIES)}")
    peers: tuple[str, ...] = option(("all",), several(str), "peers of the study", metavar="PEER,...|all")
    root: str = option("build/demo/oxe", str, "converted root, as `make demo` leaves it")
    mixture: str = option("oxe29", str, "name of a mixture or dataset, or a YAML file; one dataset for windows")
    split: str = option("train", str, "role of the mixture, or split expression")
    source: Path | None = option(None, Path, "RLDS datasets of the root, for tfdata", metavar="DIR")
    pairs: int | None = option(
        None, whole_number(1), "number of pairs for formats, spread over the mixture; by default all"
    )
    camera: str = option("primary", str, "role or name of the camera of windows")
    window: int = option(8, whole_number(1), "frames of a window, the last one of step t")
    action_steps: int = option(16, whole_number(1), "actions of a window, the first one of step t")
    max_samples: int = option(20_000, whole_number(1), "refuse data with more samples, because each peer makes a copy")
    metadata: tuple[str, ...] | None = option(None, several(one_of(("full", "none"))), "full, none or full,none")
    orders: tuple[str, ...] = option(("shuffled",), several(one_of(ORDERS)), "orders of samples", metavar="A,B")
    batch_size: tuple[int, ...] = option((64,), wholes(1), "rows of a batch", metavar="A,B")
    num_workers: tuple[int, ...] = option((2,), wholes(0), "worker processes, or threads of tf.data", metavar="A,B")
    warmup: int = option(8, whole_number(1), "batches that are not measured")
    steps: int = option(160, whole_number(2), "batches that are measured")
    limit_s: float = option(60.0, number(0), "seconds after which measuring stops")
    slice_s: float = option(1.0, number(0), "seconds of decoding alone between points")
    seed: int = option(0, whole_number(0), "seed of the order of samples")
    work: Path = option(Path("build"), Path, "folder for copies", metavar="DIR")
    keep: bool = option(False, bool, "do not remove the copies")

    def __post_init__(self) -> None:
        for option_name, available in (("peers", STUDIES[self.study]), ("install", PEERS)):
            if (names := getattr(self, option_name)) == ("all",):
                object.__setattr__(self, option_name, tuple(available))
            elif unknown := [peer_name for peer_name in names or () if peer_name not in available]:
                raise ArgumentError(f"no peer {unknown[0]!r}; {closest(unknown[0], available, noun='peers')}")
        if self.metadata is None:
            object.__setattr__(self, "metadata", ("none" if self.study == "formats" else "full",))


def _export(options: PeersOptions, parameters: Parameters, folder: Path) -> set[str]:
    """Write the samples of a study to a folder, and return the hashes of their pixels."""
    if options.study == "formats":
        return export_frames(parameters, folder, pairs=options.pairs)
    if options.study == "pairs":
        return export_pairs(parameters, folder, max_pairs=options.max_samples)
    window = {name: getattr(options, name) for name in ("camera", "window", "action_steps")}
    return export_windows(parameters, folder, max_steps=options.max_samples, **window)


@contextmanager
def _prepare(options: PeersOptions) -> Iterator[Prepared]:
    peers = [STUDIES[options.study][peer_name] for peer_name in options.peers]
    sizes = {"batch_size": options.batch_size, "num_workers": options.num_workers}
    points = make_points(peers, metadata=options.metadata or (), order=options.orders, **sizes)
    with work_folder("peers", options.work, keep=options.keep) as work:
        tell("exporting the samples")
        root = str(Path(options.root).resolve())
        parameters = Parameters(root=root, mixture=options.mixture, split=options.split, seed=options.seed)
        hashes = _export(options, parameters, work / "export")
        comparison = Comparison(options, peers, parameters, hashes, work)
        comparison.copy(points)
        yield Prepared(points=points, measure=comparison.measure, about=comparison.about)


def _write(result: Result, folder: Path) -> None:
    write_atomically(folder / "peers.md", comparison_table(result).markdown() + "\n")
    plot(result, folder / "peers")


def _describe(figures: dict[str, Any]) -> str:
    limit = "" if figures["ratio"] is None else f", {figures['ratio']:.3f} of the limit"
    return f"{figures['samples_per_s']:,.0f} samples/s{limit}"


COMMAND = study(
    name="peers",
    about="Compare our loader with the loaders that people use instead.",
    epilog="; ".join(f"peers of {name}: {', '.join(peers)}" for name, peers in STUDIES.items()),
    options=PeersOptions,
    prepare=_prepare,
    describe=_describe,
    table=comparison_table,
    summarise=lambda points: [point.as_dict(leave_out=RAW_FIGURES) for point in points],
    files=_write,
    some_fail=True,
    libraries=("array-record", "grain", "lmdb", "numpy", "simplejpeg", "tensorflow", "torch", "webdataset"),
)


def _install(options: PeersOptions) -> int:
    failed = 0
    for peer_name in options.install or ():
        try:
            if not PEERS[peer_name].own and not PEERS[peer_name].environment:
                PEERS[peer_name].install(options.venvs)
        except BenchFailed as error:
            print(f"error: {error}", file=sys.stderr)
            failed = 1
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    options = COMMAND.parse(arguments)
    if options.install:
        return run_command(lambda: _install(options), path=options.venvs)
    return COMMAND.main(arguments)
