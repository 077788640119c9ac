"""``python -m bench.convert.schedule``: how evenly the workers of a local run end.

Converts shards that wait for given seconds before they are read, with the local runner, and compares the time from the
start of the first to the end of the last with the best division of the seconds among the workers.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from beam_jobs.launch import run_pipeline
from bench.measure.command import Command, Output, Result, work_folder
from bench.measure.options import number, option, several
from bench.synthetic import OFFSET, encode_episode, write_source
from convert.jobs import ShardJob
from convert.journal.journal import FOLDER
from convert.plan import ConvertConfig, plan_conversion
from convert.registry.registry import load_registry
from convert.source.protocol import ReadRequest, Span
from convert.source.rlds.dataset import RldsReader, RldsShard, find_dataset
from stream.base.arguments import whole

_SIDE = 16
_BYTES_A_SECOND = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SlowShard(RldsShard):
    """A shard that waits before it is read."""

    seconds: float

    @contextlib.contextmanager
    def open(self, wanted: ReadRequest, spans: Sequence[Span]) -> Iterator[RldsReader]:
        """Wait, and open the file."""
        time.sleep(self.seconds)
        file = {field.name: getattr(self, field.name) for field in fields(RldsShard)}
        with RldsShard(**file | {"bytes": Path(self.path).stat().st_size}).open(wanted, spans) as reader:
            yield reader


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions(Output):
    """Options of the command."""

    seconds: tuple[float, ...] = option(
        (6.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), several(number(0)), "seconds of each job, at most 16", metavar="A,B"
    )
    num_workers: int = option(2, whole(1), "worker processes")


def best_division(seconds: Sequence[float], workers: int) -> float:
    """Return the least time in which workers can do some jobs.

    >>> best_division([3, 1, 1, 1], 2)
    3
    """
    divisions = itertools.product(range(workers), repeat=len(seconds) - 1)
    return min(
        max(
            sum(length for length, who in zip(seconds, (0, *others), strict=True) if who == worker)
            for worker in range(workers)
        )
        for others in divisions
    )


def _work(given: ScheduleOptions) -> Iterator[dict[str, Any]]:
    logging.disable(logging.WARNING)
    picture = simplejpeg.encode_jpeg(np.zeros((_SIDE, _SIDE, 3), np.uint8))
    episode = encode_episode(0, [picture] * (OFFSET + 1), instruction="wait")
    with work_folder("bench-schedule", None) as folder:
        shards = [[episode]] * len(given.seconds)
        shape = (_SIDE, _SIDE)
        made = write_source(folder, shards, name="bench_wait", shape=shape, encoding="jpeg", offset=OFFSET)
        (selected,) = load_registry(config=[str(made.config)]).resolve(made.name, lambda *_: {})
        source = find_dataset([str(made.root)], made.name, selected.spec.version)
        conversion = plan_conversion(selected, source, ConvertConfig(), output_folder=str(folder / "out"))
        conversion.journal.begin(conversion.journal_parameters)
        jobs = [_slow(job, seconds) for job, seconds in zip(conversion.jobs, given.seconds, strict=True)]
        plans = {conversion.name: conversion.plan}
        run_pipeline(
            jobs, plans, [], num_workers=given.num_workers, program_flags=[], progress=contextlib.nullcontext()
        )
        journal = folder / "out" / FOLDER
        times = {
            kind: [(journal / f"{job.stem}{kind}").stat().st_mtime for job in jobs]
            for kind in (".lock", ".status.json")
        }
        took = max(times[".status.json"]) - min(times[".lock"])
    best = best_division(given.seconds, given.num_workers)
    yield {"seconds": took, "best_seconds": best, "ratio": took / best}


def _slow(job: ShardJob, seconds: float) -> ShardJob:
    about = {field.name: getattr(job.shard, field.name) for field in fields(RldsShard)}
    # The order of jobs goes by bytes.
    return replace(job, shard=SlowShard(**about | {"bytes": round(seconds * _BYTES_A_SECOND)}, seconds=seconds))


def format_result(result: Result) -> str:
    """Return the result in a line."""
    return f"{result['seconds']:.2f} s, at best {result['best_seconds']:.2f} s"


COMMAND = Command(
    name="convert.schedule",
    about="Measure how evenly the workers of a local run end.",
    options=ScheduleOptions,
    work=_work,
    show=format_result,
    libraries=("apache-beam",),
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
