"""``python -m bench.train``: a training run on the loader, and the share of its time that it waits for data.

With CUDA the run trains the model of ``examples/train_torch.py``. Without CUDA a step is a sleep of ``--step-ms``, as
long as a step of a device: a model that computes on the cores of the workers would say nothing about a GPU machine
(``--model`` trains it nevertheless). Every ``--val-every`` steps the run validates on another split, with new workers.

``waiting`` is the share of the training time that ``next`` took, as Lightning's SimpleProfiler counts it. ``beyond ms``
is the time that a step takes longer than on a ready batch. CUDA adds GPU use, the speed of copying a batch's frames
from page-locked and from pageable memory, and ``overlap``, the part of the copy that the step does not wait for;
``--step-ms`` then multiplies matrices.

Each repeat of each point runs in a fresh process, in alternation; figures are medians.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bench.measure.command import run_points
from bench.measure.sweep import add_options, make_points, measure_sweep, parse
from bench.measure.tables import Table, figure, point_table, spread
from bench.train.parameters import TrainParameters
from stream.loader.mixed import Options, open_mixture
from stream.loader.running import Running
from stream.storage.arguments import Parser

RESULT_FILE = "train.json"
_LIBRARIES = ("array-record", "grain", "numpy", "simplejpeg", "torch")
_STEP_MS = 50.0
_COLUMNS = {
    "steps/s": figure("steps_per_s", form=".2f"),
    "samples/s": figure("samples_per_s", form=",.0f"),
    "waiting": figure("wait_share", form=".2%"),
    "(range)": spread("wait_share", ".2%"),
    "step p50 ms": figure("step_ms", "p50", form=".1f"),
    "p99 ms": figure("step_ms", "p99", form=".1f"),
    "beyond ms": figure("beyond_ms", form=".1f"),
    "first step s": figure("first_step_s", form=".2f"),
    "validation s": figure("validation", "seconds", form=".2f"),
    "its first batch s": figure("validation", "first_batch_s", form=".2f"),
    "step after it ms": figure("validation", "step_after_s", form=".1f", scale=1000),
    "memory MB": figure("peak_pss_bytes", form=",.0f", scale=1e-6),
    "GPU use": figure("gpu_use", form=".0%"),
    "copy GB/s": figure("copy_gb_s", form=".1f"),
    "from pageable": figure("pageable_gb_s", form=".1f"),
    "overlap": figure("overlap", form=".0%"),
}


def run_benchmark(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all points and return the result that ``--json`` prints.

    Raises:
        ArgumentError: A point has no such loader.
        ChildFailed: No point could be measured.
        OSError: ``--out`` cannot be written to.
    """
    points = make_points(options.sweep)
    for point in points:
        given: TrainParameters = dataclasses.replace(options.base, **point.parameters)
        for split in (given.split, given.val_split) if given.val_every else (given.split,):
            shown = Options(metadata=given.metadata)  # type: ignore[arg-type]
            open_mixture(given.root, given.mixture, split=split, options=shown)
        Running(batch_size=given.batch_size, decode=given.decode)  # type: ignore[arg-type]
    return measure_sweep(
        options,
        points,
        module="bench.train.run",
        libraries=_LIBRARIES,
        file=RESULT_FILE,
        describe=lambda run: f"{run['steps_per_s']:.2f} steps/s, {run['wait_share']:.2%} of the time waiting",
        summarise=lambda points: [point.as_dict() for point in points],
    )


def train_table(result: Mapping[str, Any]) -> Table:
    """Return the table of a result."""
    given = result["parameters"]
    work = "the model's step" if given["step_ms"] is None else "a sleep in place of a device's work as the step"
    note = (
        f"Medians of {given['repeat']}, {given['steps']:,} steps of {given['batch_size']} each, {work}, device "
        f"{given['device']}. MB are 10^6 bytes."
    )
    return point_table(result["points"], _COLUMNS, [note])


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m bench.train", description="Measure a training run and its waiting for data.")
    parser.add_argument(
        "--model", action="store_true", help=f"train the model without CUDA too, not --step-ms {_STEP_MS:g}"
    )
    add_options(parser, TrainParameters, files=f"{RESULT_FILE}, all figures")
    options = parse(parser, TrainParameters, arguments)
    if options.model and options.step_ms is not None:
        parser.error("argument --step-ms: not allowed with argument --model")
    import torch

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"argument --device: found {device!r}, torch sees no CUDA device here")
    step_ms = options.step_ms
    if step_ms is None and not options.model and not device.startswith("cuda"):
        step_ms = _STEP_MS
    options.base = dataclasses.replace(options.base, device=device, step_ms=step_ms)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    return run_points(_parse(arguments), run_benchmark, lambda result: train_table(result).text())
