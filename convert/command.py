"""What the commands share: the root and datasets that some look at, how they print, and how they end."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from convert.errors import EXIT_FAILED, EXIT_INTERRUPTED, ConvertError, UsageError


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add the arguments ``ROOT`` and ``--datasets``."""
    parser.add_argument(
        "root", metavar="ROOT", help="the --output of a conversion, a dataset in it, or a version of that"
    )
    parser.add_argument("--datasets", help="only these, with commas between (default: all)")


def split_names(text: str | None) -> list[str] | None:
    """Return the names in the value of ``--datasets``; None if it was not given.

    Raises:
        UsageError: it names none, so nothing would be looked at.
    """
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--datasets {text!r} names no dataset")
    return names


def print_result(text: str) -> None:
    """Print a text, which whoever reads it may stop reading in the middle (``| head``)."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python would complain again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_command(work: Callable[[], int], *, place: Path | str, interrupted: str) -> int:
    """Do the work of a command; returns the exit code. What goes wrong is told on standard error, and nothing else.

    Args:
        work: returns the exit code if all goes well.
        place: what an OSError is about that names no file.
        interrupted: what is said on Ctrl-C.
    """
    try:
        return work()
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return EXIT_INTERRUPTED
    except ConvertError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: {error.filename or place}: {error.strerror or error}", file=sys.stderr)
        return EXIT_FAILED
