"""Cost of attaching a float32 to every step of a root, measured by ``bench.scale``."""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stream.format.catalog import Catalog
from stream.format.index import open_index
from stream.label.attach import add_labels, remove_labels

_ROWS = 1 << 20
_NAME = "bench_value"
_SCHEMA = pa.schema([("episode", pa.int64()), ("step", pa.int64()), (_NAME, pa.float32())])


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Attach a table to each dataset of a root, one after the other, and take it away again.

    ``label_s`` is without the writing of the tables, ``label_bytes`` the largest memory of the process, mapped files
    included.
    """
    root, seconds, steps = request["root"], 0.0, 0
    catalog = Catalog(root)
    with tempfile.TemporaryDirectory(dir=root, prefix=".labels") as folder:
        path = Path(folder, "value.parquet")
        for dataset_name in catalog.complete:
            steps += _write(path, catalog, dataset_name)
            began = time.perf_counter()
            add_labels(root, dataset_name, path)
            seconds += time.perf_counter() - began
            remove_labels(root, dataset_name, _NAME)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"label_s": seconds, "label_steps": steps, "label_bytes": peak}


def _write(path: Path, catalog: Catalog, dataset_name: str) -> int:
    """Write a table with a value for each step of a dataset; return their count."""
    table = open_index(catalog.open(dataset_name), "train").steps
    random = np.random.default_rng(0)
    with pq.ParquetWriter(path, _SCHEMA) as writer:
        for start in range(0, len(table), _ROWS):
            keys = [pa.array(table.array(key)[start : start + _ROWS].astype(np.int64)) for key in ("episode", "step")]
            values = random.normal(size=len(keys[0])).astype(np.float32)
            writer.write_table(pa.Table.from_arrays([*keys, pa.array(values)], schema=_SCHEMA))
    return len(table)
