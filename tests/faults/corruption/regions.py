"""Regions of a converted dataset's files, found in the files themselves, and ways to damage them."""

from __future__ import annotations

import random
import re
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from stream.format.names import BLOCK, RECORD_MAGIC, table_file
from stream.format.record_file import stored_size
from stream.format.table import open_table

_ZEROS = re.compile(rb"\0{65,}")
_MANIFEST_VALUES = {
    "format version": rb'"format_version": (\d+)',
    "name of the dataset": rb'"dataset": ("[^"]+")',
    "offset": rb'"parameters": \{[^}]*?"offset": (\d+)',
    "vector": rb'"action": \[\s*\{\s*"path": ("[^"]+")',
    "size of frames": rb'"sizes": \{\s*("\d+x\d+")',
    "name of a shard": rb'"name": ("\w+-\d{5}-of-\d{5}")',
    "count of episodes": rb'"episodes": (\d+)',
    "count of records": rb'"records": (\d+)',
    "size of a file": rb'"bytes": (\d+)',
    "hash of a file": rb'"sha256": ("[0-9a-f]{64}")',
    "hash of a column": rb'"columns": \{\s*"[^"]+": ("[0-9a-f]{16}")',
    "statistics": rb'"mean": \[\s*(-?\d[\d.e-]*)',
    "white space": rb"\{\n( )",
    "checksum": rb'"checksum": ("[0-9a-f]{64}")',
}


@dataclass(frozen=True)
class Region:
    """Bytes [start, stop) of a file."""

    name: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


def find_regions(path: Path, kind: str) -> list[Region]:
    """Return the regions of a sound file; ``kind`` is ``arrayrecord``, a table of the index, or ``manifest``."""
    content = path.read_bytes()
    if kind == "manifest":
        matches = {name: re.search(pattern, content, re.DOTALL) for name, pattern in _MANIFEST_VALUES.items()}
        return [Region(name, *match.span(1)) for name, match in matches.items() if match]
    regions = _array_record(path, content) if kind == "arrayrecord" else _arrow(path, kind, content)
    return [region for region in regions if region.start < region.stop]


def _array_record(path: Path, content: bytes) -> list[Region]:
    # Source of the layout: doc/riegeli_records_file_format.md of google/riegeli, and array_record's README.
    table = open_table(path.parent / table_file("records"), "records")
    # Several rows share a chunk of video.
    shard_rows = np.flatnonzero(table.array("shard") == int(path.stem.split("-")[1]))
    rows = shard_rows[np.unique(table.array("position")[shard_rows], return_index=True)[1]]
    locations = [(int(table.array("position")[row]), int(table.array("num_bytes")[row])) for row in rows]
    middle, end = locations[len(locations) // 2][0], locations[-1][0] + stored_size(*locations[-1])
    frame = middle
    if content[middle : middle + 4] == RECORD_MAGIC:
        frame += 8 + 4 * int(struct.unpack_from("<I", content, middle + 4)[0])
    regions = [
        Region("block header", 0, 24),
        Region("signature chunk", 24, 64),
        Region("header of a chunk", middle - 45, middle),
        Region("header of a record", middle, middle + 16),
        Region("header of a frame", frame, frame + 20),
        Region("frame", frame + 600, frame + 1100),
        Region("end of the last record", end - 64, end),
    ]
    if len(content) > 2 * BLOCK:
        inside = BLOCK * (end // BLOCK // 2 or 1)
        regions.append(Region("block header inside", inside, inside + 24))
    zeros = list(_ZEROS.finditer(content, end))
    if zeros:
        regions.append(Region("index", end, zeros[0].start()))
        regions.append(Region("padding", zeros[0].start() + 8, zeros[0].end() - 32))
    footer = (len(content) - 1) // BLOCK * BLOCK
    past = next((match.start() for match in zeros if match.start() > footer), len(content))
    regions += [Region("footer", footer, past), Region("padding of the footer", past + 8, len(content))]
    return regions


def _arrow(path: Path, kind: str, content: bytes) -> list[Region]:
    # Source of the layout: "IPC File Format" in docs/source/format/Columnar.rst of apache/arrow.
    regions = [Region("magic", 0, 8)]
    source = pa.BufferReader(content)
    source.seek(8)
    numbers: Counter[str] = Counter()
    for message in pa.ipc.MessageReader.open_stream(source):
        body = len(message.body) if message.body is not None else 0
        end = source.tell() - body
        numbers[message.type] += 1
        name = f"{message.type} {numbers[message.type]}" if message.type == "dictionary" else message.type
        regions.append(Region(f"{name}, metadata", end - len(message.metadata) - 8, end))
    for name, column in open_table(path, kind).columns.items():  # type: ignore[arg-type]
        # The middle has values and no padding.
        for number, (start, stop) in enumerate(column.spans, 1):
            middle, half = (start + stop) // 2, min(32, (stop - start) // 2)
            regions.append(Region(f"{name}, buffer {number}", middle - half, middle + half))
    (length,) = struct.unpack_from("<i", content, len(content) - 10)
    regions.append(Region("footer", len(content) - 10 - length, len(content) - 10))
    regions.append(Region("length of the footer and magic", len(content) - 10, len(content)))
    return regions


def put(path: Path, content: bytes) -> None:
    """Replace a file; programs that have the old one open or mapped keep it.

    Shortening a mapped file in place would end its readers with a bus error.
    """
    fresh = path.with_name(f".{path.name}.fresh")
    fresh.write_bytes(content)
    fresh.replace(path)


def _flip(content: bytes, region: Region) -> bytes:
    position = (region.start + region.stop) // 2
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


def _fill(content: bytes, region: Region, values: bytes) -> bytes:
    return content[: region.start] + values + content[region.stop :]


REGION_DAMAGES: dict[str, Callable[[bytes, Region], bytes]] = {
    "one bit flipped": _flip,
    "zeroed": lambda content, region: _fill(content, region, bytes(region.size)),
    "random bytes": lambda content, region: _fill(content, region, random.Random(region.start).randbytes(region.size)),
    "cut out": lambda content, region: _fill(content, region, b""),
    "doubled": lambda content, region: _fill(content, region, 2 * content[region.start : region.stop]),
    "truncated there": lambda content, region: content[: (region.start + region.stop) // 2],
}


def _swap(path: Path, other_file: Path, older: Path) -> None:
    content, other_content = path.read_bytes(), other_file.read_bytes()
    put(path, other_content)
    put(other_file, content)


def _same_size(path: Path, other_file: Path, older: Path) -> None:
    content, other_content = path.read_bytes(), other_file.read_bytes()
    put(path, (other_content + content[len(other_content) :])[: len(content)])


FILE_DAMAGES: dict[str, Callable[[Path, Path, Path], object]] = {
    "swapped with another's": _swap,
    "another's, of its size": _same_size,
    "an older conversion's": lambda path, other_file, older: put(path, older.read_bytes()),
    "empty": lambda path, other_file, older: put(path, b""),
    "deleted": lambda path, other_file, older: path.unlink(),
}
"""Each takes the file, the file of another shard or split, and the file of a conversion with other parameters."""
