"""The same pairs stored in each format: ``python -m bench.formats.stores``, started by ``bench.formats`` once a format.

Every format is written from one file of pairs (`bench.formats.frames`) in one process, frame by frame, as its library
does by default. A store of several files is cut into ``shards`` of neighbouring pairs, at least one for each worker.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from array_record.python.array_record_module import ArrayRecordWriter

from bench.formats.frames import Pair, PairFile
from bench.measure.child import answer
from convert.index.tables import merge_index, write_part
from convert.plan import shard_stem
from convert.sample.record import SampleColumn, encode_example
from convert.shard.record_file import RecordWriter, encode_record
from convert.source.tfrecord import encode_tfrecord
from convert.storage.durable import describe_file
from stream.format.manifest import Manifest, ShardEntry, Source, SplitEntry, TableEntry, encode_manifest
from stream.format.names import FORMAT_VERSION, MANIFEST_NAME, TABLE_KINDS, TableKind, shard_file, table_file
from stream.format.schema import FIRST_FIELDS

FORMATS = ("jpeg", "webdataset", "tfrecord", "lmdb", "arrayrecord", "ours")

NAMES = {
    "jpeg": "JPEG files + CSV",
    "webdataset": "WebDataset",
    "tfrecord": "TFRecord + tf.data",
    "lmdb": "LMDB",
    "arrayrecord": "ArrayRecord + Grain",
    "ours": "pairstream",
}

LIBRARIES = {
    "jpeg": ("torch",),
    "webdataset": ("webdataset", "torch"),
    "tfrecord": ("tensorflow",),
    "lmdb": ("lmdb", "torch"),
    "arrayrecord": ("array_record", "grain"),
    "ours": ("array_record", "grain"),
}
"""The modules that writing and reading each format takes."""

DATASET, VERSION, SPLIT = "study", "1.0.0", "train"
"""What our own store is called below its root."""

_SHARD_BYTES = 256_000_000
_FOLDER_FILES = 1000
_BLOCK = 4096


@dataclass(frozen=True, kw_only=True)
class Store:
    """Pairs stored in a format.

    folder: that holds nothing else. shards: how many files a sharded format is cut into.
    """

    format: str
    folder: str
    pairs: int
    height: int
    width: int
    shards: int


def missing_library(name: str) -> str | None:
    """Return what to do about a library that a format needs and that is not installed; None if all are there."""
    for module in LIBRARIES[name]:
        if find_spec(module) is None:
            return f"{module} is not installed: pip install -c constraints.txt {module.replace('_', '-')}"
    return None


def count_shards(pairs: PairFile, workers: int) -> int:
    """How many files to cut pairs into: one for each worker at least, and none much above 256 MB."""
    return max(1, min(pairs.pairs, max(workers, -(-pairs.frame_bytes // _SHARD_BYTES))))


def bytes_needed(pairs: int, frame_bytes: int, formats: int) -> int:
    """An upper bound of what the file of pairs and so many stores take on disk, partly used blocks included."""
    return (1 + formats) * (frame_bytes + 4 * _BLOCK * pairs + (1 << 22))


def write_store(pairs: PairFile, store: Store) -> dict[str, Any]:
    """Write a store; returns ``write_s``, ``files``, ``file_bytes`` and ``disk_bytes``.

    write_s ends with the last file closed; the kernel may not have brought it to the disk by then. disk_bytes counts
    whole blocks as the file system allocated them.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    folder = Path(store.folder)
    folder.mkdir(parents=True)
    if store.format == "lmdb":
        import_module("lmdb")  # not while the clock runs
    began = time.perf_counter()
    _WRITERS[store.format](pairs, store, folder)
    seconds = time.perf_counter() - began
    found = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return {
        "write_s": seconds,
        "files": len(found),
        "file_bytes": sum(entry.st_size for entry in found),
        "disk_bytes": sum(entry.st_blocks * 512 for entry in found),
    }


def shard_paths(store: Store, suffix: str) -> list[str]:
    """Where the files of a sharded store lie, in order."""
    return [str(Path(store.folder, f"{number:05d}{suffix}")) for number in range(store.shards)]


def _shards(pairs: PairFile, count: int) -> Iterator[tuple[int, list[Pair]]]:
    """The number of the first pair, and the pairs, of each shard."""
    left = iter(pairs)
    for number in range(count):
        first, stop = number * pairs.pairs // count, (number + 1) * pairs.pairs // count
        yield first, list(islice(left, stop - first))


def _write_jpeg(pairs: PairFile, store: Store, folder: Path) -> None:
    with (folder / "index.csv").open("w", newline="") as file:
        index = csv.writer(file)
        index.writerow(("first", "last"))
        for number, pair in enumerate(pairs):
            below = folder / f"{2 * number // _FOLDER_FILES:05d}"
            below.mkdir(exist_ok=True)
            names = [f"{below.name}/{number:08d}-{which}.jpg" for which in (0, 1)]
            for name, frame in zip(names, pair, strict=True):
                (folder / name).write_bytes(frame)
            index.writerow(names)


def _write_webdataset(pairs: PairFile, store: Store, folder: Path) -> None:
    for path, (first, shard) in zip(shard_paths(store, ".tar"), _shards(pairs, store.shards), strict=True):
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for number, pair in enumerate(shard, first):
                for which, frame in enumerate(pair):
                    entry = tarfile.TarInfo(f"{number:08d}.{which}.jpg")
                    entry.size = len(frame)
                    tar.addfile(entry, io.BytesIO(frame))


def _write_tfrecord(pairs: PairFile, store: Store, folder: Path) -> None:
    for path, (_, shard) in zip(shard_paths(store, ".tfrecord"), _shards(pairs, store.shards), strict=True):
        with open(path, "wb") as file:
            for pair in shard:
                file.write(encode_tfrecord(encode_example({"frames": SampleColumn(values=pair)})))


def _write_lmdb(pairs: PairFile, store: Store, folder: Path) -> None:
    lmdb = import_module("lmdb")
    size = 2 * bytes_needed(pairs.pairs, pairs.frame_bytes, 0)
    with lmdb.open(str(folder), map_size=size) as environment, environment.begin(write=True) as transaction:
        for number, pair in enumerate(pairs):
            transaction.put(f"{number:08d}".encode(), encode_record(pair), append=True)


def _write_arrayrecord(pairs: PairFile, store: Store, folder: Path) -> None:
    for path, (_, shard) in zip(shard_paths(store, ".arrayrecord"), _shards(pairs, store.shards), strict=True):
        writer = ArrayRecordWriter(path, "group_size:1")
        for pair in shard:
            writer.write(encode_record(pair))
        writer.close()


def _write_ours(pairs: PairFile, store: Store, folder: Path) -> None:
    """A converted dataset as `convert.run` leaves it, each pair an episode of two steps, without other features."""
    where = folder / DATASET / VERSION / SPLIT
    where.mkdir(parents=True)
    entries, parts = [], []
    with TemporaryDirectory(dir=folder) as journal:
        for number, (_, shard) in enumerate(_shards(pairs, store.shards)):
            stem, count = shard_stem(SPLIT, number, store.shards), len(shard)
            with RecordWriter(where / shard_file(stem), output=folder) as writer:
                for pair in shard:
                    writer.write(encode_record(pair))
            tables = _part(stem, count, writer.places())
            parts.append({kind: Path(journal, f"{stem}.{table_file(kind)}") for kind in TABLE_KINDS})
            for kind, path in parts[-1].items():
                write_part(path, tables[kind])
            entries.append(
                ShardEntry(
                    name=stem,
                    source_file=stem,
                    source_bytes=0,
                    source_digest="",
                    episodes=count,
                    steps=2 * count,
                    records=count,
                    paired_episodes=count,
                    left_out={},
                    file=describe_file(where / shard_file(stem)),
                    sizes={f"{store.height}x{store.width}": 2 * count},
                    passed=2 * count,
                )
            )
        index = merge_index(where, parts, action=(), state=())
    _write_manifest(where.parent, store, entries, index)


def _write_manifest(folder: Path, store: Store, entries: list[ShardEntry], index: dict[TableKind, TableEntry]) -> None:
    totals = {key: sum(getattr(entry, key) for entry in entries) for key in ("episodes", "steps", "records")}
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        layout="pairs",
        dataset=DATASET,
        version=VERSION,
        source=Source(tfds_name=DATASET, version=VERSION, path="", fingerprint="0" * 64),
        parameters={"offset": 1, "frames": "endpoints", "frame_offsets": [0, 1], "columns": []},
        spec={"name": DATASET},
        image={
            "encoding": "jpeg",
            "sizes": {f"{store.height}x{store.width}": 2 * store.pairs},
            "passed": 2 * store.pairs,
            "transcoded": 0,
        },
        **totals,
        left_out={},
        quarantine=None,
        splits={SPLIT: SplitEntry(**totals, shards=tuple(entries), index=index)},
        statistics={SPLIT: {}},
        versions={},
    )
    (folder / MANIFEST_NAME).write_bytes(encode_manifest(manifest))


def _part(stem: str, count: int, where: dict[str, np.ndarray]) -> dict[TableKind, pa.Table]:
    """The part of a shard of so many pairs, as if each were an episode of a source file of the same name; ``where``
    the records lie."""
    ones, places = np.ones(count, np.int64), np.arange(count)
    zeros, texts = 0 * ones, [""] * count
    ids = [f"{stem}__{number}" for number in range(count)]
    ok, files = ["ok"] * count, [stem] * count
    columns: dict[TableKind, list[Any]] = {
        "records": [zeros, places, zeros, zeros, ones, 2 * places, *where.values()],
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


_WRITERS: dict[str, Callable[[PairFile, Store, Path], None]] = {
    "jpeg": _write_jpeg,
    "webdataset": _write_webdataset,
    "tfrecord": _write_tfrecord,
    "lmdb": _write_lmdb,
    "arrayrecord": _write_arrayrecord,
    "ours": _write_ours,
}


def request(pairs: PairFile, store: Store) -> dict[str, Any]:
    """What ``ask("bench.formats.stores", ...)`` takes."""
    return {"pairs": dataclasses.asdict(pairs), "store": dataclasses.asdict(store)}


if __name__ == "__main__":
    sys.exit(answer(lambda asked: write_store(PairFile(**asked["pairs"]), Store(**asked["store"]))))
