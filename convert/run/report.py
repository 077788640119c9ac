"""The plan and the result of a conversion, as tables and as JSON."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from convert.chosen_features import notation
from convert.index.derived import part_names
from convert.plan import Conversion
from convert.report import fit_table
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
_FIRST_COLUMNS: _Columns = {
    "dataset": lambda dataset_row: dataset_row["dataset"],
    "version": lambda dataset_row: dataset_row["version"],
    "splits": lambda dataset_row: ", ".join(dataset_row["splits"]),
    "episodes": lambda dataset_row: _known(dataset_row["episodes"]),
}
RESULT_COLUMNS: _Columns = {
    **_FIRST_COLUMNS,
    "pairs": lambda dataset_row: dataset_row["pairs"],
    "frames": lambda dataset_row: dataset_row["frames"],
    "in": lambda dataset_row: human_bytes(dataset_row["bytes_in"]),
    "out": lambda dataset_row: human_bytes(dataset_row["bytes_out"]),
    "left out": lambda dataset_row: _reasons(dataset_row["left_out"]) if dataset_row["version"] else "",
}
_PLAN_COLUMNS: _Columns = {
    **_FIRST_COLUMNS,
    "offset": lambda dataset_row: dataset_row["offset"],
    "shards done": lambda dataset_row: (
        f"{dataset_row['shards_done']:,}/{dataset_row['shards']:,}{' complete' if dataset_row['complete'] else ''}"
    ),
    "in": lambda dataset_row: human_bytes(dataset_row["bytes_in"]),
    "pairs (est.)": lambda dataset_row: _known(dataset_row["estimated_pairs"]),
    "frames (est.)": lambda dataset_row: _known(dataset_row["estimated_frames"]),
    "frame": lambda dataset_row: _frames(dataset_row["frame_sizes"]) if dataset_row["version"] else "",
    "out (est.)": lambda dataset_row: _known(dataset_row["estimated_bytes"], human_bytes),
}


def summarise(manifest: Manifest, *, output: str, num_converted: int) -> dict[str, Any]:
    """Return the result of one dataset; ``num_converted`` shards were missing when the command began."""
    splits = manifest.splits.values()
    shard_entries = [entry for split_entry in splits for entry in split_entry.shards]
    files = [*(entry.file for entry in shard_entries), *(table for entry in splits for table in entry.index.values())]
    return {
        "dataset": manifest.dataset,
        "version": manifest.version,
        "output": output,
        "splits": {split: split_entry.records for split, split_entry in manifest.splits.items()},
        "episodes": manifest.episodes,
        "steps": manifest.steps,
        manifest.layout: manifest.records,
        "bytes_in": sum(entry.source_bytes for entry in shard_entries),
        "bytes_out": sum(file.bytes for file in files),
        "shards": len(shard_entries),
        "shards_converted": num_converted,
        "left_out": manifest.left_out,
        "nonfinite_episodes": manifest.nonfinite_episodes,
        "instruction": manifest.instruction,
    }


def describe_content(manifest: Manifest) -> Iterator[str]:
    """Yield a warning for what makes complete data bad to train on, as far as the manifest has it."""
    if counts := manifest.nonfinite_episodes:
        listed_counts = " and ".join(f"{num_episodes:,} in the {vector}" for vector, num_episodes in counts.items())
        subject = f"{manifest.dataset}: of {manifest.episodes:,} episodes"
        yield f"{subject}, NaN or infinity: {listed_counts}; see docs/debugging.md"
    # Not where only the action is missing: poses of the state may be the actions, as in UMI.
    if not any(manifest.spec.get(field_name) for field_name in ("action", "state", "spaces")):
        remedy = "declare them in its YAML entry, then run `pairstream reindex`"
        yield f"{manifest.dataset}: the entry names no action and no state, so batches have none; {remedy}"
    declared, instruction = manifest.spec.get("instruction"), manifest.instruction
    # A dataset of one task has one sentence for all; one word is rather a flag, such as "valid".
    if not declared or not declared.get("informative", True) or instruction is None:
        return
    if len(instruction.split()) <= 1:
        repeated = f"all {manifest.episodes:,} episodes have the instruction {instruction!r}"
        finding = repeated if instruction else "no instruction at all"
        feature = f"instruction: {{path: {declared['path']}}}"
        yield f"{manifest.dataset}: {finding}; is {feature} the right feature?"


def describe_plans(statuses: Sequence[ConversionStatus]) -> list[dict[str, Any]]:
    """Return what would be done to each dataset, with the space that they take and that is free.

    ``fits_memory`` says whether a loader would find all records in the page cache once they were read.
    """
    plan_rows = [_describe_plan(status) for status in statuses]
    estimated_sizes = [row["estimated_bytes"] for row in plan_rows]
    parents = [folder for folder in Path(plan_rows[0]["output"]).parents if folder.is_dir()]
    space = {
        "estimated_bytes": None if None in estimated_sizes else sum(estimated_sizes),
        "available_memory": available_memory(),
        "free_disk": None if is_remote(plan_rows[0]["output"]) else shutil.disk_usage(parents[0]).free,
    }
    # Finished shards have their place already.
    remaining_sizes = [row["estimated_bytes"] or 0 for row in plan_rows if not row["complete"]]
    for fits_key, needed, available in (
        ("fits_memory", space["estimated_bytes"], space["available_memory"]),
        ("fits_disk", space["estimated_bytes"] and sum(remaining_sizes), space["free_disk"]),
    ):
        space[fits_key] = None if needed is None or available is None else needed <= available
    return [{**row, "total": space} for row in plan_rows]


def _describe_plan(status: ConversionStatus) -> dict[str, Any]:
    """Return what would be done to one dataset."""
    conversion = status.conversion
    expected = estimate(conversion)
    return {
        "dataset": conversion.spec.name,
        "version": conversion.spec.version,
        "source": conversion.source.path,
        "output": conversion.target,
        "splits": conversion.splits,
        "episodes": counts_sum(job.episodes for job in conversion.jobs),
        "shards": len(conversion.jobs),
        "shards_done": len(conversion.jobs) - len(status.pending_jobs),
        "complete": status.complete,
        "offset": conversion.plan.offset,
        "bytes_in": sum(job.size for job in conversion.jobs),
        f"estimated_{conversion.plan.layout}": expected.records,
        "estimated_bytes": expected.bytes,
        "frame_sizes": dict(expected.sizes),
        "removes": list(status.removed_splits),
        "understood": _understood(conversion) if conversion.source.entry else [],
    }


def _understood(conversion: Conversion) -> list[str]:
    """Return a line for each thing that a dataset says of itself, as its registry entry has it."""
    spec = conversion.spec
    cameras = [
        f"{name} ({camera.keys(name)[1]}, {'x'.join(map(str, (camera.shape or ('unknown size',))[:2]))})"
        for name, camera in spec.cameras.items()
    ]
    rate_text = "no fixed rate" if spec.control_frequency is None else f"{spec.control_frequency:g} Hz"
    vectors = {"action": part_names(spec.action), "state": part_names(spec.state)}
    split_texts = [f"{split} ({num_episodes})" for split, num_episodes in conversion.source.describe_splits().items()]
    empty_names = [feature.name for feature in conversion.source.features.values() if feature.size == 0]
    return [
        f"cameras: {', '.join(cameras)}",
        f"robot: {spec.robot or 'not named'}, {rate_text}",
        *(f"{vector_name}: {', '.join(vector_names) or 'none'}" for vector_name, vector_names in vectors.items()),
        f"instruction: {', '.join(map(notation, conversion.plan.language)) or 'none'}",
        f"columns: {', '.join(feature.name for feature in conversion.plan.features)}",
        *([f"not converted: {', '.join(empty_names)} (no values)"] if empty_names else ()),
        f"episodes: {', '.join(split_texts)}",
        *conversion.source.remarks,
    ]


def format_plan(plan_rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of plans of ``describe_plans``, and what sources say of themselves, what goes or fits."""
    text_lines = [format_rows(_PLAN_COLUMNS, plan_rows)]
    for plan_row in plan_rows:
        text_lines += [f"{plan_row['dataset']}: {source_line}" for source_line in plan_row["understood"]]
        if removed := ", ".join(plan_row["removes"]):
            text_lines.append(f"{plan_row['dataset']}: --overwrite would remove {removed} in {plan_row['output']}")
    space = plan_rows[0]["total"]
    if space["estimated_bytes"] is not None:
        line = f"estimate: {human_bytes(space['estimated_bytes'])}"
        for name, key in (("memory", "available_memory"), ("disk", "free_disk")):
            if (fits := space[f"fits_{name}"]) is not None:
                verdict = "fits into" if fits else "DOES NOT FIT into"
                line += f", {verdict} the {human_bytes(space[key])} of free {name}"
        text_lines.append(line)
    return "\n".join(text_lines)


def format_rows(columns: _Columns, dataset_rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with a row for each dataset, and one for all if they are several."""
    shown_rows = list(dataset_rows)
    if len(dataset_rows) > 1:
        sums = {name: sum(row[name] or 0 for row in dataset_rows) for name in _SUMMED if name in dataset_rows[0]}
        shown_rows.append({**dict.fromkeys(dataset_rows[0], ""), "dataset": f"{len(dataset_rows)} datasets", **sums})
    absent_layout = "frames" if any("pairs" in name for name in dataset_rows[0]) else "pairs"
    shown_columns = {column: make_cell for column, make_cell in columns.items() if column.split()[0] != absent_layout}
    return fit_table(
        list(shown_columns), [[make_cell(row) for make_cell in shown_columns.values()] for row in shown_rows]
    )


def _known(value: object, show: Callable[[Any], object] = lambda value: value) -> object:
    return "?" if value is None else show(value)


def _frames(size_by_camera: Mapping[str, str]) -> str:
    if len(size_by_camera) == 1:
        return next(iter(size_by_camera.values()))
    return "; ".join(f"{camera} {frame_size}" for camera, frame_size in size_by_camera.items())


def _reasons(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{reason.replace('_', ' ')} {num_left_out:,}" for reason, num_left_out in left_out.items()) or "-"


def describe_failed(status: ConversionStatus, manifest: Manifest) -> str:
    """Return an error about a dataset that has no record, because all of its input is damaged."""
    example = next(itertools.chain(*status.conversion.journal.quarantine().values()), None)
    example_text = f", such as episode {example.episode}: {example.detail}" if example else ""
    return (
        f"{status.name}: nothing could be converted, as all is damaged ({_reasons(manifest.left_out)}){example_text}; "
        "mend the source and run the same command again"
    )


def describe_missing(status: ConversionStatus) -> dict[str, Any]:
    """Return the shards of a dataset that are not finished, with the host and message of their last failure."""
    stems = [job.stem for job in status.pending_jobs]
    failures = status.conversion.journal.failures(stems)
    notes = [(stem, failures.get(stem)) for stem in stems]
    missing = [{"shard": stem, "host": note and note.host, "failure": note and note.message} for stem, note in notes]
    return {"dataset": status.name, "shards": len(status.conversion.jobs), "missing": missing}


def format_missing(missing_entry: Mapping[str, Any]) -> str:
    """Return a line for the dataset and one for each missing shard: failed ones first, not more than 20 of all.

    >>> failed = {"shard": "train-00002-of-00009", "host": "node7", "failure": "the disk is full"}
    >>> untried = {"shard": "train-00001-of-00009", "host": None, "failure": None}
    >>> print(format_missing({"dataset": "rt1", "shards": 9, "missing": [untried, failed]}))
    rt1: 2 of 9 shards are missing
      train-00002-of-00009  failed on node7: the disk is full
      train-00001-of-00009
    """
    shards = sorted(missing_entry["missing"], key=lambda shard: shard["failure"] is None)
    lines = [f"{missing_entry['dataset']}: {len(shards):,} of {missing_entry['shards']:,} shards are missing"]
    for shard in shards[:_LISTED]:
        failure = "" if shard["failure"] is None else f"  failed on {shard['host']}: {shard['failure']}"
        lines.append(f"  {shard['shard']}{failure}")
    if len(shards) > _LISTED:
        lines.append(f"  and {len(shards) - _LISTED:,} more; --json lists all")
    return "\n".join(lines)
