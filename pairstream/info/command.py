"""Command line of ``pairstream info``, which prints what a converted root holds."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pairstream.info.overview import Kept, Overview, apply_filters, describe, list_episodes, open_root, parse_value
from pairstream.parser import command_parser
from stream.base.arguments import add_cache, run_command
from stream.base.errors import ArgumentError, FormatError
from stream.base.progress import human_bytes
from stream.order.filters import OPERATORS
from stream.storage.files import write_whole
from stream.storage.remote import cached_root

_EPILOG = """\
samples are pairs in the layout `pairs`, and steps in the layout `frames`, of which a window leaves some out. An episode
is listed if one of its samples fulfils all filters.

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
_REMARKS = (
    ("left out by the conversion", "left_out", "quarantine.jsonl of each says why"),
    ("episodes with NaN or infinity", "nonfinite_episodes", "docs/debugging.md says what to do"),
)
"""Remarks on counts of a dataset: title, key of the counts, and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parse(arguments)
    return run_command(lambda: _print(options), interrupted="interrupted")


def parse_condition(condition_text: str) -> tuple[str, str, Any]:
    """Return the column, operator and value of a filter that was typed, such as ``num_steps >= 20``.

    The value is JSON or else a text. After ``in`` and ``not in`` it may be a list with commas.

    Raises:
        ArgumentError: The text has no operator.

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
        kept_by_dataset = apply_filters(
            overview.datasets, [parse_condition(condition_text) for condition_text in options.filter]
        )
        for summary in datasets:
            of_dataset = kept_by_dataset[summary["dataset"]]
            summary["kept"] = of_dataset and {"episodes": len(of_dataset.episode_ids), "samples": of_dataset.samples}
    if options.episodes_out is not None:
        write_whole(options.episodes_out, (json.dumps(list_episodes(kept_by_dataset), indent=1) + "\n").encode())
    if options.json:
        print(json.dumps({"root": options.root, "datasets": datasets, "incomplete": overview.incomplete}, indent=1))
    else:
        # A pipe gets full lines.
        if datasets:
            Console(width=None if sys.stdout.isatty() else 1 << 20).print(_table(datasets))
        for note in _notes(overview, datasets, kept_by_dataset, options.episodes_out):
            print(note)
    for error in overview.damaged:
        raise FormatError(error)


def _table(datasets: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    filtered = [f"kept {name}" for name in _KEPT] if any("kept" in dataset for dataset in datasets) else []
    number_columns = ["episodes", "hours", "samples", "size", "rate", *filtered]
    for name in ["dataset", "version", "layout", *number_columns, "robot", "splits", "cameras"]:
        table.add_column(name, justify="right" if name in number_columns else "left", no_wrap=name != "cameras")
    for dataset in datasets:
        cells = [dataset["dataset"], dataset["version"], dataset["layout"], f"{dataset['episodes']:,}"]
        cells += ["-" if dataset["hours"] is None else f"{dataset['hours']:,.2f}", f"{dataset['samples']:,}"]
        cells += [human_bytes(dataset["bytes"]), "-" if dataset["rate"] is None else f"{dataset['rate']:g} Hz"]
        if filtered:
            cells += [f"{dataset['kept'][name]:,}" if dataset["kept"] else "-" for name in _KEPT]
        cells += [dataset["robot"] or "-", ", ".join(f"{name} {count:,}" for name, count in dataset["splits"].items())]
        cameras = (
            f"{name} {'/'.join(camera['sizes'])} {camera['codec'] or 'depth'}"
            for name, camera in dataset["cameras"].items()
        )
        table.add_row(*cells, ", ".join(cameras))
    return table


def _notes(
    root: Overview, found: Sequence[Mapping[str, Any]], kept: Mapping[str, Kept | None], listed: Path | None
) -> list[str]:
    """Return the lines below the table: totals, and what is not in it."""
    hours = sum(entry["hours"] or 0 for entry in found)
    totals = {name: sum(entry[name] for entry in found) for name in ("episodes", "samples", "bytes")}
    lines = [
        "",
        f"{len(found):,} dataset{'s' if len(found) != 1 else ''}, {totals['episodes']:,} episodes, {hours:,.2f} hours, "
        f"{totals['samples']:,} samples, {human_bytes(totals['bytes'])}",
    ]
    for title, key, after in _REMARKS:
        if of_each := [f"{entry['dataset']} ({_counts(entry[key])})" for entry in found if entry[key]]:
            lines.append(f"{title}: {', '.join(of_each)}; {after}")
    if without := [entry["dataset"] for entry in found if entry["instruction"] == ""]:
        lines.append(f"no instruction at all: {', '.join(without)}")
    if same := [f"{entry['dataset']} ({entry['instruction']!r:.60})" for entry in found if entry["instruction"]]:
        lines.append(f"one instruction for all episodes: {', '.join(same)}")
    if root.incomplete:
        lines.append(f"not complete: {', '.join(root.incomplete)}; run the same convert.run command again")
    if partly := [entry["dataset"] for entry in found if entry["fetched_shards"] is not None]:
        lines.append(f"fetched in part: {', '.join(partly)}; counts are those of the source")
    if without := [name for name, each in kept.items() if each is None]:
        lines.append(f"without a column of the filters: {', '.join(without)}")
    if empty := [name for name, each in kept.items() if each is not None and not each.samples]:
        lines.append(f"nothing fulfils the filters in: {', '.join(empty)}")
    if listed is not None:
        names = list(list_episodes(kept))
        lines.append(f"{listed}: episodes of {', '.join(names) or 'no dataset'}; make_loader(episodes={str(listed)!r})")
        if missing := [name for name in kept if name not in names]:
            lines.append(f"leave out of the mixture, as the file has no list of them: {', '.join(missing)}")
    return lines


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_parser(
        "info",
        description="Print what a converted root holds: datasets, episodes, hours, samples, bytes, cameras.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "root", metavar="ROOT", help="the --output of a conversion, also s3:// and the like, or a fetched copy"
    )
    add_cache(parser)
    parser.add_argument("--datasets", help="only these, with commas between (default: all)")
    parser.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="CONDITION",
        help="count what fulfils a condition, as in filters= of make_loader; repeat the option for several",
    )
    parser.add_argument(
        "--episodes-out", type=Path, metavar="FILE", help="write the episodes that filters leave, for episodes="
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args(arguments)
