"""What ``convert.verify`` and ``convert.doctor`` share: the root and datasets that they look at, and how they print."""

from __future__ import annotations

import argparse
import os
import sys

from convert.errors import UsageError


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
