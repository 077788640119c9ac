"""Seconds and memory of merging the index of a split, measured by ``bench.scale``."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from bench.measure.machine import resident
from bench.scale.memory import anonymous_peak
from bench.synthetic import ACTION, STATE
from convert.index.statistics import split_statistics
from convert.index.tables import merge_index
from convert.registry.dataset import Part, Vector
from stream.format.names import TABLE_KINDS, DerivedName, table_file


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Merge the parts of an index (``make_parts``) and compute the statistics.

    ``merge_peak_bytes`` is the peak memory of this process, ``merge_anonymous_bytes`` that without pages of files.
    """
    parts, folder = (Path(f"{request['root']}-{folder_name}") for folder_name in ("parts", "index"))
    folder.mkdir()
    shards = sorted({path.name.partition(".")[0] for path in parts.iterdir()})
    files = [{kind: parts / f"{shard}.{table_file(kind)}" for kind in TABLE_KINDS} for shard in shards]
    vectors: dict[DerivedName, Vector] = {
        "action": tuple(Part(**part) for part in ACTION),
        "state": tuple(Part(**part) for part in STATE),
    }
    with anonymous_peak() as samples:
        times = [time.perf_counter()]
        index = merge_index(folder, files, vectors)
        times.append(time.perf_counter())
        split_statistics(folder, vectors)
        times.append(time.perf_counter())
    shutil.rmtree(folder)
    return {
        "merge_s": times[1] - times[0],
        "statistics_s": times[2] - times[1],
        "index_bytes": sum(entry.bytes for entry in index.values()),
        "merge_peak_bytes": resident(os.getpid()),
        "merge_anonymous_bytes": max(samples),
    }
