"""Bytes, fidelity and loading time of codecs, measured by ``bench.layouts``.

A root of raw frames is converted again with each codec, so that all have the same pixels before. The loader then
assembles the same samples from each root in turns, in one thread, from the page cache.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from bench.synthetic import convert_jobs, finish
from convert.plan import ConvertConfig, plan_conversion
from convert.registry.registry import load_registry
from convert.shard.images import FramePolicy
from convert.source.kinds import find_source
from stream import make_loader
from stream.batch.assemble import Assembler
from stream.format.catalog import Catalog
from stream.format.table import Table
from stream.format.video import VIDEO_CODECS

CODECS = ("raw", "jpeg:95", "jpeg:90", "jpeg:85", "h264:18", "h264:23", "h264:28", "av1:30", "av1:38", "av1:46")
"""Codecs with their quality or crf."""
WINDOWS: Mapping[str, tuple[int, ...]] = {
    "1 frame": (0,),
    "pair": (0, 5),
    "8 frames": tuple(range(8)),
    "16 frames": tuple(range(16)),
}
_ROWS = 64
_COMPARED = 256
"""Frames that are compared with those before."""


def encode_root(root: Path, output: Path, codec: str, *, gop: int) -> None:
    """Convert all datasets of a root with another codec, in this process."""
    codec_name, _, number = codec.partition(":")
    is_video = codec_name in VIDEO_CODECS
    policy = FramePolicy(size=None, codec=codec_name, quality=95 if is_video else int(number or 95))  # type: ignore[arg-type]
    for dataset in Catalog(root).complete:
        name = f"root:{root / dataset}"
        source = find_source(name, [], {})
        (selected,) = load_registry().resolve(name, lambda *_, frames_source=source: frames_source.entry)
        options = ConvertConfig(layout="frames", policy=policy, gop=gop, crf=int(number) if is_video else None)
        spec = selected.spec
        conversion = plan_conversion(selected, source, options, output_folder=str(output / spec.name / spec.version))
        convert_jobs(conversion)
        finish(conversion)


def measure_codecs(roots: Mapping[str, Path], *, batches: int, repeat: int) -> list[dict[str, Any]]:
    """Return for each root of the same frames bytes a frame, PSNR and SSIM; for each window CPU and bytes a sample."""
    opened: dict[str, dict[str, _Samples]] = {codec: {} for codec in roots}
    for window, offsets in WINDOWS.items():
        out = None
        for codec, root in roots.items():
            opened[codec][window] = _Samples(root, offsets, batches, out)
            out = opened[codec][window].out
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(repeat):
        for window in WINDOWS:
            for codec, samples in opened.items():
                seconds.setdefault((codec, window), []).append(samples[window].run())
    before = next(iter(opened.values()))["1 frame"].frames()
    return [
        {
            "codec": codec,
            "bytes_per_frame": samples["1 frame"].bytes_per_frame,
            **_fidelity(before, samples["1 frame"].frames()),
            "windows": {
                window: {
                    "cpu_us": 1e6 * statistics.median(seconds[codec, window]) / (batches * _ROWS),
                    "bytes": samples[window].num_bytes / (batches * _ROWS),
                }
                for window in WINDOWS
            },
        }
        for codec, samples in opened.items()
    ]


class _Samples:
    """Samples of a window of a root; each run assembles all of them into the arrays ``out``, None for new ones."""

    def __init__(self, root: Path, offsets: Sequence[int], batches: int, out: Mapping[str, np.ndarray] | None) -> None:
        names = dict.fromkeys(Catalog(root).complete, 1.0)
        loader = make_loader(root, names, split="all", batch_size=_ROWS, frames=offsets, num_workers=0)
        self._rows = [loader.rank_plan.rows_of([step]) for step in range(batches)]
        self._assembler = Assembler(loader.data.spec)
        self.bytes_per_frame = _bytes_per_frame([split.records for split in loader.data.spec.splits])
        self.out = self._assembler.empty(_ROWS) if out is None else out
        self.num_bytes = 0
        self.run()

    def run(self) -> float:
        """Assemble all samples and return the seconds of CPU."""
        began = time.process_time()
        done = [self._assembler.assemble(rows, self.out) for rows in self._rows]
        cpu_seconds = time.process_time() - began
        self.num_bytes = sum(assembled.work.bytes for assembled in done)
        return cpu_seconds

    def frames(self) -> np.ndarray:
        """Return the first frames of some samples, uint8 [n, H, W, 3]."""
        batches = []
        for rows in self._rows[: -(-_COMPARED // _ROWS)]:
            self._assembler.assemble(rows, self.out)
            batches.append(self.out["frames"][:, 0].copy())
        return np.concatenate(batches)


def _bytes_per_frame(tables: Sequence[Table]) -> float:
    """Return the bytes of a frame; the rows of a chunk share its record."""
    total = rows = 0
    for table in tables:
        locations = np.stack([table.array("shard").astype(np.int64), table.array("position")])
        first = np.unique(locations, axis=1, return_index=True)[1]
        total += int(table.array("num_bytes")[first].sum())
        rows += locations.shape[1]
    return total / rows


def _fidelity(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    measures: dict[str, Callable[..., float]] = {"psnr_db": cv2.PSNR, "ssim": ssim}
    return {
        key: float(statistics.median(measure(*pair) for pair in zip(before, after, strict=True)))
        for key, measure in measures.items()
    }


def ssim(before: np.ndarray, after: np.ndarray) -> float:
    """Return the structural similarity of the luma of two pictures, uint8 [H, W, 3].

    Windows are Gaussian with a deviation of 1.5 pixels (Wang et al., Image quality assessment, 2004).
    """
    x, y = (cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY).astype(np.float64) for picture in (before, after))

    def mean(values: np.ndarray) -> np.ndarray:
        return cv2.GaussianBlur(values, (11, 11), 1.5)

    mx, my = mean(x), mean(y)
    vx, vy, covariance = mean(x * x) - mx * mx, mean(y * y) - my * my, mean(x * y) - mx * my
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    return float(np.mean((2 * mx * my + c1) * (2 * covariance + c2) / ((mx * mx + my * my + c1) * (vx + vy + c2))))
