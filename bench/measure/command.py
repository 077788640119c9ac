"""What the commands of this package share: what they are given, what they print, and how they end."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from bench.measure.child import ChildFailed
from convert.errors import ConvertError
from stream.storage.arguments import whole
from stream.storage.errors import ArgumentError, FormatError, StreamError

_FAILURES = (ChildFailed, ConvertError, FormatError, StreamError)


def wholes(least: int) -> Callable[[str], list[int]]:
    """Return a reader of whole numbers from ``least`` on with commas between; it raises argparse.ArgumentTypeError.

    >>> wholes(1)("64, 1_000")
    [64, 1000]
    """
    return lambda text: [whole(least)(part.strip().replace("_", "")) for part in text.split(",")]


def refuse_repeated_sweeps(parser: argparse.ArgumentParser, sweeps: Sequence[tuple[str, Sequence[Any]]]) -> None:
    """End the program if a parameter is swept twice: its values would be combined with each other."""
    swept = [name for name, _ in sweeps]
    if twice := {name for name in swept if swept.count(name) > 1}:
        parser.error(f"argument --sweep: {min(twice)} is swept more than once; give all its values at once")


def run_command(
    work: Callable[[], int],
    *,
    place: Path | str | None,
    failures: tuple[type[Exception], ...] = (),
    interrupted: str = "interrupted",
) -> int:
    """Do the work of a command; returns the exit code. What goes wrong is one line on standard error.

    Args:
        work: returns the exit code if all goes well.
        place: what an OSError is about that names no file.
        failures: further errors whose message says all, besides those of our own packages.
        interrupted: what is said on Ctrl-C.

    Returns:
        That of ``work``; 1 after an error, 2 if there is no such thing as was asked for, 130 after Ctrl-C.
    """
    told: tuple[type[Exception], ...] = (*_FAILURES, *failures)
    try:
        return work()
    except ArgumentError as error:
        return _fail(str(error), 2)
    except told as error:
        return _fail(str(error), 1)
    except OSError as error:
        return _fail(f"{error.filename or place}: {error.strerror or error}", 1)
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 130


def run_points(
    options: argparse.Namespace,
    benchmark: Callable[[argparse.Namespace], dict[str, Any]],
    show: Callable[[dict[str, Any]], str],
    *,
    place: Path | str | None = None,
) -> int:
    """Run a benchmark of points and print its result; returns the exit code: 1 if a point failed.

    Args:
        options: with ``out``, a folder that is made if it is given, and ``json``.
        benchmark: returns the result, with ``points`` and their ``error``.
        show: returns the table of a result.
        place: as for ``run_command``; by default ``out``.
    """

    def work() -> int:
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
        result = benchmark(options)
        print_result(result, show, as_json=options.json)
        return 1 if any(point["error"] is not None for point in result["points"]) else 0

    return run_command(work, place=place or options.out)


def print_result(result: dict[str, Any], show: Callable[[dict[str, Any]], str], *, as_json: bool) -> None:
    """Print all figures as JSON, or the table that ``show`` makes of them."""
    print(json.dumps(result, indent=1) if as_json else show(result))


@contextmanager
def ended_by_kill() -> Iterator[None]:
    """Let SIGTERM raise SystemExit in the block, so that what was written is removed as after Ctrl-C."""
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _fail(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code
