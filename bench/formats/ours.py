"""The format of this repository: a converted dataset of the pairs alone, read by ``stream.make_loader``.

Each pair is an episode of two steps without other features.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

import stream
from bench.peers.protocol import Request, serve
from convert.index.tables import merge_index, write_part
from convert.plan import shard_stem
from convert.shard.record_file import RecordWriter, encode_record
from convert.storage.durable import describe_file
from stream.format.manifest import Manifest, ShardEntry, Source, SplitEntry, TableEntry, encode_manifest
from stream.format.names import FORMAT_VERSION, MANIFEST_NAME, TABLE_KINDS, TableKind, shard_file, table_file
from stream.format.schema import FIRST_FIELDS
from stream.loader.iterator import LoaderIterator

DATASET, VERSION, SPLIT = "study", "1.0.0", "train"
_SHARD_PAIRS = 1000


def make_copy(request: Request) -> None:
    """Write the dataset as ``convert.run`` leaves it, at most 1,000 pairs a shard and a shard for each worker."""
    count = len(request.pairs)
    shards = min(count, max(1, request.num_workers, -(-count // _SHARD_PAIRS)))
    size = "{}x{}".format(*request.pairs.shape)
    folder = request.copy / DATASET / VERSION / SPLIT
    folder.mkdir(parents=True)
    entries, parts = [], []
    with TemporaryDirectory(dir=request.copy) as journal:
        for shard in range(shards):
            places = range(shard * count // shards, (shard + 1) * count // shards)
            stem = shard_stem(SPLIT, shard, shards)
            with RecordWriter(folder / shard_file(stem), output=request.copy) as writer:
                for place in places:
                    pair = request.pairs.pair(place)
                    writer.write(encode_record([pair["first"], pair["second"]]))
            parts.append({kind: Path(journal, f"{stem}.{table_file(kind)}") for kind in TABLE_KINDS})
            for kind, table in _tables(stem, len(places), writer.places()).items():
                write_part(parts[-1][kind], table)
            entries.append(
                ShardEntry(
                    name=stem,
                    source_file=stem,
                    source_bytes=0,
                    source_digest="",
                    episodes=len(places),
                    steps=2 * len(places),
                    records=len(places),
                    paired_episodes=len(places),
                    left_out={},
                    file=describe_file(folder / shard_file(stem)),
                    sizes={size: 2 * len(places)},
                    passed=2 * len(places),
                )
            )
        index = merge_index(folder, parts, action=(), state=())
    _write_manifest(folder.parent, size, entries, index)


def _write_manifest(folder: Path, size: str, entries: list[ShardEntry], index: dict[TableKind, TableEntry]) -> None:
    totals = {key: sum(getattr(entry, key) for entry in entries) for key in TABLE_KINDS}
    frames = totals["steps"]
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        layout="pairs",
        dataset=DATASET,
        version=VERSION,
        source=Source(tfds_name=DATASET, version=VERSION, path="", fingerprint="0" * 64),
        parameters={"offset": 1, "frames": "endpoints", "frame_offsets": [0, 1], "columns": []},
        spec={"name": DATASET},
        image={"encoding": "jpeg", "sizes": {size: frames}, "passed": frames, "transcoded": 0},
        left_out={},
        quarantine=None,
        splits={SPLIT: SplitEntry(**totals, shards=tuple(entries), index=index)},
        statistics={SPLIT: {}},
        versions={},
        **totals,
    )
    (folder / MANIFEST_NAME).write_bytes(encode_manifest(manifest))


def _tables(stem: str, count: int, locations: dict[str, np.ndarray]) -> dict[TableKind, pa.Table]:
    """Return the parts of the index for a shard, each pair an episode of a source file of the shard's name."""
    ones, places = np.ones(count, np.int64), np.arange(count)
    zeros, texts = 0 * ones, [""] * count
    ids = [f"{stem}__{number}" for number in range(count)]
    ok, files = ["ok"] * count, [stem] * count
    columns: dict[TableKind, list[Any]] = {
        "records": [zeros, places, zeros, zeros, ones, 2 * places, *locations.values()],
        "steps": [np.repeat(places, 2), np.tile([0, 1], count), 2 * texts],
        "episodes": [places, zeros, ids, files, places, ok, 2 * ones, 2 * places, ones, places, texts, texts],
    }
    return {
        kind: pa.Table.from_arrays(
            [pa.array(values, field.type) for values, field in zip(columns[kind], fields, strict=True)],
            schema=pa.schema(fields),
        )
        for kind, fields in FIRST_FIELDS.items()
    }


def open_batches(request: Request) -> closing[LoaderIterator]:
    """Return the loader's batches; without workers it decodes in threads."""
    loader = stream.make_loader(
        request.copy,
        {DATASET: 1},
        batch_size=request.batch_size,
        split=SPLIT,
        seed=request.seed,
        num_workers=request.num_workers,
        metadata="dataset_only",
        shuffle="global" if request.shuffled else "none",
    )
    return closing(iter(loader))


if __name__ == "__main__":
    sys.exit(serve(open_batches, make_copy))
