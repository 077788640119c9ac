"""``python -m bench.scale``: cost of opening, planning, batches, resuming, memory and labels, 10^5 to 6*10^7 records.

The roots are synthetic (`bench.synthetic`): real formats, 29 datasets, up to 20,000 shards, frames of 256x256, and
hard links instead of shards that would only fill the disk. They are made in ``--work`` and removed again. Every size is
measured in a fresh process, ``--repeat`` times, in alternation; figures are medians.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.measure.child import ask
from bench.measure.command import Result, tell, work_folder
from bench.measure.machine import own_set, proportional_set
from bench.measure.options import option, wholes
from bench.measure.points import Point, Prepared, Repeated, study
from bench.measure.tables import Table, figure, point_table
from bench.synthetic import DATASETS, Scale, make_root
from stream import Normalize, make_loader
from stream.base.arguments import whole
from stream.loader.iterator import LoaderIterator
from stream.loader.loader import Loader

FAR = 10**8
_PLANNED = 256
_WEIGHTS = "steps.step"
"""Column of weights: whole numbers from 0 on, of which the first step of each episode is never drawn."""
_FIRST = 100
"""Batches taken right after the page cache was dropped, and again after them."""
_MAPPED_S = 3.0
"""Seconds in which new workers map the index: encoded batches are so fast that mapping would count among them."""
_COLUMNS = {
    "shards": lambda point: f"{point['point']['shards']:,}",
    "open s": figure("open_s", form=".2f"),
    "first batch s": figure("first_batch_s", form=".2f"),
    "cold open s": figure("cold_open_s", form=".2f"),
    "cold first s": figure("cold_first_batch_s", form=".2f"),
    "cold/warm rate": figure("cold_rate", form=".2f"),
    "plan 256 ms": figure("plan_ms", form=".2f"),
    "CPU ms a batch": figure("batch_cpu_ms", form=".1f"),
    "beside decoding": figure("beside_cpu_ms", form=".1f"),
    "resume at 10^8 s": figure("resume_s", form=".2f"),
    "describe ms": figure("describe_ms", form=".0f"),
    "statistics ms": figure("normalize_ms", form=".1f"),
    "weighted open s": figure("weighted_open_s", form=".2f"),
    "weighted plan ms": figure("weighted_plan_ms", form=".2f"),
    "weights MB": figure("weighted_bytes", form=",.1f", scale=1e-6),
    "trainer MB": figure("trainer_own_bytes", form=",.0f", scale=1e-6),
    "worker MB": figure("worker_own_bytes", form=",.0f", scale=1e-6),
    "labels s": figure("label_s", form=".1f"),
    "labels MB": figure("label_bytes", form=",.0f", scale=1e-6),
}


@dataclass(frozen=True, kw_only=True)
class ScaleOptions(Repeated):
    """Options of the command."""

    records: tuple[int, ...] = option((100_000, 1_000_000, 10_000_000, 60_000_000), wholes(1), "sizes", metavar="A,B")
    batch_size: int = option(64, whole(1), "rows of a batch")
    num_workers: int = option(2, whole(0), "worker processes")
    batches: int = option(400, whole(2), "batches of a measurement")
    work: Path | None = option(None, Path, "folder for the roots; by default the temporary one", metavar="DIR")


@contextmanager
def _prepare(given: ScaleOptions) -> Iterator[Prepared]:
    loader = {key: getattr(given, key) for key in ("batch_size", "num_workers", "batches")}
    points = []
    with work_folder("bench-scale", given.work) as work:
        for asked in given.records:
            scale = Scale.of(asked)
            tell(f"making {scale.records:,} records in {scale.shards:,} shards")
            make_root(work / str(asked), scale)
            figures = {"records": scale.records, "shards": scale.shards, "asked": asked}
            points.append(Point(f"{scale.records:,}", figures))
        yield Prepared(
            points=points,
            measure=lambda point: _measure(str(work / str(point.parameters["asked"])), loader),
        )


def _measure(root: str, loader: dict[str, int]) -> dict[str, Any]:
    return {**ask("bench.labels", {"root": root}), **ask("bench.scale", {"root": root, **loader})}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Measure a root of `bench.synthetic`.

    Args:
        request: root; batch_size, num_workers and batches.

    Returns:
        cold_open_s, cold_first_batch_s, cold_hundred_s: As below, after the kernel's cache of the index was dropped.
        hundred_s: Taking the first hundred batches, from ``iter`` on; cold_rate: its share of ``cold_hundred_s``.
        open_s: ``make_loader``, with all its imports done.
        first_batch_s: From ``iter`` on, workers started.
        plan_ms: Planning 256 samples, median over steps all over the order; plan_first_ms: the first time.
        batch_cpu_ms: CPU time of a batch, trainer and workers, after the first half.
        beside_cpu_ms: The same of batches whose frames stay encoded (``decode="device"``).
        resume_s: From ``set_state`` to the batch of step 10^8.
        describe_ms: ``describe`` of a batch at 10^8.
        normalize_ms: Making the tables of all statistics.
        weighted_open_s, weighted_plan_ms: ``open_s`` and ``plan_ms`` with weights of all samples.
        weighted_bytes: Memory that the weights add to the trainer.
        trainer_own_bytes, worker_own_bytes: Memory without mapped files at the end; that of the largest worker.
        trainer_pss_bytes, worker_pss_bytes: Memory with the share of mapped files.
    """
    root, half = request["root"], request["batches"] // 2
    mixture = {f"synthetic_{number:02}": 1.0 + number for number in range(DATASETS)}

    def open_loader(**given: Any) -> Loader:
        size = {key: request[key] for key in ("batch_size", "num_workers")}
        return make_loader(root, mixture, **size, seed=1, **given)

    # Imports on first use are not part of opening.
    make_loader(root, {"synthetic_00": 1.0}, batch_size=1).batch_at(0)
    gc.collect()
    drop_cache(root)
    cold_open, loader = _timed(open_loader)
    cold_first, cold_hundred = _take_hundred(loader)
    open_seconds, loader = _timed(open_loader)
    first_batch, hundred = _take_hundred(loader)

    def plan(of: Loader, place: int) -> float:
        samples = of.data.plan.batch_samples(place, _PLANNED)
        return _timed(lambda: of.data.plan.rows(samples))[0]

    places = np.random.default_rng(0).integers(0, FAR, 50).tolist()
    first_plan = plan(loader, 0)
    planned = [plan(loader, place) for place in places]
    iterator = iter(loader)
    cpu = _batch_cpu_seconds(iterator, half)
    processes = (psutil.Process(), *psutil.Process().children())
    own, shared = ([measured(process.pid) for process in processes] for measured in (own_set, proportional_set))
    state = {**iterator.get_state(), "step": FAR}

    def resume() -> None:
        iterator.set_state(state)
        next(iterator)

    resumed, described, normalized = (
        _timed(work)[0] for work in (resume, lambda: loader.describe(FAR), lambda: Normalize(loader))
    )
    iterator.close()
    encoded = iter(Loader(loader.data, dataclasses.replace(loader.run_config, decode="device")))
    next(encoded)
    time.sleep(_MAPPED_S)
    beside = _batch_cpu_seconds(encoded, half)
    encoded.close()
    weighted_open, weighted = _timed(lambda: open_loader(sample_weights=_WEIGHTS))
    weighted_plans = [plan(weighted, place) for place in places]
    return {
        "records": sum(loader.sizes.values()),
        "shards": sum(len(split.shards) for split in loader.data.views.splits),
        "cold_open_s": cold_open,
        "cold_first_batch_s": cold_first,
        "cold_hundred_s": cold_hundred,
        "hundred_s": hundred,
        "cold_rate": hundred / cold_hundred,
        "open_s": open_seconds,
        "first_batch_s": first_batch,
        "plan_first_ms": 1000 * first_plan,
        "plan_ms": 1000 * float(np.median(planned)),
        "batch_cpu_ms": 1000 * cpu,
        "beside_cpu_ms": 1000 * beside,
        "resume_s": resumed,
        "describe_ms": 1000 * described,
        "normalize_ms": 1000 * normalized,
        "weighted_open_s": weighted_open,
        "weighted_plan_ms": 1000 * float(np.median(weighted_plans)),
        "weighted_bytes": weighted.data.views.weights.nbytes,
        "trainer_own_bytes": own[0],
        "worker_own_bytes": _largest(own[1:]),
        "trainer_pss_bytes": shared[0],
        "worker_pss_bytes": _largest(shared[1:]),
    }


def drop_cache(root: str) -> None:
    """Drop the index files of a root from the kernel's cache, as after a restart of the machine."""
    for path in Path(root).rglob("*.arrow"):
        with path.open("rb") as file:
            # Pages that are not on the disk yet cannot be dropped.
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _take_hundred(loader: Loader) -> tuple[float, float]:
    """Return the seconds to the first and to the hundredth batch of a new iterator."""
    began = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    first = time.perf_counter() - began
    for _ in range(_FIRST - 1):
        next(iterator)
    hundred = time.perf_counter() - began
    iterator.close()
    return first, hundred


def _batch_cpu_seconds(iterator: LoaderIterator, count: int) -> float:
    """Return the CPU time of a batch, the mean of ``count`` of them after as many."""
    for _ in range(count):
        next(iterator)
    began = _cpu_seconds()
    for _ in range(count):
        next(iterator)
    return (_cpu_seconds() - began) / count


def _largest(sizes: Sequence[int | None]) -> int | None:
    return max((size for size in sizes if size is not None), default=None)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def _cpu_seconds() -> float:
    # Of processes, because threads that end take their own figures along.
    children = psutil.Process().children()
    return time.process_time() + sum(sum(child.cpu_times()[:2]) for child in children)


def _table(result: Result) -> Table:
    given = result["parameters"]
    note = (
        f"medians of {given['repeat']}; {given['batches']} batches of {given['batch_size']}, {given['num_workers']} "
        "workers; labels: a float32 attached to every step, with the largest memory, mapped files included; "
        "cold: the first hundred batches after the index left the page cache; memory without mapped files, MB "
        "are 10^6 bytes"
    )
    return point_table(result["points"], _COLUMNS, [note], first="records")


COMMAND = study(
    name="scale",
    about="Measure how the loader's cost grows with the data.",
    options=ScaleOptions,
    prepare=_prepare,
    describe=lambda run: f"open {run['open_s']:.2f} s, first batch {run['first_batch_s']:.2f} s",
    table=_table,
    libraries=("array-record", "grain", "numpy", "pyarrow", "pydantic"),
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
