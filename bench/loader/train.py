"""``python -m bench.loader.train``: a training run on the loader, and the share of its time that it waits for data.

With CUDA the run trains the model of ``examples/train_latent_action.py``. Without CUDA a step is a sleep of
``--step-ms``, as long as a step of a device: a model that computes on the cores of the workers would say nothing about
a GPU machine (``--model`` trains it nevertheless). Every ``--val-every`` steps the run validates on another split,
with new workers.

``waiting`` is the share of the training time that ``next`` took, as Lightning's SimpleProfiler counts it. ``beyond ms``
is the time that a step takes longer than on a ready batch. CUDA adds GPU use, the speed of copying a batch's frames
from page-locked and from pageable memory, and ``overlap``, the part of the copy that the step does not wait for;
``--step-ms`` then multiplies matrices.

Each repeat of each point runs in a fresh process, in alternation; figures are medians.
"""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from bench.loader.parameters import Parameters, open_loader
from bench.measure.child import ask
from bench.measure.command import Result
from bench.measure.options import number, option, usable_device
from bench.measure.points import Point, Prepared, Repeated, prepare_sweep, study, sweep_over
from bench.measure.tables import Table, figure, point_table, spread
from stream.base.arguments import whole_number
from stream.base.errors import ArgumentError
from stream.loader.loader import Loader

RESULT_FILE = "train.json"
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


@dataclass(frozen=True, kw_only=True)
class TrainParameters(Parameters):
    """Parameters of a training run: those of the loader, and those of validation and the step."""

    val_split: str = option("val", str, "split or role of validation; of a packaged mixture `val` is train[90%:]")
    val_every: int = option(80, whole_number(0), "steps between validations, 0 for none")
    val_steps: int = option(10, whole_number(1), "batches of a validation")
    device: str | None = option(None, str, "cpu, cuda, cuda:1 and so on; by default cuda if there is one")
    step_ms: float | None = option(None, number(0), "milliseconds of a sleep that replaces the model's step")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(TrainParameters, Repeated):
    """Options of the command; device and step are chosen where they are not given."""

    model: bool = option(False, bool, f"train the model without CUDA too, instead of --step-ms {_STEP_MS:g}")
    sweep: list[tuple[str, list[Any]]] | None = sweep_over(TrainParameters)

    def __post_init__(self) -> None:
        if self.model and self.step_ms is not None:
            raise ArgumentError("argument --step-ms: not allowed with argument --model")
        device = usable_device(self.device)
        object.__setattr__(self, "device", device)
        if self.step_ms is None and not self.model and not device.startswith("cuda"):
            object.__setattr__(self, "step_ms", _STEP_MS)


def _prepare(options: TrainOptions) -> AbstractContextManager[Prepared]:
    def measure(_: Point, parameters: dict[str, Any]) -> dict[str, Any]:
        return ask("bench.loader.train_run", parameters)

    return prepare_sweep(options, TrainParameters, open_loaders, measure)


def open_loaders(parameters: TrainParameters) -> tuple[Loader, Loader | None]:
    """Return the loaders of training and of validation, not started; raises ArgumentError."""
    validation = dataclasses.replace(parameters, split=parameters.val_split)
    return open_loader(parameters), open_loader(validation) if parameters.val_every else None


def train_table(result: Result) -> Table:
    """Return the table of a result."""
    parameters = result["parameters"]
    work = "the model's step" if parameters["step_ms"] is None else "a sleep instead of a device's work as the step"
    note = (
        f"Medians of {parameters['repeat']}, {parameters['steps']:,} steps of {parameters['batch_size']} each, {work}, "
        f"device {parameters['device']}. MB are 10^6 bytes."
    )
    return point_table(result["points"], _COLUMNS, [note])


COMMAND = study(
    name="loader.train",
    file=RESULT_FILE,
    about="Measure a training run and its waiting for data.",
    options=TrainOptions,
    prepare=_prepare,
    describe=lambda run: f"{run['steps_per_s']:.2f} steps/s, {run['wait_share']:.2%} of the time waiting",
    table=train_table,
    libraries=("array-record", "grain", "numpy", "simplejpeg", "torch"),
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
