"""``python -m bench.merge``: seconds and memory of merging the index of a split, and of its statistics.

The journals are synthetic (`bench.synthetic`): one shard is written, the others are hard links to its parts. Journals
and indexes are made in ``--work`` and removed again. Every size is measured in a fresh process.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure.child import ask
from bench.measure.command import Result, tell, work_folder
from bench.measure.machine import peak_resident, resident_of_no_file
from bench.measure.options import option, wholes
from bench.measure.points import Point, Prepared, Repeated, study
from bench.measure.tables import Table, figure, point_table
from bench.synthetic import ACTION, EPISODE_PAIRS, OFFSET, STATE, make_parts
from convert.index.statistics import split_statistics
from convert.index.tables import merge_index
from convert.registry.dataset import Part, Vector
from stream.base.arguments import whole
from stream.format.names import TABLE_KINDS, DerivedName, table_file

_EPISODES = 23
"""Episodes of a shard, of 65 steps each: 1,495 steps, as a split of 30 million in 20,000 shards has."""
_EVERY = 0.02
_COLUMNS = {
    "shards": lambda point: f"{point['point']['shards']:,}",
    "merge s": figure("merge_s", form=".1f"),
    "statistics s": figure("statistics_s", form=".1f"),
    "index MB": figure("index_bytes", form=",.0f", scale=1e-6),
    "memory MB": figure("peak_bytes", form=",.0f", scale=1e-6),
    "of no file MB": figure("peak_own_bytes", form=",.0f", scale=1e-6),
}


@dataclass(frozen=True, kw_only=True)
class MergeOptions(Repeated):
    """Options of the command."""

    steps: tuple[int, ...] = option((3_000_000, 30_000_000), wholes(1), "sizes of the split", metavar="A,B")
    repeat: int = option(1, whole(1), "measurements of each size")
    work: Path | None = option(None, Path, "folder for the journals; by default the temporary one", metavar="DIR")


@contextmanager
def _prepare(given: MergeOptions) -> Iterator[Prepared]:
    rows = _EPISODES * (EPISODE_PAIRS + OFFSET)
    points = []
    with work_folder("bench-merge", given.work) as work:
        for shards in (max(1, steps // rows) for steps in given.steps):
            points.append(Point(f"{rows * shards:,}", {"shards": shards}))
            tell(f"making the parts of {shards:,} shards")
            make_parts(work / str(shards), episodes=_EPISODES, shards=shards)
        yield Prepared(points=points, measure=lambda point: ask("bench.merge", {"work": str(work), **point.parameters}))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Merge a journal and compute the statistics, for ``ask``.

    Returns:
        merge_s, statistics_s: Seconds of each.
        index_bytes: Size of the index.
        peak_bytes: Peak memory of this process, pages of files included.
        peak_own_bytes: Peak memory without pages of files, sampled every 20 ms.
    """
    parts = Path(request["work"], str(request["shards"]))
    folder = parts.with_name(f"{parts.name}-index")
    folder.mkdir()
    files = [
        {kind: parts / f"{shard:05}.{table_file(kind)}" for kind in TABLE_KINDS} for shard in range(request["shards"])
    ]
    own, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(_EVERY):
            own.append(resident_of_no_file(os.getpid()) or 0)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    vectors: dict[DerivedName, Vector] = {
        "action": tuple(Part(**part) for part in ACTION),
        "state": tuple(Part(**part) for part in STATE),
    }
    times = [time.perf_counter()]
    index = merge_index(folder, files, vectors)
    times.append(time.perf_counter())
    split_statistics(folder, vectors)
    times.append(time.perf_counter())
    done.set()
    thread.join()
    shutil.rmtree(folder)
    return {
        "merge_s": times[1] - times[0],
        "statistics_s": times[2] - times[1],
        "index_bytes": sum(entry.bytes for entry in index.values()),
        "peak_bytes": peak_resident(os.getpid()),
        "peak_own_bytes": max(own),
    }


def _table(result: Result) -> Table:
    note = "memory is the peak of both, libraries included; MB are 10^6 bytes"
    return point_table(result["points"], _COLUMNS, [note], first="steps")


COMMAND = study(
    name="merge",
    about="Measure how merging an index grows with the data.",
    options=MergeOptions,
    prepare=_prepare,
    describe=lambda run: f"merged in {run['merge_s']:.1f} s",
    table=_table,
    libraries=("numpy", "pyarrow"),
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
