"""``python -m bench.depth``: reading stored depth beside PNG of 16 bits: time and bytes of the same maps.

Both are records of an ArrayRecord file, read at their places with their checksum, in a shuffled order, and decoded into
an array by one thread, in turns. OpenCV decodes PNG. The maps are made: a scene as a simulator renders it, and as a
sensor sees it, with noise that grows with the square of the distance and with holes. ``--maps`` adds real ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from bench.measure.command import Command, Output, Result, work_folder
from bench.measure.options import option
from bench.measure.tables import markdown_table
from convert.shard.depth import encode_depth, scale_nearest
from convert.shard.record_file import RecordWriter, encode_record
from stream.base.arguments import whole
from stream.base.errors import ArgumentError
from stream.format.frame import decode_depth
from stream.format.names import frame_views
from stream.format.record_file import RecordFile

_MADE = {"simulated": 0.0, "sensor, 1 mm of noise at 1 m": 1.0, "sensor, 4 mm of noise at 1 m": 4.0}
"""Noise of the made maps at 1 m, in mm."""

_Decode = Callable[[memoryview, np.ndarray], object]


@dataclass(frozen=True, kw_only=True)
class DepthOptions(Output):
    """Options of the command."""

    size: int = option(256, whole(8), "height and width of the maps")
    count: int = option(40, whole(1), "maps of each kind")
    repeat: int = option(9, whole(1), "times that all are read")
    level: int = option(3, whole(0), "compression of the PNGs, 0 to 9")
    maps: Path | None = option(None, Path, "folder of real depth as PNG of 16 bits, in millimetres", metavar="DIR")


def _work(given: DepthOptions) -> Iterator[dict[str, Any]]:
    kinds = {name: [made(noise, given.size, seed) for seed in range(given.count)] for name, noise in _MADE.items()}
    if given.maps is not None:
        kinds["real"] = [scale_nearest(depth, given.size, given.size) for depth in _read_maps(given)]
    with work_folder("bench-depth", given.out) as folder:
        yield {"kinds": [{"kind": name, **_compare(maps, folder, given)} for name, maps in kinds.items()]}


def made(noise: float, size: int, seed: int) -> np.ndarray:
    """Return depth of a table with balls on it, uint16 [size, size]; with noise, a tenth is not measured."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[: 1 : 1j * size, : 1 : 1j * size]
    depth = 1100 - 400 * rows + 90 * columns + 30 * np.sin(7 * columns)
    for _ in range(12):
        row, column, radius = *rng.random(2), rng.uniform(0.03, 0.15)
        inside = radius**2 - (rows - row) ** 2 - (columns - column) ** 2
        depth = np.where(inside > 0, depth - 500 * np.sqrt(np.maximum(inside, 0)), depth)
    if noise:
        depth += rng.normal(0, noise, depth.shape) * (depth / 1000) ** 2
        spots = cv2.GaussianBlur(rng.normal(size=depth.shape), (0, 0), size / 50)
        depth[spots > np.quantile(spots, 0.9)] = 0
    return np.rint(depth).astype(np.uint16)


def _read_maps(given: DepthOptions) -> Iterator[np.ndarray]:
    assert given.maps is not None
    paths = sorted(given.maps.rglob("*.png"))
    found = [depth for path in paths if (depth := cv2.imread(str(path), cv2.IMREAD_UNCHANGED)) is not None]
    found = [depth for depth in found if depth.dtype == np.uint16 and depth.ndim == 2]
    if not found:
        raise ArgumentError(f"--maps {given.maps}: has no PNG of one channel of 16 bits")
    yield from found[:: -(-len(found) // given.count)]


def _compare(maps: Sequence[np.ndarray], folder: Path, given: DepthOptions) -> dict[str, Any]:
    levels = [cv2.IMWRITE_PNG_COMPRESSION, given.level]
    ways: dict[str, tuple[list[bytes], _Decode]] = {
        "png": ([cv2.imencode(".png", depth, levels)[1].tobytes() for depth in maps], _decode_png),
        "ours": ([encode_depth(depth) for depth in maps], decode_depth),
    }
    order = np.random.default_rng(0).permutation(len(maps)).tolist()
    out = np.empty(maps[0].shape, np.uint16)
    found: dict[str, Any] = {"maps": len(maps)}
    readers: dict[str, Callable[[], None]] = {}
    for name, (encoded, decode) in ways.items():
        path = folder / f"{name}.arrayrecord"
        with RecordWriter(path, output=folder) as writer:
            for each in encoded:
                writer.write(encode_record([each]))
        places = [column.tolist() for column in writer.locations().values()]
        file = RecordFile(str(path))

        readers[name] = partial(_read, file, [[column[number] for column in places] for number in order], decode, out)
        readers[name]()
        if not np.array_equal(out, maps[order[-1]]):
            raise ArgumentError(f"{name}: a map did not come back as it was")
        found[f"{name}_bytes"] = sum(map(len, encoded)) / len(maps)
        path.unlink()
    seconds: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(given.repeat):
        for name, read in readers.items():
            began = time.perf_counter()
            read()
            seconds[name].append((time.perf_counter() - began) / len(maps))
    found |= {f"{name}_s": statistics.median(times) for name, times in seconds.items()}
    found["speed"] = statistics.median(png / ours for png, ours in zip(seconds["png"], seconds["ours"], strict=True))
    return found


def _read(file: RecordFile, places: Sequence[Sequence[int]], decode: _Decode, out: np.ndarray) -> None:
    for place in places:
        (stored,) = frame_views(file.read(*place))
        decode(stored, out)


def _decode_png(data: memoryview, out: np.ndarray) -> None:
    out[...] = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)


def format_result(result: Result) -> str:
    """Return the table of a result, in Markdown."""
    header = ["depth maps", "PNG, kB", "ours, kB", "beside PNG", "PNG, µs", "ours, µs", "times as fast"]
    rows = [
        [
            each["kind"],
            f"{each['png_bytes'] / 1e3:.1f}",
            f"{each['ours_bytes'] / 1e3:.1f}",
            f"{each['ours_bytes'] / each['png_bytes']:.2f}",
            f"{each['png_s'] * 1e6:,.0f}",
            f"{each['ours_s'] * 1e6:,.0f}",
            f"{each['speed']:.1f}",
        ]
        for each in result["kinds"]
    ]
    size, counts = result["parameters"]["size"], {each["maps"] for each in result["kinds"]}
    note = f"{size}x{size}, {min(counts)} to {max(counts)} maps a kind, one thread, from the page cache; medians."
    return f"{markdown_table(header, rows)}\n\n{note}"


COMMAND = Command(
    name="depth",
    about="Measure reading stored depth beside PNG of 16 bits.",
    options=DepthOptions,
    work=_work,
    show=format_result,
    libraries=("numpy", "opencv-python-headless", "pyarrow"),
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
