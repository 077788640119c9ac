"""``python -m bench.gpu``: every way of a batch to a GPU, checked against the host's result, and measured.

It makes its own data (two datasets of ``pairstream sample``) and needs no network. ``--roots`` makes them once and uses
them again: on a machine without TensorFlow, make them elsewhere and bring the folder. Each group of checks and each
figure runs in a fresh process, so that one that crashes leaves the others. Without CUDA it runs the parts that work on
a CPU; each line that is left out says why.

**Checks.** Copies must equal the host's batches bitwise. Pixels that nvJPEG decodes may differ by ``LEVELS`` levels of
256 from the host's: from those of libjpeg-turbo where colour is stored in full size (4:4:4), and from those of
libjpeg-turbo without smoothing of colour where it is stored in half the size (4:2:0). The note of a check also has
their distance from the host's usual pixels.

**Figures.** ``pairs/s`` without a step, and ``waiting`` and ``beyond`` at steps of some milliseconds (products of
matrices on CUDA, sleeps elsewhere), as ``bench.loader.train`` counts them; copies of a batch's frames from page-locked
and pageable memory, the copy into page-locked memory before, and the copy right from a ring that is page-locked.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure.child import ChildFailed, ask
from bench.measure.command import Command, Output, Result, tell, work_folder
from bench.measure.options import number, option, usable_device
from bench.measure.session import run
from bench.measure.tables import markdown_table
from stream.base.arguments import whole_number
from stream.base.machine import usable_processors

DATASETS = "viola,droid"
"""Datasets with several cameras, of sizes other than 256x256, so that their frames are encoded again."""
ROOTS = {
    "pairs": ("--subsampling", "420"),
    "420": ("--layout", "frames", "--cameras", "all", "--subsampling", "420"),
    "444": ("--layout", "frames", "--cameras", "all", "--subsampling", "444"),
}
"""Roots below the work folder, and how they are converted."""
LEVELS = 2
_CHECKS_S = 120.0
"""Seconds that a group of checks may take."""
_LEAST_S = 20.0
"""Seconds that must be left for a figure."""


@dataclass(frozen=True, kw_only=True)
class GpuOptions(Output):
    """Options of the command."""

    device: str | None = option(None, str, "cuda, cuda:1 or cpu; by default cuda if there is one")
    batch_size: int = option(256, whole_number(1), "rows of a batch in the figures")
    num_workers: int | None = option(None, whole_number(1), "worker processes; by default one per processor")
    image_size: int = option(256, whole_number(16), "height and width of the frames")
    episodes: int = option(8, whole_number(2), "episodes of each dataset of the sample")
    steps: int = option(40, whole_number(12), "steps of an episode")
    batches: int = option(100, whole_number(1), "batches of each figure")
    step_ms: tuple[float, ...] = option(
        (20.0, 50.0), lambda text: tuple(map(number(0), text.split(","))), "lengths of a training step", metavar="A,B"
    )
    roots: Path | None = option(None, Path, "folder of the data, made if it is not there; by default a temporary one")
    minutes: float = option(8.0, number(0), "leave out figures that would begin later than this")

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", usable_device(self.device))
        object.__setattr__(self, "num_workers", self.num_workers or usable_processors())


def make_roots(options: GpuOptions, folder: Path) -> None:
    """Make the sample and convert it into ``ROOTS``, unless they are there."""
    ready = folder / "ready"
    if ready.exists():
        return
    tell("making the sample")
    source = str(folder / "source")
    sample = ("--episodes", str(options.episodes), "--steps", str(options.steps))
    _command("pairstream", "sample", "--datasets", DATASETS, "--output", source, *sample)
    common = ("--datasets", DATASETS, "--source", source, "--image-size", str(options.image_size))
    for root_name, more in ROOTS.items():
        _command("convert.run", *common, "--output", str(folder / root_name), *more)
    shutil.rmtree(source)
    ready.touch()


def _command(module: str, *arguments: str) -> None:
    done = run(*arguments, module=module)
    if done.code != 0:
        raise ChildFailed(f"{module} ended with {done.code}: {done.err.strip()}")


def _work(options: GpuOptions) -> Iterator[dict[str, Any]]:
    began = time.monotonic()
    result: dict[str, Any] = {"checks": [], "figures": []}
    with work_folder("bench-gpu", options.out) if options.roots is None else nullcontext(options.roots) as folder:
        make_roots(options, folder)
        for module in ("bench.gpu.torch_checks", "bench.gpu.jax_checks"):
            tell(module)
            try:
                outcomes = ask(module, {"folder": str(folder), "device": options.device}, timeout=_CHECKS_S)["checks"]
            except ChildFailed as error:
                outcomes = [{"name": module, "status": "failed", "note": str(error)}]
            result["checks"] += outcomes
            yield result
        for request in _requests(options, folder):
            seconds_left = 60 * options.minutes - (time.monotonic() - began)
            result["figures"].append(_figure(request, seconds_left))
            tell(f"{request['name']}: {result['figures'][-1]}")
            yield result
        yield {**result, "seconds": time.monotonic() - began}


def _requests(options: GpuOptions, folder: Path) -> Iterator[dict[str, Any]]:
    common = {name: getattr(options, name) for name in ("batch_size", "num_workers", "device")}
    common |= {"root": str(folder / "pairs"), "steps": options.batches}
    for library, decode in (("torch", "host"), ("torch", "device"), ("jax", "host")):
        for step_ms in (0.0, *options.step_ms):
            figure_name = f"{library}, decoded on the {decode}, step of {step_ms:g} ms"
            yield {"name": figure_name, "library": library, "decode": decode, "step_ms": step_ms, **common}


def _figure(request: Mapping[str, Any], seconds_left: float) -> dict[str, Any]:
    """Return the figures of a request, or why there are none."""
    figure = {"name": request["name"]}
    if seconds_left < _LEAST_S:
        return {**figure, "skipped": "the time of --minutes is over"}
    try:
        return {**figure, **ask("bench.gpu.figures", request, timeout=seconds_left)}
    except ChildFailed as error:
        return {**figure, "failed": str(error)}


def format_result(result: Result) -> str:
    """Return the tables of a result, in Markdown."""
    parameters = result["parameters"]
    checked = [[check["name"], check["status"], check["note"]] for check in result["checks"]]
    parts = [markdown_table(["check", "result", "note"], checked)]
    header = ["figure", "on", "pairs/s", "waiting", "beyond, ms", "step p50, ms"]
    rows: list[list[str]] = []
    copies: dict[str, float | None] = {}
    for figure in result["figures"]:
        if reason := figure.get("skipped") or figure.get("failed"):
            rows.append([figure["name"], "-", reason, "", "", ""])
            continue
        shown = [f"{figure['pairs_per_s']:,.0f}", f"{figure['wait_share']:.2%}", f"{figure['beyond_ms']:.1f}"]
        rows.append([figure["name"], figure["device"], *shown, f"{figure['step_p50_ms']:.1f}"])
        copies = copies or figure.get("copies", {})
    parts.append(markdown_table(header, rows))
    speeds = [f"{copy_name.replace('_', ' ')} {value:.1f}" for copy_name, value in copies.items() if value is not None]
    parts.append(f"Copies of a batch's frames, GB/s: {', '.join(speeds)}." if speeds else "No copies without CUDA.")
    on_cpu = "the CPU instead of a device: these figures say nothing about a GPU"
    device = on_cpu if parameters["device"] == "cpu" else "CUDA"
    parts.append(f"Batches of {parameters['batch_size']}, {parameters['num_workers']} workers, {device}.")
    return "\n\n".join(parts)


COMMAND = Command(
    name="gpu",
    about="Check every way of a batch to a GPU against the host, and measure it.",
    options=GpuOptions,
    work=_work,
    show=format_result,
    failed=lambda result: any(check["status"] == "failed" for check in result["checks"]),
    libraries=("grain", "jax", "jaxlib", "numpy", "simplejpeg", "torch", "torchvision"),
)
main = COMMAND.main
