"""Seconds and memory of merging the index of a split, measured by ``bench.scale``."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from bench.measure.machine import resident
from bench.synthetic import ACTION, STATE
from convert.index.statistics import split_statistics
from convert.index.tables import merge_index
from convert.registry.dataset import Part, Vector
from stream.format.names import TABLE_KINDS, DerivedName, table_file

_EVERY_S = 0.02


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Merge the parts of an index (``make_parts``) and compute the statistics.

    ``merge_peak_bytes`` is the peak memory of this process, ``merge_anonymous_bytes`` that without pages of files.
    """
    parts, folder = (Path(f"{request['root']}-{folder_name}") for folder_name in ("parts", "index"))
    folder.mkdir()
    shards = sorted({path.name.partition(".")[0] for path in parts.iterdir()})
    files = [{kind: parts / f"{shard}.{table_file(kind)}" for kind in TABLE_KINDS} for shard in shards]
    anonymous, done = [0], threading.Event()

    def sample() -> None:
        while not done.wait(_EVERY_S):
            anonymous.append(resident(os.getpid(), "RssAnon") or 0)

    thread = threading.Thread(target=sample, daemon=True)
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
        "merge_peak_bytes": resident(os.getpid()),
        "merge_anonymous_bytes": max(anonymous),
    }
