"""The plan and the result of a conversion, as tables and as JSON."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from convert.chosen_features import notation
from convert.index.derived import part_names
from convert.journal.status import parse_quarantine
from convert.plan import Conversion
from convert.report import format_table
from convert.run.estimate import estimate
from convert.run.status import ConversionStatus
from convert.source.protocol import counts_sum
from stream.base.machine import available_memory
from stream.base.progress import human_bytes
from stream.format.manifest import Manifest
from stream.format.names import LAYOUTS
from stream.storage.remote import is_remote

_LISTED = 20
_SUMMED = ("episodes", *LAYOUTS, "bytes_in", "bytes_out", "shards", "shards_done", "estimated_bytes")
_Columns = Mapping[str, Callable[[Mapping[str, Any]], object]]
_FIRST: _Columns = {
    "dataset": lambda row: row["dataset"],
    "version": lambda row: row["version"],
    "splits": lambda row: ", ".join(row["splits"]),
    "episodes": lambda row: "?" if row["episodes"] is None else row["episodes"],
}
_RESULT: _Columns = {
    **_FIRST,
    "pairs": lambda row: row["pairs"],
    "frames": lambda row: row["frames"],
    "in": lambda row: human_bytes(row["bytes_in"]),
    "out": lambda row: human_bytes(row["bytes_out"]),
    "left out": lambda row: _reasons(row["left_out"]) if row["version"] else "",
}
_PLAN: _Columns = {
    **_FIRST,
    "offset": lambda row: row["offset"],
    "shards done": lambda row: f"{row['shards_done']:,}/{row['shards']:,}{' complete' if row['complete'] else ''}",
    "in": lambda row: human_bytes(row["bytes_in"]),
    "pairs (est.)": lambda row: "?" if row["estimated_pairs"] is None else row["estimated_pairs"],
    "frames (est.)": lambda row: "?" if row["estimated_frames"] is None else row["estimated_frames"],
    "frame": lambda row: "; ".join(_frames(row["frame_sizes"])) if row["version"] else "",
    "out (est.)": lambda row: "?" if row["estimated_bytes"] is None else human_bytes(row["estimated_bytes"]),
}


def summarise(manifest: Manifest, *, output: str, converted: int) -> dict[str, Any]:
    """Return the result of one dataset; ``converted`` shards were missing when the command began."""
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    tables = [table for split in manifest.splits.values() for table in split.index.values()]
    return {
        "dataset": manifest.dataset,
        "version": manifest.version,
        "output": output,
        "splits": {name: split.records for name, split in manifest.splits.items()},
        "episodes": manifest.episodes,
        "steps": manifest.steps,
        manifest.layout: manifest.records,
        "bytes_in": sum(shard.source_bytes for shard in shards),
        "bytes_out": sum(shard.file.bytes for shard in shards) + sum(table.bytes for table in tables),
        "shards": len(shards),
        "shards_converted": converted,
        "left_out": manifest.left_out,
        "nonfinite_episodes": manifest.nonfinite_episodes,
        "instruction": manifest.instruction,
    }


def describe_content(manifest: Manifest) -> Iterator[str]:
    """Yield a warning for what makes complete data bad to train on, as far as the manifest has it."""
    if counts := manifest.nonfinite_episodes:
        listed = " and ".join(f"{count:,} in the {vector}" for vector, count in counts.items())
        yield f"{manifest.dataset}: of {manifest.episodes:,} episodes, NaN or infinity: {listed}; see docs/debugging.md"
    declared, text = manifest.spec.get("instruction"), manifest.instruction
    # A dataset of one task has one sentence for all; one word is rather a flag, such as "valid".
    if declared and declared.get("informative", True) and text is not None and len(text.split()) <= 1:
        said = f"all {manifest.episodes:,} episodes have the instruction {text!r}" if text else "no instruction at all"
        yield f"{manifest.dataset}: {said}; is instruction: {{path: {declared['path']}}} the right feature?"


def describe_plans(works: Sequence[ConversionStatus]) -> list[dict[str, Any]]:
    """Return what would be done to each dataset, with the room that all of them take and that there is.

    ``fits_memory`` tells whether a loader would find all records in the page cache once they were read.
    """
    rows = [_describe_plan(work) for work in works]
    sizes = [row["estimated_bytes"] for row in rows]
    parents = [folder for folder in Path(rows[0]["output"]).parents if folder.is_dir()]
    room = {
        "estimated_bytes": None if None in sizes else sum(sizes),
        "available_memory": available_memory(),
        "free_disk": None if is_remote(rows[0]["output"]) else shutil.disk_usage(parents[0]).free,
    }
    # Finished shards have their place already.
    left = [row["estimated_bytes"] or 0 for row in rows if not row["complete"]]
    for name, needed, there in (
        ("fits_memory", room["estimated_bytes"], room["available_memory"]),
        ("fits_disk", room["estimated_bytes"] and sum(left), room["free_disk"]),
    ):
        room[name] = None if needed is None or there is None else needed <= there
    return [{**row, "total": room} for row in rows]


def _describe_plan(found: ConversionStatus) -> dict[str, Any]:
    """Return what would be done to one dataset."""
    conversion = found.conversion
    expected = estimate(conversion)
    return {
        "dataset": conversion.spec.name,
        "version": conversion.spec.version,
        "source": conversion.source.path,
        "output": conversion.target,
        "splits": conversion.splits,
        "episodes": counts_sum(job.episodes for job in conversion.jobs),
        "shards": len(conversion.jobs),
        "shards_done": len(conversion.jobs) - len(found.todo),
        "complete": found.complete,
        "offset": conversion.plan.offset,
        "bytes_in": sum(job.size for job in conversion.jobs),
        f"estimated_{conversion.plan.layout}": expected.records,
        "estimated_bytes": expected.bytes,
        "frame_sizes": dict(expected.sizes),
        "removes": list(found.removes),
        "understood": _understood(conversion) if conversion.source.entry else [],
    }


def _understood(conversion: Conversion) -> list[str]:
    """Return a line for each thing that a dataset says of itself, as its registry entry has it."""
    spec = conversion.spec
    shapes = {name: "x".join(map(str, (each.shape or ("unknown size",))[:2])) for name, each in spec.cameras.items()}
    cameras = [f"{name} ({each.keys(name)[1]}, {shapes[name]})" for name, each in spec.cameras.items()]
    rate = "no fixed rate" if spec.control_frequency is None else f"{spec.control_frequency:g} Hz"
    vectors = {"action": part_names(spec.action), "state": part_names(spec.state)}
    splits = [f"{name} ({count})" for name, count in conversion.source.describe_splits().items()]
    empty = [feature.name for feature in conversion.source.features.values() if feature.size == 0]
    return [
        f"cameras: {', '.join(cameras)}",
        f"robot: {spec.robot or 'not named'}, {rate}",
        *(f"{name}: {', '.join(names) or 'none'}" for name, names in vectors.items()),
        f"instruction: {', '.join(map(notation, conversion.plan.language)) or 'none'}",
        f"columns: {', '.join(feature.name for feature in conversion.plan.features)}",
        *([f"not converted: {', '.join(empty)} (no values)"] if empty else ()),
        f"episodes: {', '.join(splits)}",
        *conversion.source.remarks,
    ]


def format_result(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of results that ``summarise`` returned."""
    return _format(_RESULT, rows)


def format_plan(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of plans that ``describe_plans`` returned, what datasets say of themselves, and what goes."""
    lines = [_format(_PLAN, rows)]
    for row in rows:
        lines += [f"{row['dataset']}: {line}" for line in row["understood"]]
        if row["removes"]:
            lines.append(f"{row['dataset']}: --overwrite would remove {', '.join(row['removes'])} in {row['output']}")
    return "\n".join([*lines, *_room(rows[0]["total"])])


def _room(total: Mapping[str, Any]) -> list[str]:
    """Return a line that tells whether the result fits into memory and onto the disk, none if its size is unknown."""
    if total["estimated_bytes"] is None:
        return []
    places = {"memory": "available_memory", "disk": "free_disk"}
    verdicts = {True: "fits into", False: "DOES NOT FIT into"}
    told = [
        f"{verdicts[total[f'fits_{place}']]} the {human_bytes(total[key])} of free {place}"
        for place, key in places.items()
        if total[f"fits_{place}"] is not None
    ]
    return [f"estimate: {human_bytes(total['estimated_bytes'])}{', '.join(['', *told])}"]


def _format(columns: _Columns, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with a row for each dataset, and one for all if they are several."""
    shown = list(rows)
    if len(rows) > 1:
        sums = {key: sum(row[key] or 0 for row in rows) for key in _SUMMED if key in rows[0]}
        shown.append({**dict.fromkeys(rows[0], ""), "dataset": f"{len(rows)} datasets", **sums})
    other = "frames" if any("pairs" in key for key in rows[0]) else "pairs"
    cells = {head: cell for head, cell in columns.items() if head.split()[0] != other}
    return format_table(list(cells), [[cell(row) for cell in cells.values()] for row in shown])


def _frames(sizes: Mapping[str, str]) -> list[str]:
    return [*sizes.values()] if len(sizes) == 1 else [f"{camera} {size}" for camera, size in sizes.items()]


def _reasons(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in left_out.items()) or "-"


def describe_fruitless(found: ConversionStatus, manifest: Manifest) -> str:
    """Return an error about a dataset that has no record, because all of its input is damaged."""
    listed = parse_quarantine(found.conversion.journal.quarantine())
    example = next((entry for entries in listed.values() for entry in entries), None)
    shown = f", such as episode {example.episode}: {example.detail}" if example else ""
    return (
        f"{found.name}: nothing could be converted, as all is damaged ({_reasons(manifest.left_out)}){shown}; mend the "
        "source and run the same command again"
    )


def describe_missing(found: ConversionStatus) -> dict[str, Any]:
    """Return the shards of a dataset that are not finished, with the host and message of their last failure."""
    stems = [job.stem for job in found.todo]
    failures = found.conversion.journal.failures(stems)
    missing: list[dict[str, str | None]] = [{"shard": stem, "host": None, "failure": None} for stem in stems]
    for shard in missing:
        if failure := failures.get(str(shard["shard"])):
            shard |= {"host": failure.host, "failure": failure.message}
    return {"dataset": found.name, "shards": len(found.conversion.jobs), "missing": missing}


def format_missing(found: Mapping[str, Any]) -> str:
    """Return a line for the dataset and one for each missing shard: failed ones first, not more than 20 of all.

    >>> failed = {"shard": "train-00002-of-00009", "host": "node7", "failure": "the disk is full"}
    >>> untried = {"shard": "train-00001-of-00009", "host": None, "failure": None}
    >>> print(format_missing({"dataset": "rt1", "shards": 9, "missing": [untried, failed]}))
    rt1: 2 of 9 shards are missing
      train-00002-of-00009  failed on node7: the disk is full
      train-00001-of-00009
    """
    shards = sorted(found["missing"], key=lambda shard: shard["failure"] is None)
    lines = [f"{found['dataset']}: {len(shards):,} of {found['shards']:,} shards are missing"]
    for shard in shards[:_LISTED]:
        failed = "" if shard["failure"] is None else f"  failed on {shard['host']}: {shard['failure']}"
        lines.append(f"  {shard['shard']}{failed}")
    if len(shards) > _LISTED:
        lines.append(f"  and {len(shards) - _LISTED:,} more; --json lists all")
    return "\n".join(lines)
