"""``python -m bench.layouts``: what layouts, frames of pairs and codecs cost on disk, and in the loader.

Each dataset is converted in every layout, and the bytes of its frames are counted. For the codecs, an episode of each
dataset whose frames would be encoded again is converted to raw frames, and these to each codec; ``--root`` takes a root
of raw frames instead, such as one of real video.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure.codecs import CODECS, WINDOWS, encode_root, measure_codecs
from bench.measure.command import Command, Output, Result, say, work_folder
from bench.measure.options import known, option, several
from bench.measure.tables import markdown_table
from bench.synthetic import finish
from convert.plan import Conversion, ConvertConfig, plan_conversion
from convert.registry.registry import Selected, load_registry
from convert.shard.images import FramePolicy
from convert.source.rlds.dataset import find_dataset
from convert.tasks.shard import convert_shard
from stream.base.arguments import whole
from stream.base.errors import ArgumentError
from stream.format.catalog import Catalog
from stream.format.frame import CODECS as CODEC_NAMES

LAYOUTS = {
    "pairs, endpoints": ConvertConfig(),
    "pairs, all frames": ConvertConfig(frames="all"),
    "frames, primary camera": ConvertConfig(layout="frames"),
    "frames, all cameras": ConvertConfig(layout="frames", cameras=("all",)),
}


_LINK = 125e6
"""Bytes a second of 1 Gbit/s."""
_EXACT = 100


def _codec(text: str) -> str:
    """Return a codec, if a conversion takes it."""
    name, colon, number = text.partition(":")
    known(CODEC_NAMES, "codec")(name)
    if colon:
        whole(1)(number)
    return text


@dataclass(frozen=True, kw_only=True)
class LayoutOptions(Output):
    """Options of the command."""

    source: str = option("build/demo/source", str, "sample or real datasets, as convert.run takes them", metavar="DIR")
    datasets: str = option("oxe29", str, "mixture, or names separated by commas")
    size: int = option(256, whole(8), "height and width of the stored frames")
    root: str = option("", str, "root of --layout frames --codec raw to encode, in place of the sample", metavar="DIR")
    codecs: tuple[str, ...] = option(CODECS, several(_codec), "codecs with their quality or crf", metavar="A,B")
    gop: int = option(8, whole(1), "frames of a chunk of video")
    batches: int = option(4, whole(1), "batches of 64 samples of each window")
    repeat: int = option(5, whole(1), "times that the samples of each codec are assembled")


def _work(given: LayoutOptions) -> Iterator[dict[str, Any]]:
    with work_folder("bench-layouts", given.out) as folder:
        result: dict[str, Any] = {"layouts": []}
        raw = Path(given.root)
        if given.root and not Catalog(raw).complete:
            raise ArgumentError(
                f"--root {raw}: there is no converted dataset; give a root of --layout frames --codec raw"
            )
        if not given.root:
            raw = folder / "raw"
            result = _layouts(given, folder, raw)
        roots = {}
        for codec in given.codecs if raw.is_dir() else ():
            roots[codec] = folder / "again" / codec.replace(":", "-")
            encode_root(raw, roots[codec], codec, gop=given.gop)
            say(f"{codec}: encoded")
        found = measure_codecs(roots, batches=given.batches, repeat=given.repeat) if roots else []
        frames = sum(Catalog(raw).open(name).manifest.records for name in Catalog(raw).complete) if roots else 0
        yield result | {"frames": frames, "codecs": found}


def _layouts(given: LayoutOptions, folder: Path, raw: Path) -> dict[str, Any]:
    """Convert the datasets in each layout, and an episode of those that are encoded again to raw frames."""
    policy = FramePolicy(size=(given.size, given.size))
    totals: dict[str, list[int]] = {name: [0, 0] for name in LAYOUTS}
    steps = 0
    for selected in load_registry().resolve(given.datasets):
        for name, options in LAYOUTS.items():
            conversion = _plan(selected, given.source, dataclasses.replace(options, policy=policy), folder / "output")
            conversion.journal.begin(conversion.parameters)
            found = [status for job in conversion.jobs if (status := convert_shard(job, conversion.plan))]
            totals[name][0] += sum(status.entry.file.bytes for status in found)
            totals[name][1] += sum(status.entry.records for status in found)
            shutil.rmtree(folder / "output")
        steps += sum(status.entry.steps for status in found)
        say(f"{selected.spec.name}: {steps:,} steps")
        if any(status.entry.passed for status in found):
            continue
        options = ConvertConfig(layout="frames", policy=dataclasses.replace(policy, codec="raw"), episodes="train[:1]")
        conversion = _plan(selected, given.source, options, raw / selected.spec.name / selected.spec.version)
        conversion.journal.begin(conversion.parameters)
        for job in conversion.jobs:
            convert_shard(job, conversion.plan)
        finish(conversion)
    layouts = [{"layout": name, "bytes": size, "records": records} for name, (size, records) in totals.items()]
    return {"steps": steps, "layouts": layouts}


def _plan(selected: Selected, source: str, options: ConvertConfig, output: Path) -> Conversion:
    found = find_dataset([source], selected.spec.tfds_name, selected.spec.version)
    return plan_conversion(selected, found, options, output_folder=str(output))


def format_result(result: Result) -> str:
    """Return the tables of a result, in Markdown."""
    paragraphs = []
    if layouts := result["layouts"]:
        first = layouts[0]["bytes"]
        rows = [
            [each["layout"], f"{each['records']:,}", f"{each['bytes'] / 1e6:,.1f}", f"{each['bytes'] / first:.2f}"]
            for each in layouts
        ]
        paragraphs.append(markdown_table(["layout", "records", "MB of frames", "beside pairs, endpoints"], rows))
        paragraphs.append(f"{result['steps']:,} steps at {result['parameters']['size']} pixels.")
    if found := result["codecs"]:
        rows = [
            [
                each["codec"],
                f"{each['bytes_per_frame'] / 1e3:.1f}",
                "exact" if each["psnr_db"] > _EXACT else f"{each['psnr_db']:.1f}",
                f"{each['ssim']:.3f}",
                *(f"{1e6 / each['windows'][window]['cpu_us']:,.0f}" for window in WINDOWS),
                *(f"{_LINK / each['windows'][window]['bytes']:,.0f}" for window in WINDOWS),
            ]
            for each in found
        ]
        places = [f"{window}, {place}" for place in ("a core", "1 Gbit/s") for window in WINDOWS]
        paragraphs += [
            markdown_table(["codec", "kB a frame", "PSNR, dB", "SSIM", *places], rows),
            f"{result['frames']:,} frames, chunks of {result['parameters']['gop']}; medians. Samples/s: what a core "
            "makes of records in memory, and what goes through a network, by calculation.",
        ]
    return "\n\n".join(paragraphs)


COMMAND = Command(
    name="layouts",
    about="Measure what layouts and codecs cost on disk and in the loader.",
    options=LayoutOptions,
    work=_work,
    show=format_result,
    libraries=("simplejpeg", "opencv-python-headless", "av"),
)
main = COMMAND.main

if __name__ == "__main__":
    raise SystemExit(main())
