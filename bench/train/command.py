"""``python -m bench.train``: a whole training run on the loader, and how much of it is waiting for data.

With CUDA the model of ``examples/train_torch.py`` is trained; without, its step is a sleep of ``--step-ms``, as long as
a step on the device would take, because a model that computes on the same cores as the workers would say
nothing about a GPU machine (``--model`` trains it all the same). Every ``--val-every`` steps it validates on another
split, with workers of its own, started anew each time.

``beyond ms`` is how much longer a step takes than on a batch that is there already. With CUDA there are also the copy
of a batch's frames from page-locked and from pageable memory, and ``overlap``, the part of the copy that the step does
not wait for; ``--step-ms`` then multiplies matrices for so long.

``waiting`` is the part of the training time that ``next`` took, as Lightning's SimpleProfiler counts it. Every point is
measured in a fresh process, ``--repeat`` times, in alternation; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.loader.sweep import duration, label, make_points, metadata, parse_sweep
from bench.measure.child import ChildFailed, ask
from bench.measure.command import refuse_repeated_sweeps, run_points
from bench.measure.machine import describe_machine
from bench.measure.points import Point, measure_points
from bench.measure.tables import megabytes, number
from convert.report import format_table
from stream.loader.mixed import Options, open_mixture
from stream.loader.running import Running
from stream.storage.arguments import Parser, whole
from stream.storage.files import write_whole

RESULT_FILE = "train.json"
_LIBRARIES = ("array-record", "grain", "numpy", "simplejpeg", "torch")
_STEP_MS = 50.0

PARAMETERS: dict[str, tuple[Callable[[str], Any], Any, str]] = {
    "root": (str, "build/demo/oxe", "converted root; the default is what `make demo` leaves"),
    "mixture": (str, "oxe29", "name of a mixture or dataset, or a YAML file"),
    "split": (str, "train", "split or role of training; of a packaged mixture `train` is train[:90%%]"),
    "val_split": (str, "val", "split or role of validation; of a packaged mixture `val` is train[90%%:]"),
    "batch_size": (whole(1), 64, "rows of a batch"),
    "num_workers": (whole(0), 2, "worker processes of each loader"),
    "metadata": (metadata, "full", "full, dataset_only or none"),
    "decode": (str, "host", "where JPEG is decoded: host, or device (nvJPEG on CUDA)"),
    "warmup": (whole(1), 8, "steps that are not measured, the first one included"),
    "steps": (whole(1), 160, "steps that are measured"),
    "val_every": (whole(0), 80, "steps between validations, 0 for none"),
    "val_steps": (whole(1), 10, "batches of a validation"),
    "seed": (whole(0), 0, "of the order of samples"),
}
"""By name: what reads it from a text, its default, and what it is."""


def run_benchmark(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all points; returns what ``--json`` prints.

    Raises:
        ArgumentError: there is no such loader.
        ChildFailed: no point could be measured.
        OSError: ``--out`` cannot be written to.
    """
    points = [Point(label(point), point) for point in make_points(options.sweep)]
    for point in points:
        chosen = {**options.base, **point.parameters}
        for split in ("split", "val_split") if chosen["val_every"] else ("split",):
            shown = Options(metadata=chosen["metadata"])
            open_mixture(chosen["root"], chosen["mixture"], split=chosen[split], options=shown)
        Running(batch_size=chosen["batch_size"], decode=chosen["decode"])
    result: dict[str, Any] = {
        "parameters": {**options.base, "repeat": options.repeat},
        "sweep": dict(options.sweep),
        "machine": describe_machine(_LIBRARIES),
        "points": [],
    }

    def keep() -> None:
        result["points"] = [point.as_dict() for point in points]
        if options.out is not None:
            write_whole(options.out / RESULT_FILE, json.dumps(result, indent=1))

    measure_points(
        points,
        lambda point: ask("bench.train.run", {**options.base, **point.parameters}),
        repeat=options.repeat,
        describe=lambda run: f"{run['steps_per_s']:.2f} steps/s, {run['wait_share']:.2%} of the time waiting",
        after=keep,
    )
    if not any(point.runs for point in points):
        raise ChildFailed(f"point {points[0].name}: {points[0].error}")
    return result


def format_result(result: dict[str, Any]) -> str:
    """Return the table of a whole result."""
    header = ["point", "steps/s", "samples/s", "waiting", "(range)", "step ms p50", "p99", "beyond ms", "first step s"]
    header += ["validation s", "its first batch s", "step after it ms", "PSS MB"]
    on_cuda = result["parameters"]["device"].startswith("cuda")
    header += ["GPU use", "copy GB/s", "from pageable", "overlap"] if on_cuda else []
    rows = []
    for point in result["points"]:
        figures = point["median"]
        if figures is None:
            rows.append([label(point["point"]), "failed", *["-"] * (len(header) - 2)])
            continue
        shares = [run["wait_share"] for run in point["repeats"]]
        validation = figures["validation"]
        rows.append(
            [
                label(point["point"]),
                f"{figures['steps_per_s']:.2f}",
                f"{figures['samples_per_s']:,.0f}",
                f"{figures['wait_share']:.2%}",
                f"{min(shares):.2%}-{max(shares):.2%}",
                f"{figures['step_ms']['p50']:.1f}",
                f"{figures['step_ms']['p99']:.1f}",
                f"{figures['beyond_ms']:.1f}",
                f"{figures['first_step_s']:.2f}",
                number(validation["seconds"], ".2f"),
                number(validation["first_batch_s"], ".2f"),
                number(validation["step_after_s"], ".1f", scale=1000),
                megabytes(figures["peak_pss_bytes"]),
            ]
        )
        if on_cuda:
            shown = (("gpu_use", ".0%"), ("copy_gb_s", ".1f"), ("pageable_gb_s", ".1f"), ("overlap", ".0%"))
            rows[-1] += [number(figures[key], form) for key, form in shown]
    given = result["parameters"]
    work = "the model's step" if given["step_ms"] is None else f"a sleep of {given['step_ms']:g} ms as the step"
    lines = [format_table(header, rows), f"medians of {given['repeat']}, {work}, device {given['device']}"]
    lines += [f"{label(point['point'])} failed: {point['error']}" for point in result["points"] if point["error"]]
    return "\n".join(lines)


def _sweep(text: str) -> tuple[str, list[Any]]:
    return parse_sweep(text, {**{name: entry[0] for name, entry in PARAMETERS.items()}, "step_ms": duration})


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m bench.train", description="Measure a training run and its waiting for data.")
    for name, (read, default, what) in PARAMETERS.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=read, default=default, help=f"{what} (default: {default})")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ...; by default cuda if there is one")
    step = parser.add_mutually_exclusive_group()
    help_ = f"sleep so long in place of the model's step; without CUDA the default is {_STEP_MS:g}"
    step.add_argument("--step-ms", type=duration, help=help_)
    step.add_argument("--model", action="store_true", help="train the model without CUDA too")
    parser.add_argument("--repeat", type=whole(1), default=3, help="measurements of each point (default: 3)")
    parser.add_argument(
        "--sweep", type=_sweep, action="append", default=[], metavar="KEY=A,B,C", help="a point for each value"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder for {RESULT_FILE}, all figures")
    parser.add_argument("--json", action="store_true", help="print all figures instead of a table")
    options = parser.parse_args(arguments)
    refuse_repeated_sweeps(parser, options.sweep)
    import torch

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"argument --device: found {device!r}, torch sees no CUDA device here")
    step_ms = options.step_ms
    if step_ms is None and not options.model and not device.startswith("cuda"):
        step_ms = _STEP_MS
    options.base = {**{name: getattr(options, name) for name in PARAMETERS}, "device": device, "step_ms": step_ms}
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_points(_parse(arguments), run_benchmark, format_result)


if __name__ == "__main__":
    sys.exit(main())
