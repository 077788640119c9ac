"""``python -m bench.convert``: speed of conversion beside the bare codec work of the same frames in the same run.

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

import argparse
import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from array_record.python import array_record_module

from bench.convert.bare import QUALITY, SIZE, run_bare, set_up_opencv, transcode
from bench.convert.source import CASES, OFFSET, VERSION, BenchSource, make_source, read_episodes
from bench.convert.watch import ConversionFailed, run_conversion
from bench.measure.command import print_result, run_command
from bench.measure.machine import describe_machine
from convert.plan import shard_stem
from convert.report import format_table
from stream.format.names import decode_record, shard_file
from stream.storage.arguments import Parser, whole
from stream.storage.errors import ArgumentError, closest

_QUIET = 0.05
"""Up to this share of other programs' CPU time, times count as undisturbed."""
_LIBRARIES = ("apache-beam", "array-record", "numpy", "opencv-python-headless", "pyarrow", "simplejpeg")


def measure_case(source: BenchSource, *, num_workers: int, repeat: int, outputs: Path) -> dict[str, Any]:
    """Convert and do the bare work ``repeat`` times in turns, and return the case's part of the JSON output.

    The order alternates, so that a machine that gets slower or faster favours neither.

    Raises:
        ConversionFailed: A conversion failed, or stored other frames than the bare work makes.
    """
    runs = []
    for number in range(repeat):
        output = outputs / f"{source.case.name}-{number}"
        bare = run_bare(source, num_workers=num_workers) if number % 2 else None
        ours = run_conversion(source, output, num_workers=num_workers, size=SIZE, quality=QUALITY)
        bare = bare or run_bare(source, num_workers=num_workers)
        if number == 0:
            _check_frames(source, output)
        if number < repeat - 1:
            shutil.rmtree(output)
        runs.append({"ours": ours, "bare": bare})
        _say(
            f"{source.case.name} {number + 1}/{repeat}: ours {source.pairs / ours['steady_seconds']:,.1f} pairs/s "
            f"(start-up {ours['startup_seconds']:.1f} s), bare {source.pairs / bare['seconds']:,.1f}, "
            f"ratio {bare['seconds'] / ours['steady_seconds']:.3f}, others' CPU {_others_share(ours):.0%} and "
            f"{_others_share(bare):.0%}"
        )
    return summarise(source, runs)


def summarise(source: BenchSource, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return medians, ratios and spread (largest minus smallest, over the median) of a case, and the raw runs."""
    pairs, size, median = source.pairs, source.bytes, statistics.median
    ours, bare = [run["ours"] for run in runs], [run["bare"] for run in runs]
    rates = [pairs / run["steady_seconds"] for run in ours]
    bare_rates = [pairs / run["seconds"] for run in bare]
    end_to_end = [pairs / run["wall_seconds"] for run in ours]
    ratios = [mine / theirs for mine, theirs in zip(rates, bare_rates, strict=True)]
    return {
        "case": source.case.name,
        "source": {
            "frames": f"{source.case.height}x{source.case.width} {source.case.encoding.upper()}",
            "bytes": size,
            "shards": source.shards,
            "episodes": source.episodes,
            "steps": source.steps,
            "bytes_per_step": round(size / (source.episodes * source.steps)),
        },
        "pairs": pairs,
        "frames_converted": source.frames,
        "ours": {
            **_rates(rates, size / pairs),
            "end_to_end_pairs_per_s": median(end_to_end),
            **{f"{part}_s": median(run[f"{part}_seconds"] for run in ours) for part in ("startup", "steady", "end")},
            "bytes_out": ours[-1]["result"]["bytes_out"],
        },
        "bare": {**_rates(bare_rates, size / pairs), "s": median(run["seconds"] for run in bare)},
        "ratio": median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "cpu_ratio": median(run["bare"]["cpu_seconds"] / run["ours"]["cpu_seconds"] for run in runs),
        "others_cpu_share": max(_others_share(run) for run in (*ours, *bare)),
        "ratio_end_to_end": median(a / b for a, b in zip(end_to_end, bare_rates, strict=True)),
        **{
            f"peak_{role}_{memory}_bytes": max(
                (use[memory] for run in ours for use in run["processes"] if role in use["role"] and use[memory]),
                default=None,
            )
            for role in ("worker", "parent")
            for memory in ("rss", "pss")
        },
        "runs": runs,
    }


def _others_share(run: dict[str, Any]) -> float:
    """Return the share of other programs in the machine's CPU time during a measurement."""
    return float(run["others_cpu_seconds"] / (run["others_cpu_seconds"] + run["cpu_seconds"]))


def _rates(rates: Sequence[float], bytes_per_pair: float) -> dict[str, float]:
    median = statistics.median(rates)
    spread = (max(rates) - min(rates)) / median
    return {"pairs_per_s": median, "mb_per_s": median * bytes_per_pair / 1e6, "spread": spread}


def _check_frames(source: BenchSource, output: Path) -> None:
    """Check that the first episode was stored as the bare work makes it; otherwise the two cannot be compared."""
    set_up_opencv()
    frames = [transcode(frame, source.case) for frame in read_episodes(source.files[:1], source.case)[0]]
    path = output / source.case.dataset / VERSION / "train" / shard_file(shard_stem("train", 0, source.shards))
    with contextlib.closing(array_record_module.ArrayRecordReader(str(path))) as reader:
        for start in range(len(frames) - OFFSET):
            if decode_record(reader.read(start, start + 1)[0]) != [frames[start], frames[start + OFFSET]]:
                raise ConversionFailed(f"{path}: record {start} has other frames than the bare codec work gives")


def format_result(result: dict[str, Any]) -> str:
    """Return the table of a result."""
    rows = [
        {
            "case": case["case"],
            "source MB": round(case["source"]["bytes"] / 1e6),
            "pairs": case["pairs"],
            "ours pairs/s": round(case["ours"]["pairs_per_s"]),
            "bare pairs/s": round(case["bare"]["pairs_per_s"]),
            "ratio": f"{case['ratio']:.3f}",
            "(range)": f"{case['ratio_min']:.3f}-{case['ratio_max']:.3f}",
            "CPU ratio": f"{case['cpu_ratio']:.3f}",
            "others' CPU": f"{case['others_cpu_share']:.0%}",
            "MB/s": round(case["ours"]["mb_per_s"]),
            "start-up s": f"{case['ours']['startup_s']:.1f}",
            "end-to-end pairs/s": round(case["ours"]["end_to_end_pairs_per_s"]),
            "worker MB": round(case["peak_worker_rss_bytes"] / 1e6),
            "parent MB": round(case["peak_parent_rss_bytes"] / 1e6),
        }
        for case in result["cases"]
    ]
    machine, parameters = result["machine"], result["parameters"]
    lines = [
        format_table(list(rows[0]), [list(row.values()) for row in rows]),
        f"{parameters['num_workers']} workers, medians of {parameters['repeat']} on {machine['cores']} cores of "
        f"{machine['cpu']}; MB are 10^6 bytes, memory is the largest resident set",
    ]
    if max(case["others_cpu_share"] for case in result["cases"]) > _QUIET:
        lines.append("other programs used the machine: read the CPU ratio, or measure again when it is quiet")
    return "\n".join(lines)


def run_benchmark(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all cases and return the content of ``--json``."""
    machine, workers, keep = describe_machine(_LIBRARIES), options.num_workers, options.keep
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise ArgumentError(f"--keep {keep}: the folder is not empty; name a new one")
    cases = []
    with contextlib.nullcontext(keep) if keep else tempfile.TemporaryDirectory(prefix="bench-convert-") as folder:
        sources, outputs = Path(folder, "source"), Path(folder, "output")
        for case in (CASES[name] for name in options.cases):
            began, pairs = time.monotonic(), options.pairs or case.pairs
            source = make_source(case, pairs=pairs, steps=options.steps, root=sources, num_workers=workers)
            took = time.monotonic() - began
            _say(f"{case.name}: {source.pairs:,} pairs in {source.shards} shards, made in {took:.0f} s")
            cases.append(measure_case(source, num_workers=workers, repeat=options.repeat, outputs=outputs))
            if keep is None:
                shutil.rmtree(sources)
                shutil.rmtree(outputs)
    given = {name: getattr(options, name) for name in ("num_workers", "repeat", "cases", "pairs", "steps")}
    return {
        "parameters": {**given, "offset": OFFSET, "image_size": SIZE, "quality": QUALITY},
        "machine": machine,
        "cases": cases,
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m bench.convert",
        description="Measure conversion beside the bare codec work of the same frames.",
        epilog="The defaults take about eight minutes on two idle cores, and 5 GB of the temporary folder.",
    )
    add = parser.add_argument
    add("--pairs", type=whole(1), help="least number of pairs in each case (default: about 20 s of work)")
    add("--steps", type=whole(OFFSET + 1), default=60, help="steps of each episode (default: 60)")
    add("--num-workers", type=whole(1), default=2, help="processes of both (default: 2)")
    add("--repeat", type=whole(1), default=3, help="measurements of each (default: 3)")
    add("--cases", type=_cases, default=list(CASES), help=f"cases out of {','.join(CASES)} (default: all)")
    add("--keep", type=Path, metavar="DIR", help="empty or new folder in which sources and outputs stay")
    add("--json", action="store_true", help="print all figures, raw ones too, instead of a table")
    return parser


def _cases(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in CASES:
            raise argparse.ArgumentTypeError(f"no case {name!r}; {closest(name, CASES, noun='cases')}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)

    def work() -> int:
        print_result(run_benchmark(options), format_result, as_json=options.json)
        return 0

    return run_command(work, place=options.keep or tempfile.gettempdir(), failures=(RuntimeError,))
