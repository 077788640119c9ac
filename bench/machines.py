"""``python -m bench.machines``: what bounds one trainer process on machines with more cores than this one.

**Hand-out.** The trainer is the real one: its plan, ring, requests, replies and hand-out. Its workers are real
processes with the real protocol, but each sleeps as long as a core takes to decode a batch (``--core-rows``), so two
cores can hold many of them. ``trainer CPU`` is measured; ``one trainer`` is what it allows, and ``bound`` the smaller
of that and of what so many cores decode. ``handed out`` is what came out on this machine, whose few cores also run the
protocol in all workers.

**Opening.** Real workers read a root of ``--shards`` shards that lies on a network disk (``bench.network_disk``), where
each request takes ``--latency-ms``. Its requests are counted by trainer and worker. The first batches open nearly a
file for each row; once all are open (``ulimit -n`` permitting) no more are.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grain

from bench.measure.child import ask
from bench.measure.command import Command, Output, Result, tell, work_folder
from bench.measure.options import number, option, wholes
from bench.measure.tables import markdown_table
from bench.network_disk import missing, mounted
from bench.synthetic import DATASETS, EPISODE_PAIRS, Scale, make_root
from stream import make_loader
from stream.base.arguments import whole
from stream.batch.assemble import Assembler, BatchResult
from stream.batch.spec import Batch
from stream.order.rows import Rows

_BATCH = 64
_MANY = 64
"""Workers of a node that is modelled."""
_KINDS = ("lookup", "open", "read")
_TABLE, _SHARD = ".arrow", ".arrayrecord"
_TEXT = "put the red cup on the plate to the left of the sink"


@dataclass(frozen=True, kw_only=True)
class MachinesOptions(Output):
    """Options of the command."""

    workers: tuple[int, ...] = option((2, 16, 64), wholes(1), "worker processes of a trainer", metavar="A,B")
    batch_sizes: tuple[int, ...] = option((64, 256), wholes(1), "rows of a batch", metavar="A,B")
    core_rows: float = option(2130.0, number(1), "rows that a core decodes in a second (see `python -m bench.loader`)")
    seconds: float = option(4.0, number(0.1), "seconds of a measurement, about")
    shards: int = option(22_131, whole(DATASETS), "shards of the root")
    latency_ms: tuple[int, ...] = option((1, 5), wholes(0), "time of a request to the network disk", metavar="A,B")
    openers: tuple[int, ...] = option((1, 4), wholes(1), "worker processes that read from it", metavar="A,B")
    threads: int = option(1, whole(1), "threads of each of them")
    work: Path | None = option(None, Path, "folder for the root; by default the temporary one", metavar="DIR")


class Asleep(grain.transforms.Map):
    """A transform that lets the worker that gets it sleep instead of reading and decoding.

    Args:
        seconds: Seconds of a batch.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def map(self, batch: Batch) -> Batch:
        """Return the batch."""
        return batch

    def __reduce__(self) -> tuple[Any, ...]:
        return _sleep, (self.seconds,)


def _sleep(seconds: float) -> Asleep:
    """Replace the assembling of batches in this process, a worker."""

    def assemble(_: Assembler, rows: Rows, out: dict[str, Any], pending: Any = None) -> BatchResult:
        time.sleep(seconds)
        out["sample"][:] = rows.sample
        return BatchResult(rows, {**out, "language": [f"{_TEXT} {number}" for number in range(len(rows))]})

    Assembler.assemble = assemble  # type: ignore[method-assign, assignment]
    return Asleep(seconds)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Measure, for ``ask``."""
    return _opening(**request) if "threads" in request else _hand_out(**request)


def _loader(root: str, **given: Any) -> Any:
    return make_loader(root, {f"synthetic_{n:02}": 1.0 + n for n in range(DATASETS)}, seed=1, **given)


def _hand_out(root: str, workers: int, batch_size: int, sleep_s: float, seconds: float) -> dict[str, Any]:
    # Small frames, as nobody writes or reads them here, and many large slots would fill the memory.
    given = {"batch_size": batch_size, "num_workers": workers, "image_size": (8, 8)}
    iterator = iter(_loader(root, **given, transforms=[Asleep(sleep_s)]))
    for _ in range(2 * workers):
        next(iterator)
    batches, began, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        next(iterator)
        batches += 1
    passed, cpu = time.perf_counter() - began, time.process_time() - cpu
    iterator.close()
    return {"rows_per_s": batches * batch_size / passed, "trainer_ms": 1000 * cpu / batches}


def _opening(root: str, workers: int, threads: int, seconds: float) -> dict[str, Any]:
    began = time.perf_counter()
    loader = _loader(root, batch_size=_BATCH, num_workers=workers, threads=threads)
    opened = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    first, batches = time.perf_counter(), 0
    while time.perf_counter() - first < seconds:
        next(iterator)
        batches += 1
    passed = time.perf_counter() - first
    iterator.close()
    return {
        "trainer": os.getpid(),
        "open_s": opened - began,
        "first_batch_s": first - opened,
        "batches": 1 + batches,
        "rows_per_s": _BATCH * batches / passed,
    }


def _open_on_disk(root: Path, latency_ms: int, workers: int, given: MachinesOptions) -> dict[str, Any]:
    with mounted(root, delay_s=latency_ms / 1000) as disk:
        request = {"root": str(disk.path), "workers": workers, "threads": given.threads, "seconds": given.seconds}
        found = ask("bench.machines", request)
    trainer = str(found.pop("trainer"))
    requests = {"trainer": disk.requests.pop(trainer, {}), "workers": list(disk.requests.values())}
    return {"latency_ms": latency_ms, "workers": workers, **found, "requests": requests}


def _work(given: MachinesOptions) -> Iterator[dict[str, Any]]:
    with work_folder("bench-machines", given.work) as folder:
        root = str(folder / "root")
        shards = given.shards // DATASETS * DATASETS
        make_root(Path(root), Scale(shards * EPISODE_PAIRS, shards))
        handed, opened = [], []
        for batch_size in given.batch_sizes:
            for workers in given.workers:
                sleep = batch_size / given.core_rows
                request = {"root": root, "workers": workers, "batch_size": batch_size, "sleep_s": sleep}
                found = ask("bench.machines", {**request, "seconds": given.seconds})
                handed.append({"workers": workers, "batch_size": batch_size, **found})
                tell(f"{handed[-1]}")
        lacks = missing()
        for latency_ms in () if lacks else given.latency_ms:
            for workers in given.openers:
                opened.append(_open_on_disk(folder / "root", latency_ms, workers, given))
                tell(f"{opened[-1]}")
        yield {"handed": handed, "opened": opened, "not_opened": lacks, "shards": shards}


def format_result(result: Result) -> str:
    """Return the tables of a result, in Markdown."""
    given = result["parameters"]
    header = ["workers", "batch", "trainer CPU, ms a batch", "one trainer, rows/s", "workers decode, rows/s"]
    rows = []
    for each in result["handed"]:
        most = 1000 * each["batch_size"] / each["trainer_ms"]
        decoded = each["workers"] * given["core_rows"]
        bound = f"{min(most, decoded):,.0f} ({'trainer' if most < decoded else 'decoding'})"
        shown = [f"{each['trainer_ms']:.2f}", f"{most:,.0f}", f"{decoded:,.0f}", bound, f"{each['rows_per_s']:,.0f}"]
        rows.append([str(each["workers"]), str(each["batch_size"]), *shown])
    return "\n\n".join(
        [
            markdown_table([*header, "bound, rows/s", "handed out here, rows/s"], rows),
            "Measured: CPU of the trainer and what it handed out, beside workers that sleep as long as a core decodes "
            f"a batch ({given['core_rows']:,.0f} rows/s). Modelled: the bounds.",
            _show_opened(result),
        ]
    )


def _show_opened(result: Result) -> str:
    if result["not_opened"] is not None:
        return f"Opening was not measured: {result['not_opened']}."
    header = ["latency, ms", "workers", "make_loader, s", "first batch, s", "rows/s after it"]
    header += ["trainer: names", "opens", "reads", "a worker: names", "opens of tables", "of shards"]
    rows, tables = [], 0.0
    for each in result["opened"]:
        trainer = _requests([each["requests"]["trainer"]])
        workers, count = _requests(each["requests"]["workers"]), each["workers"]
        tables, opened = workers["open", _TABLE] / count, workers["open", _SHARD] / count
        names = workers["lookup", _SHARD] / count
        reads = [workers["read", ending] / count for ending in (_TABLE, _SHARD)]
        shown = [f"{each[key]:,.1f}" for key in ("open_s", "first_batch_s", "rows_per_s")]
        own = [sum(found for (kind, _), found in trainer.items() if kind == wanted) for wanted in _KINDS]
        rows.append(
            [str(each["latency_ms"]), str(count), *shown, *(f"{n:,.0f}" for n in (*own, names, tables, opened, *reads))]
        )
    shards = result["shards"]
    each_s = [f"{shards * latency / 1000:,.0f} s at {latency} ms" for latency in result["parameters"]["latency_ms"]]
    return (
        markdown_table([*header, "reads of tables", "reads of shards"], rows)
        + f"\n\nModelled: a worker opens each of the {shards:,} shards once, {' and '.join(each_s)} for one thread. "
        f"{_MANY} workers of a node make {_MANY * (shards + tables):,.0f} openings in all, and ask for {shards:,} "
        f"names together; for their first batches they make about {_MANY * (tables + 3 * _BATCH):,.0f} requests."
    )


def _requests(processes: Sequence[Mapping[str, Mapping[str, int]]]) -> Counter[tuple[str, str]]:
    """Return the requests of some processes together, by kind and ending of the file."""
    found: Counter[tuple[str, str]] = Counter()
    for process in processes:
        for kind, endings in process.items():
            found.update({(kind, ending): count for ending, count in endings.items()})
    return found


COMMAND = Command(
    name="machines",
    about="Measure what one trainer hands out, and model what bounds it on larger machines.",
    options=MachinesOptions,
    work=_work,
    show=format_result,
    libraries=("grain", "numpy"),
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
