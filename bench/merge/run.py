"""Measurement of one size: ``python -m bench.merge.run``, started by ``bench.merge`` in a process of its own."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bench.measure.child import answer
from bench.measure.machine import peak_resident, resident_of_no_file
from bench.scale.root import ACTION, STATE
from convert.index.statistics import split_statistics
from convert.index.tables import merge_index
from stream.format.names import TABLE_KINDS, table_file

_EVERY = 0.02


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Merge a journal and compute the statistics.

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
    times = [time.perf_counter()]
    index = merge_index(folder, files, action=ACTION, state=STATE)
    times.append(time.perf_counter())
    split_statistics(folder, action=ACTION, state=STATE)
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


if __name__ == "__main__":
    sys.exit(answer(run))
