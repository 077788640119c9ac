"""Shared parts of the benchmark commands: lists of numbers, output, errors and exit codes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.measure.child import ChildFailed
from convert.errors import ConvertError
from stream.storage.arguments import whole
from stream.storage.errors import ArgumentError, FormatError, StreamError

_FAILURES = (ChildFailed, ConvertError, FormatError, StreamError)


def wholes(least: int) -> Callable[[str], list[int]]:
    """Return a reader of whole numbers of at least ``least``, separated by commas.

    >>> wholes(1)("64, 1_000")
    [64, 1000]
    """
    return lambda text: [whole(least)(part.strip().replace("_", "")) for part in text.split(",")]


def run_command(
    work: Callable[[], int],
    *,
    place: Path | str | None,
    failures: tuple[type[Exception], ...] = (),
    interrupted: str = "interrupted",
) -> int:
    """Do the work of a command and return the exit code; an error is one line on standard error.

    Args:
        work: Returns the exit code of a success.
        place: File or folder to name for an OSError that names none.
        failures: Further exceptions whose message is complete, besides those of this repository.
        interrupted: Line to print after Ctrl-C.

    Returns:
        The exit code of ``work``, 1 after an error, 2 for an argument that does not exist, 130 after Ctrl-C.
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
    """Run a benchmark of points, print its result and return the exit code: 1 if a point failed.

    Args:
        options: Options with ``out``, a folder to make or None, and ``json``.
        benchmark: Returns the result, with ``points`` and their ``error``.
        show: Returns the table of a result.
        place: As for ``run_command``; by default ``out``.
    """

    def work() -> int:
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
        result = benchmark(options)
        print_result(result, show, as_json=options.json)
        return 1 if any(point["error"] is not None for point in result["points"]) else 0

    return run_command(work, place=place or options.out)


def print_result(result: dict[str, Any], show: Callable[[dict[str, Any]], str], *, as_json: bool) -> None:
    """Print all figures as JSON, or the table that ``show`` returns."""
    print(json.dumps(result, indent=1) if as_json else show(result))


def _fail(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code
