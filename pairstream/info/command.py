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

from pairstream.info.overview import Kept, Overview, apply_filters, describe, list_episodes, open_root
from stream.base.arguments import Parser, add_cache, run_command
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
    parsed = _parse(arguments)
    return run_command(lambda: _print(parsed), interrupted="interrupted")


def parse_condition(text: str) -> tuple[str, str, Any]:
    """Return the column, operator and value of a filter as a text.

    The value is JSON, else a text; those of ``in`` and ``not in`` may be a list with commas between.

    Raises:
        ArgumentError: The text has no operator.

    >>> parse_condition("success == true"), parse_condition("robot in widowx,jaco")
    (('success', '==', True), ('robot', 'in', ['widowx', 'jaco']))
    >>> parse_condition("action is_finite false")
    ('action', 'is_finite', False)
    """
    column, _, rest = text.strip().partition(" ")
    how = next((each for each in sorted(OPERATORS, key=len, reverse=True) if rest.strip().startswith(f"{each} ")), None)
    if not column or how is None:
        raise ArgumentError(
            f"--filter {text!r:.100}; expected 'COLUMN OPERATOR VALUE' with spaces, operators are {' '.join(OPERATORS)}"
        )
    given = rest.strip().removeprefix(how).strip()
    if how in ("contains", "matches"):
        return column, how, given
    is_list = how in ("in", "not in") and not given.startswith("[")
    return column, how, [_value(each.strip()) for each in given.split(",")] if is_list else _value(given)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _print(parsed: argparse.Namespace) -> None:
    names = None if parsed.datasets is None else list(dict.fromkeys(filter(None, parsed.datasets.split(","))))
    if names == []:
        raise ArgumentError("--datasets names no dataset")
    if parsed.episodes_out is not None and not parsed.filter:
        raise ArgumentError("--episodes-out without --filter; give conditions that choose episodes")
    root = open_root(cached_root(parsed.root, parsed.cache, has_members=False), names)
    found = [describe(dataset) for dataset in root.datasets]
    kept: dict[str, Kept | None] = {}
    if parsed.filter:
        kept = apply_filters(root.datasets, [parse_condition(text) for text in parsed.filter])
        for entry in found:
            of_dataset = kept[entry["dataset"]]
            entry["kept"] = of_dataset and {"episodes": len(of_dataset.episode_ids), "samples": of_dataset.samples}
    if parsed.episodes_out is not None:
        write_whole(parsed.episodes_out, (json.dumps(list_episodes(kept), indent=1) + "\n").encode())
    if parsed.json:
        print(json.dumps({"root": parsed.root, "datasets": found, "incomplete": root.incomplete}, indent=1))
    else:
        # A pipe gets full lines.
        if found:
            Console(width=None if sys.stdout.isatty() else 1 << 20).print(_table(found))
        for line in _notes(root, found, kept, parsed.episodes_out):
            print(line)
    for error in root.damaged:
        raise FormatError(error)


def _table(found: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    filtered = [f"kept {name}" for name in _KEPT] if any("kept" in entry for entry in found) else []
    numbers = ["episodes", "hours", "samples", "size", "rate", *filtered]
    for name in ["dataset", "version", "layout", *numbers, "robot", "splits", "cameras"]:
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=name != "cameras")
    for entry in found:
        cells = [entry["dataset"], entry["version"], entry["layout"], f"{entry['episodes']:,}"]
        cells += ["-" if entry["hours"] is None else f"{entry['hours']:,.2f}", f"{entry['samples']:,}"]
        cells += [human_bytes(entry["bytes"]), "-" if entry["rate"] is None else f"{entry['rate']:g} Hz"]
        if filtered:
            cells += [f"{entry['kept'][name]:,}" if entry["kept"] else "-" for name in _KEPT]
        cells += [entry["robot"] or "-", ", ".join(f"{name} {count:,}" for name, count in entry["splits"].items())]
        cameras = (
            f"{name} {'/'.join(each['sizes'])} {each['codec'] or 'depth'}" for name, each in entry["cameras"].items()
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
    parser = Parser(
        prog="pairstream info",
        description="Print what a converted root holds: datasets, episodes, hours, samples, bytes, cameras.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
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
