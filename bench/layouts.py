"""``python -m bench.layouts``: what layouts, frames of pairs and JPEG qualities cost on disk, and in decoding.

Each dataset is converted in every layout, and the bytes of its frames are counted. For the qualities, frames of the
datasets that would be encoded again are encoded at each, compared with the pixels before, and decoded in turns.
"""

from __future__ import annotations

import dataclasses
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure.command import Command, Output, Result, say, work_folder
from bench.measure.options import option, wholes
from bench.measure.tables import markdown_table
from convert.errors import CorruptFrame, DamagedEpisode
from convert.plan import Conversion, Options, plan_conversion
from convert.registry.registry import Selected, load_registry
from convert.shard.images import FramePolicy, convert_frame, decode_frame, decode_jpeg, encode_jpeg, resize
from convert.source.rlds.dataset import find_dataset
from convert.tasks.shard import convert_shard
from stream.storage.arguments import whole

LAYOUTS = {
    "pairs, endpoints": Options(),
    "pairs, all frames": Options(frames="all"),
    "frames, primary camera": Options(layout="frames"),
    "frames, all cameras": Options(layout="frames", cameras=("all",)),
}


@dataclass(frozen=True, kw_only=True)
class LayoutOptions(Output):
    """Options of the command."""

    source: str = option("build/demo/source", str, "sample or real datasets, as convert.run takes them", metavar="DIR")
    datasets: str = option("oxe29", str, "mixture, or names separated by commas")
    size: int = option(256, whole(8), "height and width of the stored frames")
    qualities: tuple[int, ...] = option((95, 90, 85), wholes(1), "JPEG qualities", metavar="A,B")
    frames: int = option(20, whole(1), "frames of each dataset to encode at each quality")
    repeat: int = option(5, whole(1), "times that each quality is decoded")


def _work(given: LayoutOptions) -> Iterator[dict[str, Any]]:
    policy = FramePolicy(size=(given.size, given.size))
    totals: dict[str, list[int]] = {name: [0, 0] for name in LAYOUTS}
    pixels: list[np.ndarray] = []
    again = 0
    steps = 0
    with work_folder("bench-layouts", given.out) as folder:
        for selected in load_registry().resolve(given.datasets):
            for name, options in LAYOUTS.items():
                options = dataclasses.replace(options, policy=policy)
                conversion = _plan(selected, given.source, options, folder / "output")
                conversion.journal.begin(conversion.parameters)
                found = [status for job in conversion.jobs if (status := convert_shard(job, conversion.plan))]
                totals[name][0] += sum(status.entry.file.bytes for status in found)
                totals[name][1] += sum(status.entry.records for status in found)
                shutil.rmtree(folder / "output")
            steps += sum(status.entry.steps for status in found)
            encoded = list(islice(_encoded_again(conversion, policy), given.frames))
            pixels += encoded
            again += bool(encoded)
            say(f"{selected.spec.name}: {len(encoded)} frames to encode")
    layouts = [{"layout": name, "bytes": size, "records": records} for name, (size, records) in totals.items()]
    yield {
        "steps": steps,
        "layouts": layouts,
        "frames": len(pixels),
        "datasets_encoded": again,
        "qualities": _qualities(pixels, given) if pixels else [],
    }


def _plan(selected: Selected, source: str, options: Options, output: Path) -> Conversion:
    found = find_dataset([source], selected.spec.tfds_name, selected.spec.version)
    return plan_conversion(selected, found, options, output=str(output))


def _encoded_again(conversion: Conversion, policy: FramePolicy) -> Iterator[np.ndarray]:
    """Yield the pixels of the first camera's frames that do not pass through, uint8 [size, size, 3]."""
    channels = conversion.plan.cameras[0].channels
    for job in conversion.jobs:
        with job.shard.open(conversion.plan.wanted, job.spans) as reader:
            for episode in reader:
                if isinstance(episode.content, DamagedEpisode):
                    continue
                for frame in episode.content.frames:
                    if isinstance(frame, CorruptFrame) or frame is None:
                        continue
                    if convert_frame(frame, policy, channels=channels).passed:
                        return
                    yield resize(decode_frame(frame, channels=channels), policy)


def _qualities(pixels: Sequence[np.ndarray], given: LayoutOptions) -> list[dict[str, Any]]:
    encoded = {quality: [encode_jpeg(each, quality) for each in pixels] for quality in given.qualities}
    seconds: dict[int, list[float]] = {quality: [] for quality in given.qualities}
    for _ in range(given.repeat):
        for quality, frames in encoded.items():
            began = time.perf_counter()
            for frame in frames:
                decode_jpeg(frame)
            seconds[quality].append(time.perf_counter() - began)
    first = statistics.median(seconds[given.qualities[0]])
    return [
        {
            "quality": quality,
            "bytes_per_frame": sum(map(len, frames)) / len(frames),
            "psnr_db": statistics.median(map(_psnr, pixels, map(decode_jpeg, frames))),
            "frames_per_s": len(frames) / statistics.median(seconds[quality]),
            "speed": first / statistics.median(seconds[quality]),
        }
        for quality, frames in encoded.items()
    ]


def _psnr(before: np.ndarray, after: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio, dB."""
    error = np.mean((before.astype(np.float64) - after) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def format_result(result: Result) -> str:
    """Return the tables of a result, in Markdown."""
    first = result["layouts"][0]["bytes"]
    rows = [
        [each["layout"], f"{each['records']:,}", f"{each['bytes'] / 1e6:,.1f}", f"{each['bytes'] / first:.2f}"]
        for each in result["layouts"]
    ]
    paragraphs = [markdown_table(["layout", "records", "MB of frames", "beside pairs, endpoints"], rows)]
    if result["qualities"]:
        base = result["qualities"][0]
        rows = [
            [
                each["quality"],
                f"{each['bytes_per_frame'] / 1e3:.1f}",
                f"{each['bytes_per_frame'] / base['bytes_per_frame']:.2f}",
                f"{each['psnr_db']:.1f}",
                f"{each['speed']:.2f}",
            ]
            for each in result["qualities"]
        ]
        header = ["quality", "kB a frame", f"beside {base['quality']}", "PSNR, dB", "speed of decoding"]
        paragraphs += [
            markdown_table(header, rows),
            f"{result['frames']} frames of the {result['datasets_encoded']} datasets whose frames do not pass through; "
            "medians.",
        ]
    return "\n\n".join([*paragraphs, f"{result['steps']:,} steps at {result['parameters']['size']} pixels."])


COMMAND = Command(
    name="layouts",
    about="Measure what layouts and JPEG qualities cost on disk and in decoding.",
    options=LayoutOptions,
    work=_work,
    show=format_result,
    libraries=("simplejpeg", "opencv-python-headless"),
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
