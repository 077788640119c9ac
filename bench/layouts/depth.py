"""Time and bytes of the same depth maps as stored here and as PNG of 16 bits, measured by ``bench.layouts``.

Both are records of an ArrayRecord file, read with their checksum in a shuffled order. OpenCV decodes PNG.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from convert.shard.depth import encode_depth, scale_nearest
from convert.shard.record_file import RecordWriter, encode_record
from stream.base.errors import ArgumentError
from stream.format.frame import decode_depth
from stream.format.names import frame_views
from stream.format.record_file import RecordFile

_NOISES = {"simulated": 0.0, "sensor, 1 mm of noise at 1 m": 1.0, "sensor, 4 mm of noise at 1 m": 4.0}
"""Noise of the generated maps at 1 m, in mm."""

_Decode = Callable[[memoryview, np.ndarray], object]


def measure_depth(
    folder: Path, *, size: int, count: int, repeat: int, level: int, maps: Path | None
) -> list[dict[str, Any]]:
    """Return bytes and seconds of a map by kind, stored here (``ours``) and as PNG (``png``)."""
    kinds = {name: [draw_depth(noise, size, seed) for seed in range(count)] for name, noise in _NOISES.items()}
    if maps is not None:
        kinds["real"] = [scale_nearest(depth, size, size) for depth in _read_maps(maps, count)]
    return [
        {"kind": name, "maps": len(depths), **_compare(depths, folder, repeat=repeat, level=level)}
        for name, depths in kinds.items()
    ]


def draw_depth(noise: float, size: int, seed: int) -> np.ndarray:
    """Return depth of a table with balls on it, uint16 [size, size]; with noise, a tenth is not measured."""
    rng = np.random.default_rng(seed)
    grid_rows, columns = np.mgrid[: 1 : 1j * size, : 1 : 1j * size]
    depth = 1100 - 400 * grid_rows + 90 * columns + 30 * np.sin(7 * columns)
    for _ in range(12):
        grid_row, column, radius = *rng.random(2), rng.uniform(0.03, 0.15)
        inside = radius**2 - (grid_rows - grid_row) ** 2 - (columns - column) ** 2
        depth = np.where(inside > 0, depth - 500 * np.sqrt(np.maximum(inside, 0)), depth)
    if noise:
        depth += rng.normal(0, noise, depth.shape) * (depth / 1000) ** 2
        spots = cv2.GaussianBlur(rng.normal(size=depth.shape), (0, 0), size / 50)
        depth[spots > np.quantile(spots, 0.9)] = 0
    return np.rint(depth).astype(np.uint16)


def _read_maps(folder: Path, count: int) -> Iterator[np.ndarray]:
    images = [cv2.imread(str(path), cv2.IMREAD_UNCHANGED) for path in sorted(folder.rglob("*.png"))]
    depths = [image for image in images if image is not None and image.dtype == np.uint16 and image.ndim == 2]
    if not depths:
        raise ArgumentError(f"--maps {folder}: has no PNG of one channel of 16 bits")
    yield from depths[:: -(-len(depths) // count)]


def _compare(depths: Sequence[np.ndarray], folder: Path, *, repeat: int, level: int) -> dict[str, Any]:
    png_options = [cv2.IMWRITE_PNG_COMPRESSION, level]
    formats: dict[str, tuple[list[bytes], _Decode]] = {
        "png": ([cv2.imencode(".png", depth, png_options)[1].tobytes() for depth in depths], _decode_png),
        "ours": ([encode_depth(depth) for depth in depths], decode_depth),
    }
    order = np.random.default_rng(0).permutation(len(depths)).tolist()
    decoded = np.empty(depths[0].shape, np.uint16)
    figures: dict[str, Any] = {}
    readers: dict[str, Callable[[], None]] = {}
    for name, (encoded, decode) in formats.items():
        path = folder / f"{name}.arrayrecord"
        with RecordWriter(path, output=folder) as writer:
            for content in encoded:
                writer.write(encode_record([content]))
        positions = list(zip(*(column.tolist() for column in writer.locations().values()), strict=True))
        file = RecordFile(str(path))
        readers[name] = partial(_read, file, [positions[number] for number in order], decode, decoded)
        readers[name]()
        if not np.array_equal(decoded, depths[order[-1]]):
            raise ArgumentError(f"{name}: a decoded map differs from the original")
        figures[f"{name}_bytes"] = sum(map(len, encoded)) / len(depths)
        path.unlink()
    seconds: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(repeat):
        for name, read in readers.items():
            began = time.perf_counter()
            read()
            seconds[name].append((time.perf_counter() - began) / len(depths))
    figures |= {f"{name}_s": statistics.median(times) for name, times in seconds.items()}
    figures["speed"] = statistics.median(
        png / stored for png, stored in zip(seconds["png"], seconds["ours"], strict=True)
    )
    return figures


def _read(file: RecordFile, positions: Sequence[Sequence[int]], decode: _Decode, decoded: np.ndarray) -> None:
    for position in positions:
        (stored,) = frame_views(file.read(*position))
        decode(stored, decoded)


def _decode_png(content: memoryview, decoded: np.ndarray) -> None:
    decoded[...] = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
