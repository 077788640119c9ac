"""``python -m tests.faults.chaos``: cause the faults of months of use, and check that nothing is lost.

Each fault happens to real processes: ``python -m convert.run`` on a small sample, or a training script on the loader. A
conversion must end, at the latest when the same command is given again, with output that is byte for byte that of an
undisturbed one, and a training run with the same batches. One clear error line in between is allowed. No process,
temporary file or shared memory may be left. The exit code is 1 if one of these conditions does not hold.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure.command import Command, Output, Result, say, work_folder
from bench.measure.options import one_of, option
from bench.measure.tables import markdown_table
from stream.base.arguments import whole_number
from stream.base.errors import ArgumentError
from stream.base.progress import human_seconds
from stream.format.frame import CODECS, Codec
from tests.faults.chaos.faults import FAULTS, killed
from tests.faults.chaos.programs import WAYS, Training
from tests.faults.chaos.sandbox import Fault, Sandbox

RESULT_FILE = "chaos.json"
_DATASETS = "berkeley_fanuc_manipulation,kuka"
"""PNG and JPEG; their names are also those of TFDS."""


@dataclass(frozen=True, kw_only=True)
class ChaosOptions(Output):
    only: list[str] | None = option(
        None, str, "only faults with this text in their name; repeatable", action="append", metavar="TEXT"
    )
    kills: int = option(100, whole_number(1), "kills of a conversion")
    seed: int = option(0, whole_number(0), "seed of moments and limits")
    jobs: int = option(2, whole_number(1), "faults to try at once")
    short: bool = option(False, bool, "one of each of the shorter faults, in about a minute")
    codec: Codec = option("jpeg", one_of(CODECS), "codec of the frames")
    work: Path | None = option(None, Path, "folder to work in; by default the temporary one", metavar="DIR")


def plan_faults(sandbox: Sandbox, options: ChaosOptions) -> list[Fault]:
    """Return the faults to try, the longest first; ``--kills`` is spread over the three ways to convert."""
    programs = (*WAYS, Training(sandbox))
    faults = []
    for name, run, counts, short in FAULTS:
        for program, count in zip(programs, short if options.short else counts, strict=True):
            kills = run is killed and program in WAYS and not options.short
            faults.append(Fault(name, program, run, round(count * options.kills / 100) if kills else count))
    return [fault for fault in faults if fault.count and any(text in fault.name for text in options.only or [""])]


def run_chaos(options: ChaosOptions, *, damage: Callable[[Sandbox], None] = lambda _: None) -> dict[str, Any]:
    """Make the sample, cause the faults, and return the result."""
    began = time.monotonic()

    def attempt(sandbox: Sandbox, fault: Fault) -> None:
        fault.try_all(sandbox, random.Random(f"{options.seed} {fault.name} {fault.program.where}"))
        message = fault.skipped or f"{fault.survived} of {fault.tried} survived"
        lines = [f"{fault.name}, {fault.program.where}: {message}", *(f"! {problem}" for problem in fault.problems)]
        # One call for all lines: several threads report.
        say(f"{human_seconds(time.monotonic() - began):>6} " + "\n       ".join(lines))

    with work_folder("chaos", options.work) as work:
        shards, size = (4, 128) if options.short else (10, 384)
        sandbox = Sandbox(work, datasets=_DATASETS, shards=shards, size=size, codec=options.codec)
        faults = plan_faults(sandbox, options)
        if not faults:
            raise ArgumentError(f"no fault is called {' or '.join(options.only or [])}")
        sandbox.make(episodes=shards, steps=7 if options.short else 10)
        damage(sandbox)
        with ThreadPoolExecutor(options.jobs) as pool:
            try:
                for done in [pool.submit(attempt, sandbox, fault) for fault in faults]:
                    done.result()
            except BaseException:
                # Ctrl-C: running attempts clean up, the others do not start.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return {
        "seconds": time.monotonic() - began,
        "faults": [fault.as_dict() for fault in faults],
        "broken": sum(bool(fault.problems) for fault in faults),
    }


def format_result(result: Result) -> str:
    """Return the faults as a table in Markdown, problems below it."""
    rows, problems = [], []
    for fault in result["faults"]:
        seen = "; ".join(fault["told"]) or "-"
        if fault["skipped"]:
            seen = f"not tried: {fault['skipped']}"
        if fault["problems"]:
            seen = f"BROKEN: {fault['problems'][0]}"
        rows.append([fault["fault"], fault["where"], fault["tried"], fault["survived"], " ".join(seen.split())])
        problems += [f"BROKEN: {fault['fault']}, {fault['where']}: {problem}" for problem in fault["problems"]]
    tried = sum(fault["tried"] for fault in result["faults"])
    table = markdown_table(["fault", "where", "tried", "survived", "how it looks"], rows, right=False)
    return "\n".join([table, "", f"{tried} faults in {human_seconds(result['seconds'])}", *problems])


COMMAND = Command(
    name="chaos",
    package="tests.faults",
    about="Cause faults and check that nothing is lost.",
    options=ChaosOptions,
    work=lambda options: iter([run_chaos(options)]),
    show=format_result,
    failed=lambda result: result["broken"] > 0,
    libraries=("apache-beam", "array-record", "dask", "grain", "numpy", "pyarrow"),
)
main = COMMAND.main
