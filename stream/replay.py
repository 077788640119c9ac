"""``python -m stream.replay --loader loader.json --step N``: the batch of a step again, where it came from and its
picture."""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

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


class _OutputError(StreamError):
    """The folder of ``--out`` cannot be written."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    parsed = _parse(arguments)
    try:
        return _replay(parsed)
    except (ArgumentError, StateError, _OutputError) as error:
        return _fail(error, EXIT_USAGE)
    except BrokenPipeError:
        # Who read us has seen enough. What is left in the buffer must not fail at exit again.
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
    with ThreadPoolExecutor(1) as pool:
        hashing = pool.submit(digest, made.batch)
        if parsed.digest and parsed.out is None:
            _print_digest(step, hashing.result(), as_json=parsed.json)
            return
        if running.decode == "device":
            # Whoever looks at a step wants its frames, and what stands in for those that cannot be decoded.
            made = steps.on_host().make(step)
        refs = steps.data.describe(made.rows)
        by_sample = {ref.sample: row for row, ref in enumerate(refs)}
        replaced = [(by_sample[error.sample], error) for error in made.replaced]
        pictures = [] if parsed.out is None else _draw(running, step, made.batch, refs, replaced, parsed.out)
        hashed = hashing.result()
    if parsed.digest:
        _print_digest(step, hashed, as_json=parsed.json)
        return
    if parsed.json:
        json.dump(_as_json(running, step, hashed, refs, replaced, pictures), sys.stdout, indent=1)
        print()
        return
    print(f"step {step}, rank {running.rank} of {running.world_size}, {len(refs)} rows, digest {hashed}\n")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in format_table(refs, replaced={row for row, _ in replaced}, width=width):
        print(line)
    if replaced:
        print("\n* replaced, as these could not be read:")
        for row, error in replaced:
            where = f"dataset {error.dataset}, split {error.split}, shard {error.shard}, record {error.record}"
            print(f"  row {row}: {where}: {_one_line(error.reason)}")
    for number, path in enumerate(pictures):
        print(f"{'' if number else chr(10)}picture: {path}")


def _print_digest(step: int, hashed: str, *, as_json: bool) -> None:
    print(json.dumps({"step": step, "digest": hashed}) if as_json else f"{step} {hashed}")


def _print_digests(steps: Steps, first: int, stop: int) -> None:
    from stream.batch_digest import digest

    gc.enable()  # see _command; this may run for hours
    with _Progress(stop - first) as progress:
        for step in range(first, stop):
            # Each line at once, so that a reader who has seen enough ends this.
            line = f"{step} {digest(steps.make(step).batch)}"
            progress.clear()
            print(line, flush=True)
            progress.tick(step - first + 1)


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
        "replaced": [
            {
                "row": row,
                "sample": error.sample,
                "dataset": error.dataset,
                "split": error.split,
                "shard": error.shard,
                "record": error.record,
                "episode": error.episode,
                "reason": error.reason,
            }
            for row, error in replaced
        ],
        "pictures": [str(path) for path in pictures],
    }


def format_table(refs: Sequence[SampleRef], *, replaced: set[int], width: int | None) -> list[str]:
    """Return the lines of the table of a batch.

    Args:
        refs: a row each.
        replaced: numbers of rows to mark with ``*``.
        width: columns of the terminal; the longest texts are cut until the table fits, and sample and epoch are left
            out if that helps. None cuts nothing.
    """
    table = {
        "row": [f"{row}{'*' if row in replaced else ''}" for row in range(len(refs))],
        "dataset": [ref.dataset for ref in refs],
        "source file": [ref.source_file for ref in refs],
        "episode": [str(ref.episode) for ref in refs],
        "steps": [f"{ref.step}..{ref.step + ref.offset}" for ref in refs],
        "language": [_one_line(ref.language) for ref in refs],
        "shard": [ref.shard for ref in refs],
        "record": [str(ref.record) for ref in refs],
        "sample": [str(ref.sample) for ref in refs],
        "epoch": [str(ref.epoch) for ref in refs],
    }
    widths = {name: max(map(_columns, (name, *cells))) for name, cells in table.items()}
    if width is not None:
        for name in ("epoch", "sample"):
            if _total(widths) > width:
                del widths[name]
        while (over := _total(widths) - width) > 0:
            # The widest gives way first, down to the width of the next.
            ordered = sorted(_FLEXIBLE, key=lambda name: widths[name])
            widest, second = ordered[-1], ordered[-2]
            if widths[widest] <= _LEAST:
                break
            widths[widest] = max(_LEAST, widths[widest] - max(1, min(over, widths[widest] - widths[second])))
    lines = ["  ".join(_pad(_shorten(name, name, size), name, size) for name, size in widths.items()).rstrip()]
    for row in range(len(refs)):
        cells = (_pad(_shorten(table[name][row], name, size), name, size) for name, size in widths.items())
        lines.append("  ".join(cells).rstrip())
    return lines


_FLEXIBLE = ("dataset", "source file", "language", "shard")
_LEAST = 8
_NUMBERS = ("episode", "record", "sample", "epoch")


def _total(widths: dict[str, int]) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1)


def _columns(text: str) -> int:
    """Columns that a text takes on a terminal: Chinese letters take two, accents that join a letter none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def _shorten(text: str, name: str, width: int) -> str:
    """Cut a text to so many columns: names of files in the middle, since their numbers stand at the end."""
    if _columns(text) <= width:
        return text
    if name in ("source file", "shard"):
        tail = (width - 1) * 2 // 3
        return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
    while _columns(text) > width - 1:
        text = text[:-1]
    return f"{text}…"


def _pad(text: str, name: str, width: int) -> str:
    space = " " * (width - _columns(text))
    return space + text if name in _NUMBERS else text + space


def _one_line(text: str) -> str:
    """A text without what would move the cursor or break the line."""
    line = " ".join(text.split())
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


class _Progress:
    """A line on standard error, if that is a terminal, the output is not, and it takes more than two seconds."""

    def __init__(self, total: int) -> None:
        self._stream = sys.stderr
        self._shown = sys.stderr.isatty() and not sys.stdout.isatty()
        self._total = total
        self._last = time.monotonic() + 1.5
        self._there = False

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *raised: object) -> None:
        self.clear()

    def tick(self, done: int) -> None:
        """Show how many steps are done."""
        if self._shown and time.monotonic() - self._last > 0.5:
            self._last = time.monotonic()
            self._there = True  # first, as an interruption may come right after the text
            self._stream.write(f"\r{done:,} of {self._total:,} steps\x1b[K")
            self._stream.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self._there:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._there = False


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


def _command() -> NoReturn:
    """Run as a program of its own, which is to start and end fast."""
    # Little of what is imported and read is garbage; looking for it, now and at exit, would take a fifth of the time.
    gc.disable()
    try:
        code = main()
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else EXIT_USAGE
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = EXIT_PIPE
    os._exit(code)


if __name__ == "__main__":
    _command()
