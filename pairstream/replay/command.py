"""Command line of ``pairstream replay``: the batch of any step as a table, page, digest or JSON."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from pairstream.command import command_parser, plain_table, print_table
from pairstream.replay.batch_html import write_page
from pairstream.replay.shown_step import ShownStep, drawing_options, show_step, with_transforms
from pairstream.view.window import open_run
from stream.base.arguments import add_cache, printable, run_command, whole_number
from stream.base.errors import ArgumentError
from stream.base.progress import Progress
from stream.loader.comparison import digest
from stream.loader.rank_plan import RankPlan
from stream.order.reference import SampleRef

_EPILOG = """\
The digest equals stream.digest(batch) of the same rank's batch in training, as the loader returns it (with
decode="device" before its frames are decoded), with the normalisation of the run. Other transforms are code, and
loader.json has only their names: give them with --transforms, or see the data before the transforms.

exit codes:
  0    done
  1    records or files of the data are damaged
  2    a wrong option, no loader.json, or the data differ from the run's data
  130  interrupted

examples:
  pairstream replay --loader run/loader.json --step 51234 --out pages
  pairstream replay --loader run/loader.json --step 51234 --rank 3 --json
  diff <(pairstream replay --loader a/loader.json --range 0:100 --digest) \\
       <(pairstream replay --loader b/loader.json --range 0:100 --digest)
"""

_FAILURE = ("sample", "dataset", "split", "shard", "record", "episode", "reason")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    options = _parse(arguments)
    return run_command(lambda: _replay(options), interrupted="error: interrupted")


def _replay(options: argparse.Namespace) -> None:
    rank_plan, saved_transforms = open_run(options.loader, root=options.root, cache=options.cache, rank=options.rank)
    if options.transforms is not None:
        rank_plan = with_transforms(rank_plan, options.transforms, saved_transforms)
    if options.range is None:
        return _show(rank_plan, options)
    rank_plan.samples(options.range[-1])  # raises now, not after many steps
    # On a terminal the lines are the progress.
    with Progress(len(options.range), "steps", stream=None if sys.stdout.isatty() else sys.stderr) as progress:
        for step in options.range:
            # Flushed, so that a closed pipe ends the command.
            print(f"{step} {digest(rank_plan.make(step).batch)}", flush=True)
            progress.advance()


def _show(plan: RankPlan, options: argparse.Namespace) -> None:
    shown = show_step(plan, options.step)
    step, refs, replaced, faults = shown.step, shown.refs, shown.replaced_rows, shown.faults
    report: dict[str, Any] = {"step": step, "digest": digest(shown.trained)}
    page_path = None if options.out is None else _write(plan, shown, options.out)
    if options.digest:
        print(json.dumps(report) if options.json else f"{step} {report['digest']}")
        return
    if options.json:
        report |= {"rank": plan.rank, "world_size": plan.world_size, "batch_size": plan.run_config.batch_size}
        report["rows"] = [
            {"row": row, **asdict(ref), "replaced": row in replaced, "faults": faults.get(row, [])}
            for row, ref in enumerate(refs)
        ]
        report["replaced"] = [
            {"row": row, **{name: getattr(error, name) for name in _FAILURE}} for row, error in shown.replaced
        ]
        report["page"] = page_path and str(page_path)
        print(json.dumps(report, indent=1))
        return
    print(f"step {step}, rank {plan.rank} of {plan.world_size}, {len(refs)} rows, digest {report['digest']}\n")
    print_table(make_table(refs, replaced=replaced, faults=faults))
    if replaced:
        print("\n* replaced, as these records cannot be read:")
    for row, error in shown.replaced:
        context = f"dataset {error.dataset}, split {error.split}, shard {error.shard}, record {error.record}"
        print(f"  row {row}: {context}: {printable(error.reason)}")
    if faults:
        print("\n! bad values:")
    for row, messages in faults.items():
        print(f"  row {row}: {printable('; '.join(messages))}")
    if page_path is not None:
        print(f"\npage: {page_path}")


def _write(plan: RankPlan, shown: ShownStep, folder: Path) -> Path:
    refs, has_ranks = shown.refs, plan.world_size > 1
    rank = f", rank {plan.rank} of {plan.world_size}" if has_ranks else ""
    title = f"step {shown.step}{rank}, {len(refs)} rows, samples {refs[0].sample} to {refs[-1].sample}"
    file_name = f"step-{shown.step:08d}" + (f"-rank{plan.rank}" if has_ranks else "")
    try:
        return write_page(folder, file_name, shown.seen, refs, title=title, **drawing_options(shown, plan.mixture))
    except OSError as error:
        raise ArgumentError(f"--out {folder}: cannot be written ({error.strerror or error})") from None


def make_table(refs: Sequence[SampleRef], *, replaced: Collection[int], faults: Collection[int]) -> Table:
    """Return the table of a batch, with ``*`` at replaced rows and ``!`` at faults; it folds texts, but no numbers."""
    table = plain_table()
    columns = ["row", "dataset", "source_file", "episode", "steps", "language", "shard", "record", "sample", "epoch"]
    texts = ("dataset", "source_file", "language", "shard")
    for column_name in columns:
        table.add_column(column_name.replace("_", " "), no_wrap=column_name not in texts, overflow="fold")
    for row, ref in enumerate(refs):
        cells = {
            **asdict(ref),
            "row": f"{row}{'*' if row in replaced else ''}{'!' if row in faults else ''}",
            "steps": f"{ref.step}..{ref.step + ref.offset}" if ref.offset else str(ref.step),
        }
        table.add_row(*(Text(printable(str(cells[column_name]))) for column_name in columns))
    return table


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    description = "Show the batch of any step of a run: the origin of each row, a page with its pictures, and a digest."
    parser = command_parser("replay", description=description, epilog=_EPILOG)
    parser.add_argument("--loader", type=Path, required=True, metavar="FILE", help="the run's loader.json")
    step_group = parser.add_mutually_exclusive_group(required=True)
    step_group.add_argument("--step", type=whole_number(0), metavar="N", help="the step to show, from 0")
    text = "with --digest: one line for each step from A to B, without B"
    step_group.add_argument("--range", type=_range, metavar="A:B", help=text)
    parser.add_argument("--rank", type=int, metavar="R", help="rank of the run; default: that of the file")
    parser.add_argument("--root", type=Path, metavar="DIR", help="folder of the data, if they were moved")
    add_cache(parser)
    text = "transforms of the run (one, a list, or a function of the loader's data), or FILE.py:NAME"
    parser.add_argument("--transforms", metavar="MODULE:NAME", help=text)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write a page of the rows: DIR/step-0000000N.html")
    parser.add_argument("--digest", action="store_true", help="print only the step and the hash of its batch")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.range is not None and (options.json or options.out is not None or not options.digest):
        parser.error("--range prints digests only: give it with --digest, without --json and --out")
    return options


def _range(option_text: str) -> range:
    try:
        first_step, end_step = map(whole_number(0), option_text.split(":"))
    except ValueError:
        first_step = end_step = 0
    if first_step >= end_step:
        hint = "expected A:B with A < B, such as 0:100 (B not included)"
        raise argparse.ArgumentTypeError(f"found {option_text!r}, {hint}")
    return range(first_step, end_step)
