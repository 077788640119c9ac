"""``python -m bench.layouts``: cost of layouts, codecs and stored depth, on disk and in the loader.

``--subjects`` chooses the measurements:

- ``layouts`` converts each dataset in every layout and counts the bytes of its frames.
- ``codecs`` converts an episode of each dataset whose frames would be encoded again to raw frames, and these to each
  codec. ``--root`` takes a root of raw frames instead, such as one of real video.
- ``depth`` reads the same depth maps as stored here and as PNG of 16 bits, in turns, in one thread. The maps are
  generated: a scene as a simulator renders it and as a sensor sees it, with noise that grows with the square of the
  distance, and with holes. ``--maps`` adds real maps.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.layouts.codecs import CODECS, WINDOWS, encode_root, measure_codecs
from bench.layouts.depth import measure_depth
from bench.measure.command import Command, Output, Result, say, work_folder
from bench.measure.options import one_of, option, several
from bench.measure.tables import markdown_table
from bench.synthetic import convert_jobs, finish
from convert.plan import Conversion, ConvertConfig, plan_conversion
from convert.registry.registry import Selected, load_registry
from convert.shard.images import FramePolicy
from convert.source.rlds.dataset import find_dataset
from stream.base.arguments import whole_number
from stream.base.errors import ArgumentError
from stream.format.catalog import Catalog
from stream.format.frame import CODECS as CODEC_NAMES

SUBJECTS = ("layouts", "codecs", "depth")
LAYOUTS = {
    "pairs, endpoints": ConvertConfig(),
    "pairs, all frames": ConvertConfig(frames="all"),
    "frames, primary camera": ConvertConfig(layout="frames"),
    "frames, all cameras": ConvertConfig(layout="frames", cameras=("all",)),
}
_LINK = 125e6
"""Bytes a second of 1 Gbit/s."""
_EXACT = 100


def _codec(option_text: str) -> str:
    """Return a codec, if a conversion takes it."""
    name, colon, quality = option_text.partition(":")
    one_of(CODEC_NAMES, "codec")(name)
    if colon:
        whole_number(1)(quality)
    return option_text


@dataclass(frozen=True, kw_only=True)
class LayoutOptions(Output):
    """Options of the command."""

    subjects: tuple[str, ...] = option(
        ("layouts", "codecs"), several(one_of(SUBJECTS)), f"subjects: {', '.join(SUBJECTS)}", metavar="A,B"
    )
    source: str = option("build/demo/source", str, "sample or real datasets, as convert.run takes them", metavar="DIR")
    datasets: str = option("oxe29", str, "mixture, or names separated by commas")
    size: int = option(256, whole_number(8), "height and width of the stored frames and maps")
    root: str = option("", str, "root of --layout frames --codec raw to encode, instead of the sample", metavar="DIR")
    codecs: tuple[str, ...] = option(CODECS, several(_codec), "codecs with their quality or crf", metavar="A,B")
    gop: int = option(8, whole_number(1), "frames of a chunk of video")
    batches: int = option(4, whole_number(1), "batches of 64 samples of each window")
    repeat: int = option(5, whole_number(1), "times that samples and maps are read")
    maps: Path | None = option(None, Path, "folder of real depth as PNG of 16 bits, in millimetres", metavar="DIR")
    count: int = option(40, whole_number(1), "depth maps of each kind")
    level: int = option(3, whole_number(0), "compression of the PNGs, 0 to 9")


def _work(options: LayoutOptions) -> Iterator[dict[str, Any]]:
    raw_root = Path(options.root)
    if options.root and not Catalog(raw_root).complete:
        remedy = "give a root of --layout frames --codec raw"
        raise ArgumentError(f"--root {raw_root}: there is no converted dataset; {remedy}")
    result: dict[str, Any] = {"layouts": [], "codecs": [], "depth": []}
    with work_folder("bench-layouts", options.out) as folder:
        if not options.root and {"layouts", "codecs"} & set(options.subjects):
            raw_root = folder / "raw"
            result |= _measure_layouts(options, folder, raw_root)
        if "codecs" in options.subjects and raw_root.is_dir():
            roots = {}
            for codec in options.codecs:
                roots[codec] = folder / "encoded" / codec.replace(":", "-")
                encode_root(raw_root, roots[codec], codec, gop=options.gop)
                say(f"{codec}: encoded")
            result["codecs"] = measure_codecs(roots, batches=options.batches, repeat=options.repeat)
            catalog = Catalog(raw_root)
            result["frames"] = sum(catalog.open(name).manifest.records for name in catalog.complete)
        if "depth" in options.subjects:
            sizes = {name: getattr(options, name) for name in ("size", "count", "repeat", "level", "maps")}
            result["depth"] = measure_depth(folder, **sizes)
        yield result


def _measure_layouts(options: LayoutOptions, folder: Path, raw_root: Path) -> dict[str, Any]:
    """Convert the datasets in each layout, and an episode of those that are encoded again to raw frames."""
    policy = FramePolicy(size=(options.size, options.size))
    totals: dict[str, list[int]] = {name: [0, 0] for name in LAYOUTS}
    steps = 0
    for selected in load_registry().resolve(options.datasets):
        for name, layout in LAYOUTS.items():
            config = dataclasses.replace(layout, policy=policy)
            statuses = convert_jobs(_plan(selected, options.source, config, folder / "output"))
            totals[name][0] += sum(status.entry.file.bytes for status in statuses)
            totals[name][1] += sum(status.entry.records for status in statuses)
            shutil.rmtree(folder / "output")
        steps += sum(status.entry.steps for status in statuses)
        say(f"{selected.spec.name}: {steps:,} steps")
        if any(status.entry.passed for status in statuses):
            continue
        raw_policy = dataclasses.replace(policy, codec="raw")
        config = ConvertConfig(layout="frames", policy=raw_policy, episodes="train[:1]")
        output = raw_root / selected.spec.name / selected.spec.version
        conversion = _plan(selected, options.source, config, output)
        convert_jobs(conversion)
        finish(conversion)
    layouts = [{"layout": name, "bytes": size, "records": records} for name, (size, records) in totals.items()]
    return {"steps": steps, "layouts": layouts}


def _plan(selected: Selected, source: str, config: ConvertConfig, output: Path) -> Conversion:
    dataset = find_dataset([source], selected.spec.tfds_name, selected.spec.version)
    return plan_conversion(selected, dataset, config, output_folder=str(output))


def format_result(result: Result) -> str:
    """Return the tables of a result, in Markdown."""
    parameters, paragraphs = result["parameters"], []
    if layouts := result["layouts"]:
        smallest = layouts[0]["bytes"]
        rows = [
            [row["layout"], f"{row['records']:,}", f"{row['bytes'] / 1e6:,.1f}", f"{row['bytes'] / smallest:.2f}"]
            for row in layouts
        ]
        paragraphs.append(markdown_table(["layout", "records", "MB of frames", "of pairs, endpoints"], rows))
        paragraphs.append(f"{result['steps']:,} steps at {parameters['size']} pixels.")
    if codecs := result["codecs"]:
        rows = []
        for row in codecs:
            windows = [row["windows"][window] for window in WINDOWS]
            psnr = "exact" if row["psnr_db"] > _EXACT else f"{row['psnr_db']:.1f}"
            samples = [1e6 / window["cpu_us"] for window in windows] + [_LINK / window["bytes"] for window in windows]
            size = f"{row['bytes_per_frame'] / 1e3:.1f}"
            rows.append([row["codec"], size, psnr, f"{row['ssim']:.3f}", *(f"{rate:,.0f}" for rate in samples)])
        rates = [f"{window}, {limit}" for limit in ("a core", "1 Gbit/s") for window in WINDOWS]
        paragraphs += [
            markdown_table(["codec", "kB a frame", "PSNR, dB", "SSIM", *rates], rows),
            f"{result['frames']:,} frames, chunks of {parameters['gop']}; medians. Samples/s: from records in memory "
            "on one core, and the calculated rate of a network.",
        ]
    if depth := result["depth"]:
        header = ["depth maps", "PNG, kB", "ours, kB", "of PNG", "PNG, µs", "ours, µs", "times as fast"]
        rows = []
        for row in depth:
            sizes = [row["png_bytes"], row["ours_bytes"]]
            texts = [*(f"{size / 1e3:.1f}" for size in sizes), f"{sizes[1] / sizes[0]:.2f}"]
            texts += [f"{row[key] * 1e6:,.0f}" for key in ("png_s", "ours_s")]
            rows.append([row["kind"], *texts, f"{row['speed']:.1f}"])
        note = f"Depth of {parameters['size']}x{parameters['size']}, one thread, from the page cache; medians."
        paragraphs += [markdown_table(header, rows), note]
    return "\n\n".join(paragraphs)


COMMAND = Command(
    name="layouts",
    about="Measure the cost of layouts, codecs and stored depth on disk and in the loader.",
    options=LayoutOptions,
    work=_work,
    show=format_result,
    libraries=("simplejpeg", "opencv-python-headless", "av", "numpy", "pyarrow"),
)
main = COMMAND.main
