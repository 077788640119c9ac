"""``python -m bench.convert``: how fast conversion is, beside the bare codec work of the same frames in the same run.

Cases: ``png`` and ``jpeg``, 480x640, to be resized to 256x256; ``passthrough``, 256x256 JPEG that is stored as it is.
For each, a TFDS dataset is generated and then, in turns, (ours) converted by ``python -m convert.run`` with its
ordinary multi-process runner, and (bare) its frames are decoded, resized and encoded by plain calls of OpenCV and
simplejpeg, in as many processes, from memory; for pass-through the bare work is the one decoding that checks a frame.
Every frame is transcoded once by both, though it is stored in two pairs.

``ratio`` is ours / bare in pairs/s over the steady time of a conversion (see `bench.convert.watch`): the median over
the repeats, each against its neighbour in time. Start-up, a fixed cost of several seconds, is shown apart and is part
of the end-to-end rate; with the default workload a conversion takes about 20 s on two cores, many times what the ends
of the steady time are uncertain by.

On a machine that also does other things the clock says little. ``others' CPU`` shows how much that was, and ``CPU
ratio`` compares CPU time instead, bare / ours during the steady time: what part of our work is codec work, whatever
else runs. MB/s is of source files read, from the page cache as a rule.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from array_record.python import array_record_module

from bench.convert.bare import QUALITY, SIZE, BareRun, run_bare, set_up_opencv, transcode
from bench.convert.source import (
    CASES,
    OFFSET,
    VERSION,
    BenchSource,
    Shape,
    make_source,
    read_episodes,
    shape_of_episodes,
    shape_of_pairs,
)
from bench.convert.watch import ConversionFailed, ConversionRun, run_conversion
from bench.measure.machine import describe_machine
from convert.report import format_table
from stream.format.names import decode_record, shard_file, shard_stem
from stream.storage.arguments import whole
from stream.storage.errors import closest

_QUIET = 0.05
"""Up to this share of the CPU time spent on other things, times are taken for undisturbed."""
_LIBRARIES = ("apache-beam", "array-record", "numpy", "opencv-python-headless", "pyarrow", "simplejpeg")


@dataclass(frozen=True, kw_only=True)
class Round:
    """Both measurements of one repeat."""

    ours: ConversionRun
    bare: BareRun


def measure_case(
    source: BenchSource, *, num_workers: int, repeat: int, outputs: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Convert and do the bare work ``repeat`` times in turns; returns the case's part of the JSON output.

    The order within a round alternates, so that a machine that gets slower or faster favours neither.

    Raises:
        ConversionFailed: a conversion did not end well, or stored other frames than the bare work makes.
    """
    rounds = []
    for number in range(repeat):
        output = outputs / f"{source.case.name}-{number}"
        bare = run_bare(source, num_workers=num_workers) if number % 2 else None
        ours = run_conversion(source, output, num_workers=num_workers, size=SIZE, quality=QUALITY)
        bare = bare or run_bare(source, num_workers=num_workers)
        if number == 0:
            _check_frames(source, output)
        if number < repeat - 1:
            shutil.rmtree(output)
        rounds.append(Round(ours=ours, bare=bare))
        pairs = source.shape.pairs
        say(
            f"{source.case.name} {number + 1}/{repeat}: ours {pairs / ours.steady_seconds:,.1f} pairs/s "
            f"(start-up {ours.startup_seconds:.1f} s), bare {pairs / bare.seconds:,.1f}, "
            f"ratio {bare.seconds / ours.steady_seconds:.3f}, in CPU time {bare.cpu_seconds / ours.cpu_seconds:.3f}, "
            f"others' CPU {_others_share(ours):.0%} and {_others_share(bare):.0%}"
        )
    return summarise(source, rounds)


def summarise(source: BenchSource, rounds: Sequence[Round]) -> dict[str, Any]:
    """Return medians, ratios and spread (largest minus smallest, over the median) of a case, and the raw runs."""
    pairs, size = source.shape.pairs, source.bytes
    ours = [pairs / one.ours.steady_seconds for one in rounds]
    bare = [pairs / one.bare.seconds for one in rounds]
    whole = [pairs / one.ours.wall_seconds for one in rounds]
    ratios = [mine / theirs for mine, theirs in zip(ours, bare, strict=True)]
    workers = [use for one in rounds for use in one.ours.processes if "worker" in use.role]
    parents = [use for one in rounds for use in one.ours.processes if "parent" in use.role]
    return {
        "case": source.case.name,
        "source": {
            "frames": f"{source.case.height}x{source.case.width} {source.case.encoding.upper()}",
            "bytes": size,
            "shards": source.shape.shards,
            "episodes": source.shape.episodes,
            "steps": source.shape.steps,
            "bytes_per_step": round(size / (source.shape.episodes * source.shape.steps)),
        },
        "pairs": pairs,
        "frames_converted": source.shape.frames,
        "ours": {
            **_rates(ours, size / pairs),
            "end_to_end_pairs_per_s": statistics.median(whole),
            "startup_s": statistics.median(one.ours.startup_seconds for one in rounds),
            "steady_s": statistics.median(one.ours.steady_seconds for one in rounds),
            "end_s": statistics.median(one.ours.end_seconds for one in rounds),
            "bytes_out": rounds[-1].ours.result["bytes_out"],
        },
        "bare": {**_rates(bare, size / pairs), "s": statistics.median(one.bare.seconds for one in rounds)},
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "cpu_ratio": statistics.median(one.bare.cpu_seconds / one.ours.cpu_seconds for one in rounds),
        "others_cpu_share": max(_others_share(run) for one in rounds for run in (one.ours, one.bare)),
        "ratio_end_to_end": statistics.median(a / b for a, b in zip(whole, bare, strict=True)),
        "peak_worker_rss_bytes": max(use.rss for use in workers),
        "peak_worker_pss_bytes": max((use.pss for use in workers if use.pss is not None), default=None),
        "peak_parent_rss_bytes": max(use.rss for use in parents),
        "peak_parent_pss_bytes": max((use.pss for use in parents if use.pss is not None), default=None),
        "runs": [dataclasses.asdict(one) for one in rounds],
    }


def _others_share(run: ConversionRun | BareRun) -> float:
    """Which part of the CPU time that the machine spent during a measurement was not the measurement's."""
    return run.others_cpu_seconds / (run.others_cpu_seconds + run.cpu_seconds)


def _rates(rates: Sequence[float], bytes_per_pair: float) -> dict[str, float]:
    median = statistics.median(rates)
    return {
        "pairs_per_s": median,
        "mb_per_s": median * bytes_per_pair / 1e6,
        "spread": (max(rates) - min(rates)) / median,
    }


def _check_frames(source: BenchSource, output: Path) -> None:
    """See that the first shard's first episode was stored as the bare work makes it: else the two do not compare."""
    set_up_opencv()
    frames = [transcode(frame, source.case) for frame in read_episodes(source.files[:1], source.case)[0]]
    folder = output / source.case.dataset / VERSION / "train"
    path = folder / shard_file(shard_stem("train", 0, source.shape.shards))
    reader = array_record_module.ArrayRecordReader(str(path))
    try:
        for start in range(len(frames) - OFFSET):
            if decode_record(reader.read(start, start + 1)[0]) != [frames[start], frames[start + OFFSET]]:
                raise ConversionFailed(f"{path}: record {start} has other frames than the bare codec work gives")
    finally:
        reader.close()


def format_result(result: dict[str, Any]) -> str:
    """Return the table of a whole result."""
    header = ["case", "source MB", "pairs", "ours pairs/s", "bare pairs/s", "ratio", "(range)", "CPU ratio"]
    header += ["others' CPU", "MB/s", "start-up s", "end-to-end pairs/s", "worker MB", "parent MB"]
    rows = [
        [
            case["case"],
            round(case["source"]["bytes"] / 1e6),
            case["pairs"],
            round(case["ours"]["pairs_per_s"]),
            round(case["bare"]["pairs_per_s"]),
            f"{case['ratio']:.3f}",
            f"{case['ratio_min']:.3f}-{case['ratio_max']:.3f}",
            f"{case['cpu_ratio']:.3f}",
            f"{case['others_cpu_share']:.0%}",
            round(case["ours"]["mb_per_s"]),
            f"{case['ours']['startup_s']:.1f}",
            round(case["ours"]["end_to_end_pairs_per_s"]),
            round(case["peak_worker_rss_bytes"] / 1e6),
            round(case["peak_parent_rss_bytes"] / 1e6),
        ]
        for case in result["cases"]
    ]
    machine, parameters = result["machine"], result["parameters"]
    lines = [
        format_table(header, rows),
        f"{parameters['num_workers']} workers, medians of {parameters['repeat']} on {machine['cores']} cores of "
        f"{machine['cpu']}; MB are 10^6 bytes, memory is the largest resident set",
    ]
    if max(case["others_cpu_share"] for case in result["cases"]) > _QUIET:
        lines.append(
            "the machine was busy with other things too: go by the CPU ratio, or measure again when it is quiet"
        )
    return "\n".join(lines)


@contextlib.contextmanager
def _workplace(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="bench-convert-") as folder:
            yield Path(folder)
        return
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise ValueError(f"--keep {keep}: the folder is not empty; name a new one")
    yield keep


def run_benchmark(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure all cases; returns what ``--json`` prints."""
    machine = describe_machine(_LIBRARIES)
    cases = []
    with _workplace(options.keep) as place:
        for name in options.cases:
            case, workers = CASES[name], options.num_workers
            shape: Shape
            if options.episodes is not None:
                shape = shape_of_episodes(options.episodes, steps=options.steps, num_workers=workers)
            else:
                shape = shape_of_pairs(options.pairs or case.pairs, steps=options.steps, num_workers=workers)
            started = time.monotonic()
            source = make_source(case, shape, root=place / "source", num_workers=workers)
            say(
                f"{name}: {shape.pairs:,} pairs in {shape.shards} shards, {source.bytes / 1e6:,.0f} MB, "
                f"made in {time.monotonic() - started:.0f} s"
            )
            outputs = place / "output"
            cases.append(measure_case(source, num_workers=workers, repeat=options.repeat, outputs=outputs, say=say))
            if options.keep is None:
                shutil.rmtree(source.root)
                shutil.rmtree(outputs)
    parameters = {
        "num_workers": options.num_workers,
        "repeat": options.repeat,
        "cases": options.cases,
        "pairs": options.pairs,
        "episodes": options.episodes,
        "steps": options.steps,
        "offset": OFFSET,
        "image_size": SIZE,
        "quality": QUALITY,
    }
    return {"parameters": parameters, "machine": machine, "cases": cases}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.convert",
        description="Measure conversion beside the bare codec work of the same frames.",
        epilog="The defaults take some eight minutes on two idle cores, and 5 GB of the temporary folder.",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--pairs", type=whole(1), help="at least so many in each case (default: what takes about 20 s)")
    size.add_argument("--episodes", type=whole(1), help="at least so many in each case, instead of --pairs")
    parser.add_argument("--steps", type=whole(1), default=60, help="of each episode (default: 60)")
    parser.add_argument("--num-workers", type=whole(1), default=2, help="processes of both (default: 2)")
    parser.add_argument("--repeat", type=whole(1), default=3, help="measurements of each (default: 3)")
    parser.add_argument("--cases", type=_cases, default=list(CASES), help=f"of {','.join(CASES)} (default: all)")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="an empty or new folder; sources and outputs stay there"
    )
    parser.add_argument("--json", action="store_true", help="print all figures, raw ones too, instead of a table")
    return parser


def _cases(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected names of {', '.join(CASES)} with commas between")
    for name in names:
        if name not in CASES:
            raise argparse.ArgumentTypeError(f"no case {name!r}; {closest(name, CASES, noun='cases')}")
    return names


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.steps <= OFFSET:
        parser.error(f"argument --steps: found {options.steps}, expected at least {OFFSET + 1} (offset {OFFSET})")
    try:
        result = run_benchmark(options, _say)
    except ValueError as error:
        parser.error(str(error))
    except (RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print(json.dumps(result, indent=1) if options.json else format_result(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
