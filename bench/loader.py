"""``python -m bench.loader``: how fast the loader is, beside decoding the same JPEGs alone in the same run.

Every point is measured in fresh processes, ``--repeat`` times; with ``--sweep`` there are several points, and a repeat
goes through all of them before the next one begins, in alternating order. Figures are medians over the repeats.

``ratio`` is samples/s of the loader to those of the limit: as many processes as there are workers (or threads,
without workers) that decode the same JPEGs from memory, see `bench.decode_limit`. Both are measured in slices of about
a second, in turns, see `bench.loader_run`. On a machine that also does other things the clock says little; ``others'
CPU`` shows how much that was, and ``CPU ratio`` compares CPU time instead: the part of the loader's CPU time, trainer
included, that decoding alone takes. ``to first`` compares the points of a sweep: each one's ratio (without a limit,
samples/s) to that of the first point, within a repeat.

Memory is the proportional set size of trainer and workers, looked at between the slices; its slope is in bytes a batch.
The files come from the page cache unless they are larger than memory; MB/s is what they would have to be read with.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bench.loader_sweep import PARAMETERS, Parameters, label, make_points, open_loader, parse_sweep, whole
from bench.machine import describe_machine
from convert.report import format_table
from stream.errors import ArgumentError, StreamError
from stream.format import FormatError

RESULT_FILE = "bench-loader.json"
_LIBRARIES = ("array-record", "grain", "numpy", "pyarrow", "simplejpeg")
_QUIET = 0.05
_GRACE = 10.0
_RAW = ("stats", "slices", "limit_slices", "memory_samples")


class PointFailed(RuntimeError):
    """A point could not be measured; the message says which and why."""


def run_point(parameters: Parameters, name: str) -> dict[str, Any]:
    """Measure a point once, in a fresh process.

    Raises:
        PointFailed: the process ended without a result.
    """
    repository = str(Path(__file__).resolve().parent.parent)
    paths = [repository, *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.loader_run"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            # Ctrl-C comes to this process alone, which then ends the other and its workers in good order.
            process_group=0,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(dataclasses.asdict(parameters)) + "\n")
            process.stdin.flush()
            # Not `communicate`, which would close its input, and by that end it.
            answer = process.stdout.readline()
            process.wait()
        except BrokenPipeError:
            answer = ""
            process.wait()
        finally:
            _end(process)
        log.seek(0)
        told = [line.strip() for line in log.read().splitlines() if line.strip()]
    result: dict[str, Any] = json.loads(answer) if answer else {}
    if process.returncode == 0 and result:
        return result
    reason = result.get("error") or f"{_fate(process.returncode)}{f': {told[-1]}' if told else ''}"
    raise PointFailed(f"point {name}: {' '.join(reason.split())}")


def _end(process: subprocess.Popen[str]) -> None:
    """End a point that is still being measured, because the benchmark was interrupted."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _fate(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}{', as the kernel does when memory runs out' if -code == signal.SIGKILL else ''}"


def run_benchmark(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure all points; returns what ``--json`` prints. With ``--out``, what there is so far is kept there.

    Raises:
        ArgumentError: there is no such loader.
        PointFailed: a point could not be measured.
    """
    base: Parameters = options.base
    points = make_points(options.sweep)
    chosen = [dataclasses.replace(base, **point) for point in points]
    for parameters in chosen:
        open_loader(parameters)
    result: dict[str, Any] = {
        "parameters": {**dataclasses.asdict(base), "repeat": options.repeat},
        "sweep": dict(options.sweep),
        "machine": describe_machine(_LIBRARIES),
        "points": [],
    }
    repeats: list[list[dict[str, Any]]] = [[] for _ in points]
    done = 0
    for number in range(options.repeat):
        order = range(len(points)) if number % 2 == 0 else reversed(range(len(points)))
        for place in order:
            measured = run_point(chosen[place], label(points[place]))
            repeats[place].append(measured)
            done += 1
            say(f"{done}/{options.repeat * len(points)} {label(points[place])}: {_line(measured)}")
            complete = [(point, runs) for point, runs in zip(points, repeats, strict=True) if runs]
            result["points"] = summarise_points(complete)
            if options.out is not None:
                _write(options.out / RESULT_FILE, result)
    return result


def _line(run: dict[str, Any]) -> str:
    beside = "" if run["ratio"] is None else f", {run['ratio']:.3f} of the limit ({run['cpu_ratio'] or 0:.3f} in CPU)"
    return f"{run['samples_per_s']:,.0f} samples/s{beside}, others' CPU {run['others_cpu_share']:.0%}"


def summarise_points(points: Sequence[tuple[dict[str, Any], list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Return for each point its swept parameters, the medians over the repeats, its comparison with the first point,
    and the repeats.

    to_first: median over the repeats of ratio / ratio of the first point (of samples/s, if there is no limit);
    cpu_to_first: of its CPU time per pair, the first point's to this one's.
    """
    summaries = []
    first = points[0][1] if points else []
    for point, runs in points:
        speed = "ratio" if all(run["ratio"] is not None for run in [*first, *runs]) else "samples_per_s"
        pairs = list(zip(runs, first, strict=False))
        summaries.append(
            {
                "point": point,
                "median": {key: _median([run[key] for run in runs]) for key in runs[0] if key not in _RAW},
                "to_first": statistics.median(run[speed] / other[speed] for run, other in pairs),
                "cpu_to_first": statistics.median(
                    other["cpu_s_per_1000_pairs"] / max(1e-9, run["cpu_s_per_1000_pairs"]) for run, other in pairs
                ),
                "repeats": runs,
            }
        )
    return summaries


def _median(values: Sequence[Any]) -> Any:
    """The median, of each value by key where these are mappings; of the known ones, None if there is none."""
    if isinstance(values[0], dict):
        return {key: _median([value[key] for value in values]) for key in values[0]}
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _write(path: Path, result: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=1))
    temporary.replace(path)


def format_result(result: dict[str, Any]) -> str:
    """Return the table of a whole result."""
    header = ["point", "batches/s", "samples/s", "limit", "ratio", "(range)", "to first", "CPU ratio", "others' CPU"]
    header += ["step ms", "p50", "p90", "p99", "max", "first batch s", "CPU s/1000", "MB/s", "PSS MB", "slope B/batch"]
    rows = []
    for point in result["points"]:
        median, runs = point["median"], point["repeats"]
        step = median["step_ms"]
        ratios = [run["ratio"] for run in runs if run["ratio"] is not None]
        rise, error = median["slope_bytes_per_batch"], median["slope_error"]
        rows.append(
            [
                label(point["point"]),
                f"{median['batches_per_s']:.1f}",
                round(median["samples_per_s"]),
                _number(median["limit_samples_per_s"], ",.0f"),
                _number(median["ratio"], ".3f"),
                f"{min(ratios):.3f}-{max(ratios):.3f}" if ratios else "-",
                f"{point['to_first']:.3f}",
                _number(median["cpu_ratio"], ".3f"),
                f"{median['others_cpu_share']:.0%}",
                *(f"{step[key]:.1f}" for key in ("mean", "p50", "p90", "p99", "max")),
                f"{median['first_batch_s']:.2f}",
                f"{median['cpu_s_per_1000_pairs']:.3f}",
                round(median["storage_bytes_per_s"] / 1e6),
                _number(median["peak_pss_bytes"], ",.0f", scale=1e-6),
                _number(rise, ",.0f") + (f" ± {error:,.0f}" if error is not None else ""),
            ]
        )
    machine = result["machine"]
    lowest = min(point["median"]["lowest_available_bytes"] for point in result["points"])
    lines = [
        format_table(header, rows),
        f"medians of {result['parameters']['repeat']} on {machine['cores']} cores of {machine['cpu']}; MB are 10^6 "
        f"bytes; the machine had {lowest / 1e9:.1f} GB of memory left at least",
    ]
    if max(point["median"]["others_cpu_share"] for point in result["points"]) > _QUIET:
        lines.append("the machine was busy with other things too: go by the CPU ratio, or measure when it is quiet")
    return "\n".join(lines)


def _number(value: float | None, form: str, *, scale: float = 1.0) -> str:
    return "-" if value is None else f"{value * scale:{form}}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m bench.loader",
        description="Measure the loader beside decoding the same JPEGs alone.",
        epilog="A point with the defaults takes some 15 s a repeat on two idle cores.",
    )
    for field in dataclasses.fields(Parameters):
        read, what = PARAMETERS[field.name]
        default = "" if field.default is None else f" (default: {field.default})"
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=read, default=field.default, help=what + default)
    parser.add_argument("--no-limit", action="store_true", help="do not measure decoding alone")
    parser.add_argument("--repeat", type=whole(1), default=3, help="measurements of each point (default: 3)")
    parser.add_argument(
        "--sweep",
        type=parse_sweep,
        action="append",
        default=[],
        metavar="KEY=A,B,C",
        help="a point for each value of one of the parameters above; given several times, for each combination",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder for {RESULT_FILE}, all figures")
    parser.add_argument("--json", action="store_true", help="print all figures, raw ones too, instead of a table")
    return parser


def _say(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(arguments)
    swept = [name for name, _ in options.sweep]
    if twice := {name for name in swept if swept.count(name) > 1}:
        parser.error(f"argument --sweep: {min(twice)} is swept more than once; give all its values at once")
    options.base = Parameters(**{name: getattr(options, name) for name in PARAMETERS})
    if options.no_limit:
        options.base = dataclasses.replace(options.base, limit_s=0.0)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parse(arguments)
    try:
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
        result = run_benchmark(options, _say)
    except ArgumentError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except (PointFailed, StreamError, FormatError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename or options.out}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print(json.dumps(result, indent=1) if options.json else format_result(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
