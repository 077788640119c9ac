"""``python -m bench.convert``: speed of conversion, compared with the codec work of the same frames in the same run.

Cases: ``png`` and ``jpeg``, 480x640, to be resized to 256x256; ``passthrough``, 256x256 JPEG that is stored unchanged.
Each generates a TFDS dataset and then, in turns, converts it with ``python -m convert.run`` and its ordinary
multi-process runner (ours), and decodes, resizes and encodes its frames with plain calls of OpenCV and simplejpeg, in
as many processes, from memory (bare). For pass-through the bare work is the one decoding that checks a frame. Both
transcode every frame once, though it is stored in two pairs.

``ratio`` is ours / bare in pairs/s over the steady time of a conversion (see `bench.convert.watch`): the median over
the repeats, each against its neighbour in time. Start-up, a fixed cost of several seconds, is shown separately and is
part of the end-to-end rate.

On a busy machine the clock says little. ``others' CPU`` shows the load of other programs, and ``CPU ratio`` compares
CPU time instead, bare / ours during the steady time: the share of codec work in our work. MB/s counts source files
read, usually from the page cache.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
from array_record.python import array_record_module

from bench.convert.source import CASES, OFFSET, BenchSource, Case, make_source, read_episodes, set_up_opencv, used_steps
from bench.convert.watch import run_conversion
from bench.measure.child import BenchFailed, Team
from bench.measure.command import Command, Output, Result, say, work_folder
from bench.measure.options import one_of, option, several
from bench.measure.points import median
from bench.measure.tables import Table
from bench.synthetic import VERSION
from convert.jobs import shard_stem
from stream.base.arguments import whole_number
from stream.base.errors import ArgumentError
from stream.format.names import decode_record, shard_file

SIZE = 256
QUALITY = 95

JPEG_OPTIONS = [cv2.IMWRITE_JPEG_QUALITY, QUALITY, cv2.IMWRITE_JPEG_OPTIMIZE, 1]
JPEG_OPTIONS += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420]

_held: tuple[Case, list[bytes]]


def transcode(data: bytes, case: Case) -> bytes:
    """Do the codec work of one frame and return the JPEG to store; pass-through returns the frame itself."""
    if not case.transcoded:
        simplejpeg.decode_jpeg(data)
        return data
    if case.encoding == "png":
        pixels = np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_BGR))
    else:
        pixels = simplejpeg.decode_jpeg(data, colorspace="BGR")
    small = cv2.resize(pixels, (SIZE, SIZE), interpolation=cv2.INTER_AREA)
    return cv2.imencode(".jpg", small, JPEG_OPTIONS)[1].tobytes()


def run_bare(source: BenchSource, *, num_workers: int) -> dict[str, Any]:
    """Transcode every frame that a conversion of ``source`` uses, once, in ``num_workers`` processes.

    Each process takes the same number of shards and has its frames in memory before any process starts.
    """
    with Team(num_workers) as team:
        team.run(_hold, [(source.case, source.files[index::num_workers]) for index in range(num_workers)])
        turn = team.run(_transcode, range(num_workers))
    times = {key: getattr(turn, key) for key in ("seconds", "cpu_seconds", "others_cpu_seconds")}
    return {"frames": turn.pairs, **times}


def _hold(share: tuple[Case, tuple[Any, ...]]) -> int:
    """Read the frames of a share of the files, and return their number."""
    global _held
    case, files = share
    _held = case, [episode[step] for episode in read_episodes(files, case) for step in used_steps(len(episode))]
    set_up_opencv()
    return len(_held[1])


def _transcode(number: int) -> int:
    case, frames = _held
    for frame in frames:
        transcode(frame, case)
    return len(frames)


_QUIET = 0.05
"""Up to this share of other programs' CPU time, times count as undisturbed."""


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(Output):
    """Options of the command, and the fixed parameters of the conversion."""

    pairs: int | None = option(
        None, whole_number(1), "least number of pairs in each case; by default about 20 s of work"
    )
    steps: int = option(60, whole_number(OFFSET + 1), "steps of each episode")
    num_workers: int = option(2, whole_number(1), "processes of both")
    repeat: int = option(3, whole_number(1), "measurements of each")
    cases: tuple[str, ...] = option(tuple(CASES), several(one_of(CASES, "case")), "cases", metavar="A,B")
    keep: Path | None = option(None, Path, "empty or new folder in which sources and outputs stay", metavar="DIR")
    offset: int = field(default=OFFSET, init=False)
    image_size: int = field(default=SIZE, init=False)
    quality: int = field(default=QUALITY, init=False)


def _work(options: ConvertOptions) -> Iterator[dict[str, Any]]:
    workers, cases = options.num_workers, []
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        if any(options.keep.iterdir()):
            raise ArgumentError(f"--keep {options.keep}: the folder is not empty; name a new one")
    with contextlib.nullcontext(options.keep) if options.keep else work_folder("bench-convert", None) as folder:
        sources, outputs = folder / "source", folder / "output"
        for case in (CASES[case_name] for case_name in options.cases):
            began, pairs = time.monotonic(), options.pairs or case.pairs
            source = make_source(case, pairs=pairs, steps=options.steps, root=sources, num_workers=workers)
            took = time.monotonic() - began
            say(f"{case.name}: {source.pairs:,} pairs in {len(source.files)} shards, made in {took:.0f} s")
            cases.append(measure_case(source, num_workers=workers, repeat=options.repeat, outputs=outputs))
            if options.keep is None:
                shutil.rmtree(sources)
                shutil.rmtree(outputs)
    yield {"cases": cases}


def measure_case(source: BenchSource, *, num_workers: int, repeat: int, outputs: Path) -> dict[str, Any]:
    """Convert and do the bare work ``repeat`` times in turns, and return the case's part of the JSON output.

    The order alternates, so that a machine that gets slower or faster favours neither.
    """
    case, pairs, runs, figures = source.case, source.pairs, [], []
    for number in range(repeat):
        output = outputs / f"{case.name}-{number}"
        bare = run_bare(source, num_workers=num_workers) if number % 2 else None
        ours = run_conversion(source, output, num_workers=num_workers, size=SIZE, quality=QUALITY)
        bare = bare or run_bare(source, num_workers=num_workers)
        if number == 0:
            _check_frames(source, output)
        if number < repeat - 1:
            shutil.rmtree(output)
        runs.append({"ours": ours, "bare": bare})
        figures.append(_figures(source, ours, bare))
        rate, bare_rate = (figures[-1][name]["pairs_per_s"] for name in ("ours", "bare"))
        shares = " and ".join(f"{_others_share(run):.0%}" for run in (ours, bare))
        say(
            f"{case.name} {number + 1}/{repeat}: ours {rate:,.1f} pairs/s (start-up {ours['startup_seconds']:.1f} s), "
            f"bare {bare_rate:,.1f}, ratio {rate / bare_rate:.3f}, others' CPU {shares}"
        )
    conversions = [run["ours"] for run in runs]
    ratios = [figure["ratio"] for figure in figures]
    medians = median(figures)
    for name in ("ours", "bare"):
        rates = [figure[name]["pairs_per_s"] for figure in figures]
        medians[name]["spread"] = (max(rates) - min(rates)) / medians[name]["pairs_per_s"]
    medians["ours"]["bytes_out"] = conversions[-1]["result"]["bytes_out"]
    return {
        "case": case.name,
        "source": {
            "frames": f"{case.height}x{case.width} {case.encoding.upper()}",
            "bytes": source.bytes,
            "shards": len(source.files),
            "episodes": source.episodes,
            "steps": source.steps,
            "bytes_per_step": round(source.bytes / (source.episodes * source.steps)),
        },
        "pairs": pairs,
        "frames_converted": source.frames,
        **medians,
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "others_cpu_share": max(_others_share(run) for pair in runs for run in pair.values()),
        **{f"peak_{role}_bytes": max(run[f"{role}_bytes"] for run in conversions) for role in ("worker", "parent")},
        "runs": runs,
    }


def _figures(source: BenchSource, ours: dict[str, Any], bare: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a repeat, of which the result has medians."""
    megabytes, pairs = source.bytes / 1e6, source.pairs
    steady, bare_seconds = ours["steady_seconds"], bare["seconds"]
    return {
        "ours": {
            "pairs_per_s": pairs / steady,
            "mb_per_s": megabytes / steady,
            "end_to_end_pairs_per_s": pairs / ours["wall_seconds"],
            **{f"{part}_s": ours[f"{part}_seconds"] for part in ("startup", "steady", "end")},
        },
        "bare": {"pairs_per_s": pairs / bare_seconds, "mb_per_s": megabytes / bare_seconds, "s": bare_seconds},
        "ratio": bare_seconds / steady,
        "cpu_ratio": bare["cpu_seconds"] / ours["cpu_seconds"],
        "ratio_end_to_end": bare_seconds / ours["wall_seconds"],
    }


def _others_share(run: dict[str, Any]) -> float:
    """Return the share of other programs in the machine's CPU time during a measurement."""
    return float(run["others_cpu_seconds"] / (run["others_cpu_seconds"] + run["cpu_seconds"]))


def _check_frames(source: BenchSource, output: Path) -> None:
    """Check that the first episode was stored as the bare work makes it; otherwise the two cannot be compared."""
    set_up_opencv()
    frames = [transcode(frame, source.case) for frame in read_episodes(source.files[:1], source.case)[0]]
    path = output / source.case.dataset / VERSION / "train" / shard_file(shard_stem("train", 0, len(source.files)))
    with contextlib.closing(array_record_module.ArrayRecordReader(str(path))) as reader:
        for start in range(len(frames) - OFFSET):
            if decode_record(reader.read(start, start + 1)[0]) != [frames[start], frames[start + OFFSET]]:
                raise BenchFailed(f"{path}: record {start} has other frames than the bare codec work gives")


_COLUMNS = {
    "source MB": lambda case: round(case["source"]["bytes"] / 1e6),
    "pairs": lambda case: case["pairs"],
    "ours pairs/s": lambda case: round(case["ours"]["pairs_per_s"]),
    "bare pairs/s": lambda case: round(case["bare"]["pairs_per_s"]),
    "ratio": lambda case: f"{case['ratio']:.3f}",
    "(range)": lambda case: f"{case['ratio_min']:.3f}-{case['ratio_max']:.3f}",
    "CPU ratio": lambda case: f"{case['cpu_ratio']:.3f}",
    "others' CPU": lambda case: f"{case['others_cpu_share']:.0%}",
    "MB/s": lambda case: round(case["ours"]["mb_per_s"]),
    "start-up s": lambda case: f"{case['ours']['startup_s']:.1f}",
    "end-to-end pairs/s": lambda case: round(case["ours"]["end_to_end_pairs_per_s"]),
    "worker MB": lambda case: round(case["peak_worker_bytes"] / 1e6),
    "parent MB": lambda case: round(case["peak_parent_bytes"] / 1e6),
}


def convert_table(result: Result) -> Table:
    """Return the table of a result."""
    machine, parameters = result["machine"], result["parameters"]
    notes = [
        f"{parameters['num_workers']} workers, medians of {parameters['repeat']} on {machine['cores']} cores of "
        f"{machine['cpu']}; MB are 10^6 bytes, memory is the largest resident set"
    ]
    if max(case["others_cpu_share"] for case in result["cases"]) > _QUIET:
        notes.append("other programs used the machine: read the CPU ratio, or measure again when it is quiet")
    rows = [[case["case"], *(column(case) for column in _COLUMNS.values())] for case in result["cases"]]
    return Table(["case", *_COLUMNS], rows, notes)


COMMAND = Command(
    name="convert",
    about="Measure conversion, compared with the bare codec work of the same frames.",
    epilog="The defaults take about eight minutes on two idle cores, and 5 GB of the temporary folder.",
    options=ConvertOptions,
    work=_work,
    show=lambda result: convert_table(result).text(),
    libraries=("apache-beam", "array-record", "numpy", "opencv-python-headless", "pyarrow", "simplejpeg"),
)
main = COMMAND.main
