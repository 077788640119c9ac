"""``python -m stream.replay``: the batch of any step of a run again, where it came from and its picture."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from stream.arguments import Parser
from stream.errors import ArgumentError, RecordError, StateError, StreamError

if TYPE_CHECKING:
    from stream.reference import SampleRef
    from stream.running import Running
    from stream.steps import Steps

EXIT_DAMAGED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141

_EPILOG = """\
The digest is what stream.digest(batch) gives of the same rank's batch in training, as the loader gives it (with
decode="device" before its frames are decoded), if the loader has no transforms: those are code, and loader.json has
only their names.

exit codes:
  0    done
  1    records or files of the data are damaged
  2    a wrong option, no loader.json, or the data are not those of the run
  130  interrupted

examples:
  python -m stream.replay --loader run/loader.json --step 51234 --out pictures
  python -m stream.replay --loader run/loader.json --step 51234 --rank 3 --json
  diff <(python -m stream.replay --loader a/loader.json --range 0:100 --digest) \\
       <(python -m stream.replay --loader b/loader.json --range 0:100 --digest)
"""


_FAILURE = ("sample", "dataset", "split", "shard", "record", "episode", "reason")


class _OutputError(StreamError):
    """The folder of ``--out`` cannot be written."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    parsed = _parse(arguments)
    try:
        return _replay(parsed)
    except (ArgumentError, StateError, _OutputError) as error:
        return _fail(error, EXIT_USAGE)
    except BrokenPipeError:
        # The reader has seen enough. The rest of the buffer must not fail at exit again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except (StreamError, OSError) as error:
        return _fail(error, EXIT_DAMAGED)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)


def _replay(parsed: argparse.Namespace) -> int:
    from stream.format import FormatError

    try:
        steps = _open(parsed)
        if parsed.range is None:
            _show(steps, parsed)
        else:
            _print_digests(steps, *parsed.range)
    except FormatError as error:
        return _fail(error, EXIT_DAMAGED)
    sys.stdout.flush()
    return 0


def _open(parsed: argparse.Namespace) -> Steps:
    # Not the loader, which imports Grain: that takes as long as all of this.
    from stream.saved import read_saved
    from stream.steps import Steps

    data, running = read_saved(
        parsed.loader, root=parsed.root, overrides={} if parsed.rank is None else {"rank": parsed.rank}
    )
    steps = Steps(data, running)
    steps.samples(parsed.step if parsed.range is None else parsed.range[1] - 1)
    return steps


def _show(steps: Steps, parsed: argparse.Namespace) -> None:
    from stream.batch_digest import digest

    step: int = parsed.step
    if parsed.out is not None:
        _make_folder(parsed.out)
    made = steps.make(step)
    running = steps.running
    hashed = digest(made.batch)
    if running.decode == "device":
        # Whoever looks at a step wants its frames, and what stands in for those that cannot be decoded.
        made = steps.on_host().make(step)
    refs = steps.data.describe(made.rows)
    by_sample = {ref.sample: row for row, ref in enumerate(refs)}
    replaced = [(by_sample[error.sample], error) for error in made.replaced]
    pictures = [] if parsed.out is None else _draw(running, step, made.batch, refs, replaced, parsed.out)
    if parsed.digest:
        print(json.dumps({"step": step, "digest": hashed}) if parsed.json else f"{step} {hashed}")
        return
    if parsed.json:
        json.dump(_as_json(running, step, hashed, refs, replaced, pictures), sys.stdout, indent=1)
        print()
        return
    print(f"step {step}, rank {running.rank} of {running.world_size}, {len(refs)} rows, digest {hashed}\n")
    # Nothing is cut in a pipe.
    console = Console(width=None if sys.stdout.isatty() else 1 << 20)
    console.print(make_table(refs, replaced={row for row, _ in replaced}))
    if replaced:
        print("\n* replaced, as these could not be read:")
        for row, error in replaced:
            where = f"dataset {error.dataset}, split {error.split}, shard {error.shard}, record {error.record}"
            print(f"  row {row}: {where}: {_one_line(error.reason)}")
    for number, path in enumerate(pictures):
        print(f"{'' if number else chr(10)}picture: {path}")


def _print_digests(steps: Steps, first: int, stop: int) -> None:
    from stream.batch_digest import digest

    shown = sys.stderr.isatty() and not sys.stdout.isatty()
    with Progress(
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        disable=not shown,
    ) as progress:
        for step in progress.track(range(first, stop)):
            # Each line at once, so that a reader who has seen enough ends this.
            print(f"{step} {digest(steps.make(step).batch)}", flush=True)


def _draw(
    running: Running,
    step: int,
    batch: dict[str, Any],
    refs: list[SampleRef],
    replaced: list[tuple[int, RecordError]],
    folder: Path,
) -> list[Path]:
    from stream.contact_sheet import write_sheets

    rank = f", rank {running.rank} of {running.world_size}" if running.world_size > 1 else ""
    name = f"step-{step:08d}" + (f"-rank{running.rank}" if running.world_size > 1 else "")
    title = f"step {step}{rank}, {len(refs)} rows, samples {refs[0].sample} to {refs[-1].sample}"
    try:
        return write_sheets(folder, name, batch, refs, title=title, replaced={row for row, _ in replaced})
    except OSError as error:
        raise _OutputError(f"--out {folder}: cannot be written ({error.strerror or error})") from None


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _OutputError(f"--out {folder}: cannot be made ({error.strerror}); give a folder") from None


def _as_json(
    running: Running,
    step: int,
    hashed: str,
    refs: list[SampleRef],
    replaced: list[tuple[int, RecordError]],
    pictures: list[Path],
) -> dict[str, Any]:
    marked = {row for row, _ in replaced}
    return {
        "step": step,
        "rank": running.rank,
        "world_size": running.world_size,
        "batch_size": running.batch_size,
        "digest": hashed,
        "rows": [{"row": row, **asdict(ref), "replaced": row in marked} for row, ref in enumerate(refs)],
        "replaced": [{"row": row, **{name: getattr(error, name) for name in _FAILURE}} for row, error in replaced],
        "pictures": [str(path) for path in pictures],
    }


def make_table(refs: Sequence[SampleRef], *, replaced: set[int]) -> Table:
    """Return the table of a batch, a row for each sample; rows in ``replaced`` are marked with ``*``.

    In a narrow terminal texts go on in the next line, and numbers stay as they are.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    columns = ["row", "dataset", "source_file", "episode", "steps", "language", "shard", "record", "sample", "epoch"]
    for name in columns:
        is_text = name in ("dataset", "source_file", "language", "shard")
        table.add_column(name.replace("_", " "), no_wrap=not is_text, overflow="fold")
    for row, ref in enumerate(refs):
        cells = {
            **asdict(ref),
            "row": f"{row}{'*' if row in replaced else ''}",
            "steps": f"{ref.step}..{ref.step + ref.offset}",
        }
        table.add_row(*(Text(_one_line(str(cells[name]))) for name in columns))
    return table


def _one_line(text: str) -> str:
    """Return a text without characters that move the cursor or break the line."""
    line = " ".join(text.split())
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _fail(error: object, code: int) -> int:
    print(f"error: {_one_line(str(error))}", file=sys.stderr)
    return code


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m stream.replay",
        description="Show the batch of any step of a run again: where each row comes from, its picture, its digest.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--loader", type=Path, required=True, metavar="FILE", help="the run's loader.json")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--step", type=_step, metavar="N", help="the step to show, from 0")
    which.add_argument(
        "--range", type=_range, metavar="A:B", help="with --digest: a line for each step from A up to B, without B"
    )
    parser.add_argument("--rank", type=int, metavar="R", help="of the run's world size; default: that of the file")
    parser.add_argument("--root", type=Path, metavar="DIR", help="where the data lie now; default: where they did")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write a picture there: DIR/step-0000000N.png")
    parser.add_argument("--digest", action="store_true", help="tell only the step and the hash of its batch")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parsed = parser.parse_args(arguments)
    if parsed.range is not None:
        if not parsed.digest:
            parser.error("--range takes --digest; for tables and pictures give one --step")
        if parsed.json or parsed.out is not None:
            parser.error("--range prints digests only, without --json and --out")
    return parsed


def _step(text: str) -> int:
    if not re.fullmatch(r"[0-9][0-9_]{0,30}", text):
        raise argparse.ArgumentTypeError(f"{text!r}; expected a whole number >= 0")
    return int(text.replace("_", ""))


def _range(text: str) -> tuple[int, int]:
    first, colon, stop = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r}; expected A:B, such as 0:100")
    begin, end = _step(first), _step(stop)
    if begin >= end:
        raise argparse.ArgumentTypeError(f"{text!r} has no step; expected A:B with A < B, B not included")
    return begin, end


if __name__ == "__main__":
    sys.exit(main())
