"""``python -m bench.formats``: the same frame pairs stored in six formats, and how fast each of them gives batches.

Pairs of a converted root (``--root``), or of a folder of pictures (``--images``), are stored as loose JPEG files,
WebDataset shards, TFRecord, LMDB, ArrayRecord for plain Grain, and as pairstream stores them. Each store is read once
and its pixels compared with the source; then every point (format, order, batch size, workers) is measured in a fresh
process, ``--repeat`` times in alternation. All stores are cut into the same shards, and are in the page cache unless
they are larger than memory. What is special about a format's row is in its note (`bench.formats.readers`).

``--out`` gets ``summary.csv`` (medians over the repeats, kept up to date while it runs), ``sysinfo.json``,
``resources/<point>.jsonl``, ``plots/``, and ``guide.md`` and ``guide.html``, written from the numbers.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.formats.frames import PairFile, PicturePairs, RootPairs, write_pairs
from bench.formats.readers import NOTES, ORDERS, Reading
from bench.formats.report import describe_run, format_result, write_guide, write_summary
from bench.formats.run import check_request, measure_request, source_request
from bench.formats.stores import (
    FORMATS,
    Store,
    bytes_needed,
    count_shards,
    missing_library,
    request,
)
from bench.formats.watch import Watch, append_log, summarise_watch
from bench.measure.child import ChildFailed, ask
from bench.measure.command import ended_by_kill, print_result, run_command
from bench.measure.gpu import gpu_percent
from bench.measure.machine import describe_machine
from bench.measure.points import Point, measure_points, tell
from convert.report import human_bytes
from stream.storage.arguments import Parser, whole
from stream.storage.errors import closest

_DISTRIBUTIONS = ("array-record", "grain", "lmdb", "numpy", "simplejpeg", "tensorflow", "torch", "webdataset")
_PREFIX = "bench-formats-"


class DiskTooSmall(RuntimeError):
    """There is not enough room for the stores; the message says how much is needed and there."""


def run_benchmark(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Write and check the stores, measure all points, and write what ``--out`` gets; returns what ``--json`` prints.

    Raises:
        ArgumentError: there are no such pairs.
        DiskTooSmall, FormatError, OSError: the stores cannot be made.
    """
    source: RootPairs | PicturePairs
    if options.images is not None:
        source = PicturePairs(options.images, size=options.image_size, pairs=options.pairs)
    else:
        source = RootPairs(options.root, options.mixture, split=options.split, pairs=options.pairs)
    with _workplace(options) as work:
        _check_disk(work, source.pairs, source.estimate(), len(options.formats))
        say(f"{source.pairs:,} pairs are chosen and copied")
        pairs = write_pairs(source, work / "pairs.bin")
        _check_disk(work, pairs.pairs, pairs.frame_bytes, len(options.formats))
        result: dict[str, Any] = {
            "parameters": _parameters(options),
            "pairs": {"count": pairs.pairs, "height": pairs.height, "width": pairs.width, "bytes": pairs.frame_bytes},
            "machine": {**describe_machine(_DISTRIBUTIONS), "gpus": _gpus()},
            "notes": {name: NOTES[name] for name in options.formats},
            "stores": {},
            "points": [],
        }
        places = {name: _store(name, pairs, options, work) for name in options.formats}
        result["stores"] = _make_stores(pairs, places, options, say)
        _measure(places, options, result, say)
    write_guide(options.out, result)
    return result


def make_points(options: argparse.Namespace) -> list[Point]:
    """Return all points that the options ask for, formats changing fastest, so that they alternate."""
    return [
        Point(
            name=f"{name}-{order}-b{batch_size}-w{workers}",
            parameters={"format": name, "order": order, "batch_size": batch_size, "workers": workers},
        )
        for order in options.orders
        for batch_size in options.batch_sizes
        for workers in options.workers
        for name in options.formats
    ]


def compare_pairs(found: Sequence[str], expected: Sequence[str]) -> str | None:
    """Say how the pairs of one pass differ from those of the source, by their hashes; None if they are the same."""
    missing, more = Counter(expected), Counter(found)
    lost, extra = (missing - more).total(), (more - missing).total()
    return (
        f"one pass gives other pairs than the source: {lost} missing, {extra} repeated or different"
        if (lost or extra)
        else None
    )


def _store(name: str, pairs: PairFile, options: argparse.Namespace, work: Path) -> Store:
    return Store(
        format=name,
        folder=str(work / name),
        pairs=pairs.pairs,
        height=pairs.height,
        width=pairs.width,
        shards=count_shards(pairs, max(options.workers)),
    )


def _make_stores(
    pairs: PairFile, places: dict[str, Store], options: argparse.Namespace, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Write and check all stores; an entry has the figures of the writing, and ``error``, None if there is none."""
    expected: list[str] = []
    if options.check:
        expected = ask("bench.formats.run", source_request(pairs))["passes"][0]
    stores = {}
    for name, store in places.items():
        entry: dict[str, Any] = {"write_s": None, "files": None, "file_bytes": None, "disk_bytes": None}
        stores[name] = entry
        entry["error"] = missing_library(name)
        if entry["error"] is None:
            try:
                entry.update(ask("bench.formats.stores", request(pairs, store)))
                if options.check:
                    entry["error"] = _check(store, expected, options)
            except ChildFailed as error:
                entry["error"] = str(error)
        entry["checked"] = options.check and entry["error"] is None
        made = "" if entry["files"] is None else f"{human_bytes(entry['disk_bytes'])} in {entry['files']:,} files"
        say(f"{name}: {'error: ' + entry['error'] if entry['error'] else made}")
    return stores


def _check(store: Store, expected: Sequence[str], options: argparse.Namespace) -> str | None:
    chosen = {(options.orders[0], min(options.workers)), (options.orders[-1], max(options.workers))}
    batch = min(options.batch_sizes)
    readings = [
        Reading(batch_size=batch, workers=workers, order=order, passes=1, seed=options.seed)
        for order, workers in sorted(chosen)
    ]
    passes = ask("bench.formats.run", check_request(store, readings), timeout=options.timeout)["passes"]
    for reading, found in zip(readings, passes, strict=True):
        if told := compare_pairs(found, expected):
            return f"{reading.order}, {reading.workers} workers: {told}"
    return None


def _measure(
    places: dict[str, Store], options: argparse.Namespace, result: dict[str, Any], say: Callable[[str], None]
) -> None:
    points = make_points(options)
    for point in points:
        point.error = result["stores"][point.parameters["format"]]["error"]

    def keep() -> None:
        result["points"] = [point.as_dict() for point in points]
        write_summary(options.out, result)

    def measure(point: Point) -> dict[str, Any]:
        parameters = {key: value for key, value in point.parameters.items() if key != "format"}
        asked = measure_request(
            places[point.parameters["format"]],
            Reading(**parameters, seed=options.seed),
            steps=options.steps,
            warmup=options.warmup,
        )
        measured: dict[str, Any] | None = None
        watch = Watch()
        try:
            with watch:
                measured = ask("bench.formats.run", asked, timeout=options.timeout)
        finally:
            log = options.out / "resources" / f"{point.name}.jsonl"
            append_log(log, watch.samples, repeat=len(point.runs), measured=measured)
        return {**measured, **summarise_watch(watch.samples, measured)}

    keep()
    measure_points(points, measure, repeat=options.repeat, describe=describe_run, after=keep, say=say)


@contextmanager
def _workplace(options: argparse.Namespace) -> Iterator[Path]:
    """A folder for the stores, removed at the end unless they are kept; old results in ``--out`` are removed."""
    options.out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(options.out / "resources", ignore_errors=True)
    above = options.work or options.out
    above.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=above)).absolute()
    try:
        yield work
        (work / "pairs.bin").unlink()
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    if not options.keep:
        shutil.rmtree(work)


def _check_disk(work: Path, pairs: int, frame_bytes: int, formats: int) -> None:
    free, needed = shutil.disk_usage(work).free, bytes_needed(pairs, frame_bytes, formats)
    written = sum(path.stat().st_size for path in work.iterdir())
    if needed - written > free:
        raise DiskTooSmall(
            f"{work.parent}: {human_bytes(free)} free, {formats} stores of {pairs:,} pairs may take "
            f"{human_bytes(needed)}; name another folder with --work, or take fewer pairs with --pairs"
        )


def _parameters(options: argparse.Namespace) -> dict[str, Any]:
    left_out = {"out", "work", "json"} | ({"root", "mixture", "split"} if options.images else {"images", "image_size"})
    return {
        key: str(value) if isinstance(value, Path) else value
        for key, value in vars(options).items()
        if key not in left_out
    }


def _gpus() -> int:
    return len(gpu_percent() or [])


def _several(read: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def read_all(text: str) -> list[Any]:
        return list(dict.fromkeys(read(part.strip()) for part in text.split(",")))

    return read_all


def _one_of(names: Sequence[str], noun: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"no {noun} {text!r}; {closest(text, names, noun=f'{noun}s')}")
        return text

    return read


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m bench.formats",
        description="Store the same frame pairs in several formats and measure how fast each gives batches.",
        epilog="The defaults are 240 points, measured three times each: hours. Name fewer of them for a first look.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for all results")
    where = parser.add_mutually_exclusive_group()
    root = Path("build/demo/oxe")
    where.add_argument("--root", type=Path, default=root, help="converted root (default: %(default)s)")
    where.add_argument("--images", type=Path, metavar="DIR", help="folder of pictures; neighbours by name make pairs")
    parser.add_argument("--mixture", default="oxe29", help="mixture or dataset of the root (default: %(default)s)")
    parser.add_argument("--split", default="train", help="role or split expression (default: %(default)s)")
    parser.add_argument("--image-size", type=whole(8), default=256, help="of --images, in pixels (default: 256)")
    parser.add_argument("--pairs", type=whole(1), help="so many, spread over the root (default: all)")
    parser.add_argument(
        "--formats", type=_several(_one_of(FORMATS, "format")), default=list(FORMATS), help=f"of {','.join(FORMATS)}"
    )
    parser.add_argument("--orders", type=_several(_one_of(ORDERS, "order")), default=list(ORDERS), help="of both")
    parser.add_argument("--batch-sizes", type=_several(whole(1)), default=[16, 32, 64, 128, 256], metavar="A,B,C")
    parser.add_argument("--workers", type=_several(whole(0)), default=[0, 2, 4, 8], metavar="A,B,C")
    parser.add_argument("--steps", type=whole(2), default=160, help="batches that are measured (default: 160)")
    parser.add_argument("--warmup", type=whole(1), default=8, help="batches before, the first included (default: 8)")
    parser.add_argument("--repeat", type=whole(1), default=3, help="measurements of each point (default: 3)")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the shuffled order (default: 0)")
    parser.add_argument("--timeout", type=whole(1), default=900, help="seconds for a point (default: 900)")
    parser.add_argument("--no-check", dest="check", action="store_false", help="do not compare pixels with the source")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where the stores are made (default: in --out)")
    parser.add_argument("--keep", action="store_true", help="do not remove the stores")
    parser.add_argument("--json", action="store_true", help="print all figures instead of a table")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(arguments)

    def work() -> int:
        print_result(run_benchmark(options, tell), format_result, as_json=options.json)
        return 0

    with ended_by_kill():
        return run_command(work, place=options.out, failures=(DiskTooSmall,))


if __name__ == "__main__":
    sys.exit(main())
