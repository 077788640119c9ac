"""``python -m bench.scale``: cost of the loader, labels, index, statistics and pages, from 10^5 to 6*10^7 records.

The roots are synthetic (`bench.synthetic`): real formats, 29 datasets, up to 20,000 shards, frames of 256x256. Hard
links replace the shards that would only fill the disk. Roots are made in ``--work`` and removed again. Each measurement
runs in a fresh process, ``--repeat`` times, in alternation; figures are medians.

``--subjects`` chooses the measurements: ``loader`` (opening, planning, batches, resuming, memory), ``labels`` (a
float32 attached to every step), ``index`` (merging the index of one split, and its statistics), ``chunks`` (the exact
statistics of relative chunks of 16 steps, from every step) and ``pages`` (the pages of ``pairstream browse`` in
Debian's Chromium, driven by playwright).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure.child import ask
from bench.measure.command import Result, tell, work_folder
from bench.measure.options import one_of, option, several, wholes
from bench.measure.points import Point, Prepared, Repeated, study
from bench.measure.tables import Column, Table, figure, point_table
from bench.synthetic import Scale, make_parts, make_root
from stream.base.arguments import whole_number

SUBJECTS = ("loader", "labels", "index", "chunks", "pages")


def _seconds(*names: str, form: str = ".2f") -> dict[str, Column]:
    return {f"{name} s": figure(f"{name.replace(' ', '_')}_s", form=form) for name in names}


_COLUMNS: dict[str, Column] = {
    "shards": lambda point: f"{point['point']['shards']:,}",
    **_seconds("open", "first batch", "cold open"),
    "cold first s": figure("cold_first_batch_s", form=".2f"),
    "cold/warm rate": figure("cold_rate", form=".2f"),
    "plan 256 ms": figure("plan_ms", form=".2f"),
    "CPU ms a batch": figure("batch_cpu_ms", form=".1f"),
    "encoded": figure("encoded_cpu_ms", form=".1f"),
    "resume at 10^8 s": figure("resume_s", form=".2f"),
    "describe ms": figure("describe_ms", form=".0f"),
    "normalize ms": figure("normalize_ms", form=".1f"),
    **_seconds("weighted open"),
    "weighted plan ms": figure("weighted_plan_ms", form=".2f"),
    "weights MB": figure("weighted_bytes", form=",.1f", scale=1e-6),
    "trainer MB": figure("trainer_own_bytes", form=",.0f", scale=1e-6),
    "worker MB": figure("worker_own_bytes", form=",.0f", scale=1e-6),
    "labels s": figure("label_s", form=".1f"),
    "labels MB": figure("label_bytes", form=",.0f", scale=1e-6),
    **_seconds("merge", "statistics", form=".1f"),
    "index MB": figure("index_bytes", form=",.0f", scale=1e-6),
    "merge peak MB": figure("merge_peak_bytes", form=",.0f", scale=1e-6),
    "anonymous MB": figure("merge_anonymous_bytes", form=",.0f", scale=1e-6),
    "chunk values 10^6": figure("chunk_values", form=",.0f", scale=1e-6),
    **_seconds("chunks", "chunks cpu", form=".1f"),
    "chunks anonymous MB": figure("chunks_anonymous_bytes", form=",.0f", scale=1e-6),
    "chunks peak MB": figure("chunks_peak_bytes", form=",.0f", scale=1e-6),
    **_seconds("start", "first page", "dataset", "search", "filter", "sort", "histograms", "episode", "mixture"),
    "frames/s": figure("frames_per_s", form=",.0f"),
    "browse MB": figure("browse_own_bytes", form=",.0f", scale=1e-6),
    "browse PSS MB": figure("browse_pss_bytes", form=",.0f", scale=1e-6),
}


@dataclass(frozen=True, kw_only=True)
class ScaleOptions(Repeated):
    """Options of the command."""

    subjects: tuple[str, ...] = option(
        ("labels", "loader"), several(one_of(SUBJECTS, "subject")), f"subjects: {', '.join(SUBJECTS)}", metavar="A,B"
    )
    records: tuple[int, ...] = option((100_000, 1_000_000, 10_000_000, 60_000_000), wholes(1), "sizes", metavar="A,B")
    batch_size: int = option(64, whole_number(1), "rows of a batch")
    num_workers: int = option(2, whole_number(0), "worker processes")
    batches: int = option(400, whole_number(2), "batches of a measurement")
    frames: int = option(300, whole_number(1), "stored frames that the pages request one after the other")
    work: Path | None = option(None, Path, "folder for the roots; by default the temporary one", metavar="DIR")


@contextmanager
def _prepare(options: ScaleOptions) -> Iterator[Prepared]:
    settings = {name: getattr(options, name) for name in ("batch_size", "num_workers", "batches", "frames")}
    points = []

    def measure(point: Point) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        request = {"root": point.parameters["root"], **settings}
        for subject in options.subjects:
            figures |= ask(f"bench.scale.{subject}", request)
        return figures

    with work_folder("bench-scale", options.work) as work_path:
        for records in options.records:
            scale, root = Scale.of(records), work_path / str(records)
            tell(f"making {scale.records:,} records in {scale.shards:,} shards")
            make_root(root, scale)
            if "index" in options.subjects:
                make_parts(work_path / f"{records}-parts", scale)
            sizes = {"records": scale.records, "shards": scale.shards, "root": str(root)}
            points.append(Point(f"{scale.records:,}", sizes))
        yield Prepared(points=points, measure=measure)


def _table(result: Result) -> Table:
    parameters = result["parameters"]
    note = (
        f"medians of {parameters['repeat']}; {parameters['batches']} batches of {parameters['batch_size']}, "
        f"{parameters['num_workers']} workers; encoded: without decoding; cold: the first hundred batches after the "
        "index left the page cache; trainer, worker and browse MB: without mapped files; MB are 10^6 bytes"
    )
    return point_table(result["points"], _COLUMNS, [note], first="records")


COMMAND = study(
    name="scale",
    about="Measure how the cost of the loader, labels, index, statistics and pages grows with the data.",
    options=ScaleOptions,
    prepare=_prepare,
    describe=lambda figures: ", ".join(f"{name} {figures[name]:.2f}" for name in figures if name.endswith("_s")),
    table=_table,
    libraries=("array-record", "grain", "nicegui", "numpy", "playwright", "pyarrow", "pydantic"),
)
main = COMMAND.main
