"""Command line of ``pairstream replay``: the batch of any step as a table, picture, digest or JSON."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pairstream.replay.contact_sheet import write_sheets
from pairstream.replay.shown_step import ShownStep, marks_of, sheet_names, show_step, with_transforms
from stream.base.arguments import Parser, add_cache, printable, run_command, whole
from stream.base.errors import ArgumentError
from stream.base.progress import Progress
from stream.loader.comparison import digest
from stream.loader.rank_plan import RankPlan
from stream.loader.saved import read_saved
from stream.order.reference import SampleRef

_EPILOG = """\
The digest equals stream.digest(batch) of the same rank's batch in training, as the loader returns it (with
decode="device" before its frames are decoded), with the normalisation of the run. Other transforms are code, and
loader.json has only their names: give them with --transforms, or see the data before them.

exit codes:
  0    done
  1    records or files of the data are damaged
  2    a wrong option, no loader.json, or the data differ from those of the run
  130  interrupted

examples:
  pairstream replay --loader run/loader.json --step 51234 --out pictures
  pairstream replay --loader run/loader.json --step 51234 --rank 3 --json
  diff <(pairstream replay --loader a/loader.json --range 0:100 --digest) \\
       <(pairstream replay --loader b/loader.json --range 0:100 --digest)
"""

_FAILURE = ("sample", "dataset", "split", "shard", "record", "episode", "reason")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    parsed = _parse(arguments)
    return run_command(lambda: _replay(parsed), interrupted="error: interrupted")


def _replay(parsed: argparse.Namespace) -> None:
    # A RankPlan, not a Loader, which would import Grain.
    overrides = {} if parsed.rank is None else {"rank": parsed.rank}
    data, running, saved = read_saved(parsed.loader, root=parsed.root, cache=parsed.cache, overrides=overrides)
    plan = RankPlan(data, running)
    if parsed.transforms is not None:
        plan = with_transforms(plan, parsed.transforms, saved)
    if parsed.range is None:
        _show(plan, parsed)
    else:
        _print_digests(plan, parsed.range)


def _show(plan: RankPlan, parsed: argparse.Namespace) -> None:
    shown = show_step(plan, parsed.step)
    step, refs, replaced, faults = shown.step, shown.refs, shown.replaced_rows, shown.faults
    found: dict[str, Any] = {"step": step, "digest": digest(shown.trained)}
    pictures = [] if parsed.out is None else _draw(plan, shown, parsed.out)
    if parsed.digest:
        print(json.dumps(found) if parsed.json else f"{step} {found['digest']}")
        return
    if parsed.json:
        found |= {"rank": plan.rank, "world_size": plan.world_size, "batch_size": plan.run_config.batch_size}
        found["rows"] = [
            {"row": row, **asdict(ref), "replaced": row in replaced, "faults": faults.get(row, [])}
            for row, ref in enumerate(refs)
        ]
        found["replaced"] = [
            {"row": row, **{name: getattr(error, name) for name in _FAILURE}} for row, error in shown.replaced
        ]
        found["pictures"] = [str(path) for path in pictures]
        print(json.dumps(found, indent=1))
        return
    print(f"step {step}, rank {plan.rank} of {plan.world_size}, {len(refs)} rows, digest {found['digest']}\n")
    # A pipe gets full lines.
    console = Console(width=None if sys.stdout.isatty() else 1 << 20)
    console.print(make_table(refs, replaced=replaced, faults=faults))
    if replaced:
        print("\n* replaced, as these records cannot be read:")
    for row, error in shown.replaced:
        where = f"dataset {error.dataset}, split {error.split}, shard {error.shard}, record {error.record}"
        print(f"  row {row}: {where}: {printable(error.reason)}")
    if faults:
        print("\n! bad values:")
    for row, texts in faults.items():
        print(f"  row {row}: {printable('; '.join(texts))}")
    for number, path in enumerate(pictures):
        print(f"{'' if number else chr(10)}picture: {path}")


def _draw(plan: RankPlan, shown: ShownStep, folder: Path) -> list[Path]:
    rank = f", rank {plan.rank} of {plan.world_size}" if plan.world_size > 1 else ""
    name = f"step-{shown.step:08d}" + (f"-rank{plan.rank}" if rank else "")
    refs = shown.refs
    title = f"step {shown.step}{rank}, {len(refs)} rows, samples {refs[0].sample} to {refs[-1].sample}"
    try:
        return write_sheets(folder, name, shown.seen, refs, title=title, **sheet_names(plan.mixture), **marks_of(shown))
    except OSError as error:
        raise ArgumentError(f"--out {folder}: cannot be written ({error.strerror or error})") from None


def _print_digests(plan: RankPlan, numbers: range) -> None:
    plan.samples(numbers[-1])  # raises now, not after many steps
    # On a terminal the lines are the progress.
    with Progress(len(numbers), "steps", stream=None if sys.stdout.isatty() else sys.stderr) as progress:
        for step in numbers:
            # Flushed, so that a closed pipe ends the command.
            print(f"{step} {digest(plan.make(step).batch)}", flush=True)
            progress.advance()


def make_table(refs: Sequence[SampleRef], *, replaced: Collection[int], faults: Collection[int] = ()) -> Table:
    """Return the table of a batch.

    Args:
        refs: Origin of each row.
        replaced: Rows to mark with ``*``.
        faults: Rows to mark with ``!``.

    Returns:
        A table that folds texts in a narrow terminal, but no numbers.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    columns = ["row", "dataset", "source_file", "episode", "steps", "language", "shard", "record", "sample", "epoch"]
    for name in columns:
        is_text = name in ("dataset", "source_file", "language", "shard")
        table.add_column(name.replace("_", " "), no_wrap=not is_text, overflow="fold")
    for row, ref in enumerate(refs):
        cells = {
            **asdict(ref),
            "row": f"{row}{'*' if row in replaced else ''}{'!' if row in faults else ''}",
            "steps": f"{ref.step}..{ref.step + ref.offset}" if ref.offset else str(ref.step),
        }
        table.add_row(*(Text(printable(str(cells[name]))) for name in columns))
    return table


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="pairstream replay",
        description="Show the batch of any step of a run: the origin of each row, a picture, and a digest.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--loader", type=Path, required=True, metavar="FILE", help="the run's loader.json")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--step", type=whole(0), metavar="N", help="the step to show, from 0")
    which.add_argument(
        "--range", type=_range, metavar="A:B", help="with --digest: one line for each step from A to B, without B"
    )
    parser.add_argument("--rank", type=int, metavar="R", help="rank of the run; default: that of the file")
    parser.add_argument("--root", type=Path, metavar="DIR", help="folder of the data, if they were moved")
    add_cache(parser)
    parser.add_argument(
        "--transforms",
        metavar="MODULE:NAME",
        help="transforms of the run, or FILE.py:NAME: one, a list, or a function of the loader's data; shows what the "
        "model got",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write a picture: DIR/step-0000000N.png")
    parser.add_argument("--digest", action="store_true", help="print only the step and the hash of its batch")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parsed = parser.parse_args(arguments)
    if parsed.range is not None and (parsed.json or parsed.out is not None or not parsed.digest):
        parser.error("--range prints digests only: give it with --digest, without --json and --out")
    return parsed


def _range(text: str) -> range:
    try:
        first, stop = map(whole(0), text.split(":"))
    except ValueError:
        first = stop = 0
    if first >= stop:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected A:B with A < B, such as 0:100 (B not included)")
    return range(first, stop)
