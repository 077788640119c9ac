"""Command line of ``pairstream info``, which prints what a converted root holds."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convert.report import fit_table
from pairstream.command import command_parser
from pairstream.info.overview import (
    Kept,
    Overview,
    apply_filters,
    describe,
    human_duration,
    list_episodes,
    open_root,
    parse_value,
)
from stream.base.arguments import add_cache, run_command
from stream.base.errors import ArgumentError, FormatError
from stream.base.progress import human_bytes
from stream.sample.filters import OPERATORS
from stream.storage.cache_folder import cached_root
from stream.storage.files import write_atomically

_EPILOG = """\
Samples are pairs in the layout `pairs`, and steps in the layout `frames`; a window leaves some steps out. An episode is
listed if one of its samples fulfils all filters.

exit codes:
  0    printed
  1    a manifest or an index is damaged
  2    a wrong name, path or filter

examples:
  pairstream info data/oxe
  pairstream info data/oxe --json
  pairstream info data/oxe --datasets bridge --filter 'num_steps >= 20' --filter 'language contains drawer'
  pairstream info data/oxe --filter 'success == true' --episodes-out good.json  # for make_loader's episodes=
"""

_KEPT = ("episodes", "samples")
"""Counts of what filters leave."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parse(arguments)
    return run_command(lambda: _print(options), interrupted="interrupted")


def parse_condition(condition_text: str) -> tuple[str, str, Any]:
    """Return the column, operator and value of a typed filter; raise ArgumentError without an operator.

    The value is JSON or else a text. After ``in`` and ``not in`` it may be a list with commas.

    >>> parse_condition("success == true"), parse_condition("robot in widowx,jaco")
    (('success', '==', True), ('robot', 'in', ['widowx', 'jaco']))
    >>> parse_condition("action is_finite false")
    ('action', 'is_finite', False)
    """
    column, _, remainder = condition_text.strip().partition(" ")
    remainder = remainder.strip()
    operators = sorted(OPERATORS, key=len, reverse=True)
    operator = next((name for name in operators if remainder.startswith(f"{name} ")), None)
    if not column or operator is None:
        raise ArgumentError(
            f"--filter {condition_text!r:.100}; expected 'COLUMN OPERATOR VALUE' with spaces, operators are "
            f"{' '.join(OPERATORS)}"
        )
    value_text = remainder.removeprefix(operator).strip()
    if operator in ("contains", "matches"):
        return column, operator, value_text
    if operator in ("in", "not in") and not value_text.startswith("["):
        return column, operator, [parse_value(item.strip()) for item in value_text.split(",")]
    return column, operator, parse_value(value_text)


def _print(options: argparse.Namespace) -> None:
    dataset_names = None if options.datasets is None else list(dict.fromkeys(filter(None, options.datasets.split(","))))
    if dataset_names == []:
        raise ArgumentError("--datasets names no dataset")
    if options.episodes_out is not None and not options.filter:
        raise ArgumentError("--episodes-out without --filter; give conditions that choose episodes")
    overview = open_root(cached_root(options.root, options.cache, has_members=False), dataset_names)
    datasets = [describe(dataset) for dataset in overview.datasets]
    kept_by_dataset: dict[str, Kept | None] = {}
    if options.filter:
        kept_by_dataset = apply_filters(overview.datasets, list(map(parse_condition, options.filter)))
        for summary in datasets:
            kept = kept_by_dataset[summary["dataset"]]
            summary["kept"] = kept and {"episodes": len(kept.episode_ids), "samples": kept.samples}
    if options.episodes_out is not None:
        write_atomically(options.episodes_out, (json.dumps(list_episodes(kept_by_dataset), indent=1) + "\n").encode())
    if options.json:
        print(json.dumps({"root": options.root, "datasets": datasets, "incomplete": overview.incomplete}, indent=1))
    else:
        if datasets:
            print(_table(datasets))
        notes = [*_notes(overview, datasets), *_filter_notes(kept_by_dataset, options.episodes_out)]
        print("", _totals(datasets), *notes, sep="\n")
    for error in overview.damaged.values():
        raise FormatError(error)


def _table(datasets: Sequence[Mapping[str, Any]]) -> str:
    filtered = [f"kept {name}" for name in _KEPT] if any("kept" in dataset for dataset in datasets) else []
    header = ["dataset", "version", "layout", "episodes", "length", "samples", "size", "rate", *filtered]
    table_rows = []
    for dataset in datasets:
        length = "-" if dataset["hours"] is None else human_duration(dataset["hours"])
        rate = "-" if dataset["rate"] is None else f"{dataset['rate']:g} Hz"
        numbers = [dataset["episodes"], length, dataset["samples"], human_bytes(dataset["bytes"]), rate]
        if filtered:
            numbers += [dataset["kept"][name] if dataset["kept"] else "-" for name in _KEPT]
        splits = ", ".join(f"{name} {count:,}" for name, count in dataset["splits"].items())
        cameras = [
            f"{name} {'/'.join(camera['sizes'])} {camera['codec'] or 'depth'}"
            for name, camera in dataset["cameras"].items()
        ]
        names = [dataset[name] for name in ("dataset", "version", "layout")]
        table_rows.append([*names, *numbers, dataset["robot"] or "-", splits, ", ".join(cameras)])
    return fit_table([*header, "robot", "splits", "cameras"], table_rows)


def _totals(datasets: Sequence[Mapping[str, Any]]) -> str:
    length = human_duration(sum(dataset["hours"] or 0 for dataset in datasets))
    keys = ("episodes", "samples", "bytes")
    episodes, samples, num_bytes = (sum(dataset[key] for dataset in datasets) for key in keys)
    counts = f"{len(datasets):,} dataset{'s' if len(datasets) != 1 else ''}, {episodes:,} episodes, {length}"
    return f"{counts}, {samples:,} samples, {human_bytes(num_bytes)}"


def _notes(root: Overview, datasets: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines below the table that name datasets with an unusual property."""
    names = {dataset["dataset"]: dataset for dataset in datasets}
    instructions = {name: dataset["instruction"] for name, dataset in names.items()}
    silent = [name for name, instruction in instructions.items() if instruction == ""]
    repetitive = [f"{name} ({instruction!r:.60})" for name, instruction in instructions.items() if instruction]
    partial = [name for name, dataset in names.items() if dataset["fetched_shards"] is not None]
    left_out, nonfinite = (
        [f"{name} ({_counts(dataset[key])})" for name, dataset in names.items() if dataset[key]]
        for key in ("left_out", "nonfinite_episodes")
    )
    notes = [
        ("left out by the conversion", left_out, "; quarantine.jsonl of each says why"),
        ("episodes with NaN or infinity", nonfinite, "; docs/debugging.md says what to do"),
        ("no instruction at all", silent, ""),
        ("one instruction for all episodes", repetitive, ""),
        ("not complete", root.incomplete, "; run the same convert.run command again"),
        ("fetched in part", partial, "; counts are those of the source"),
    ]
    return [f"{title}: {', '.join(named)}{hint}" for title, named, hint in notes if named]


def _filter_notes(kept: Mapping[str, Kept | None], listed: Path | None) -> list[str]:
    """Return the lines below the table about the filters, and about the list of episodes that was written."""
    lines = []
    if lacking := [dataset_name for dataset_name, dataset in kept.items() if dataset is None]:
        lines.append(f"without a column of the filters: {', '.join(lacking)}")
    if empty := [dataset_name for dataset_name, dataset in kept.items() if dataset and not dataset.samples]:
        lines.append(f"nothing fulfils the filters in: {', '.join(empty)}")
    if listed is not None:
        listed_names = list(list_episodes(kept))
        listed_text = ", ".join(listed_names) or "no dataset"
        lines.append(f"{listed}: episodes of {listed_text}; make_loader(..., select=Select(episodes={str(listed)!r}))")
        if missing := [dataset_name for dataset_name in kept if dataset_name not in listed_names]:
            lines.append(f"leave out of the mixture, as the file has no list of them: {', '.join(missing)}")
    return lines


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count_name.replace('_', ' ')} {count:,}" for count_name, count in counts.items())


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    description = "Print what a converted root holds: datasets, episodes, hours, samples, bytes, cameras."
    parser = command_parser("info", description=description, epilog=_EPILOG)
    parser.add_argument("root", metavar="ROOT", help="a converted root, also s3:// and the like, or a fetched copy")
    add_cache(parser)
    parser.add_argument("--datasets", help="only these, with commas between (default: all)")
    text = "count what fulfils a condition, as in where of stream.Select; repeat the option for several"
    parser.add_argument("--filter", action="append", default=[], metavar="CONDITION", help=text)
    parser.add_argument("--episodes-out", type=Path, metavar="FILE", help="write the remaining episodes, for episodes=")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args(arguments)
