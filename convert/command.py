"""Shared parts of the commands: options, printing and exit codes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from convert.errors import EXIT_FAILED, UsageError
from stream.base.arguments import Parser, interrupt_on_kill, run_command


def root_parser(command: str, *, description: str, epilog: str) -> Parser:
    """Return the parser of a command that looks at converted datasets, with ``ROOT``, ``--datasets`` and ``--json``."""
    parser = Parser(
        prog=f"pairstream {command}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("root", metavar="ROOT", help="the --output of a conversion, a dataset in it, or a version of that")
    add("--datasets", help="only these, with commas between (default: all)")
    add("--json", action="store_true", help="print the result as JSON")
    return parser


def split_names(option_text: str | None, option_name: str = "datasets") -> list[str] | None:
    """Return the names in the value of an option, each once; None if it was not given.

    Raises:
        UsageError: The value names nothing.
    """
    if option_text is None:
        return None
    unique_names = list(dict.fromkeys(name.strip() for name in option_text.split(",") if name.strip()))
    if not unique_names:
        raise UsageError(f"--{option_name} {option_text!r} names no {option_name.removesuffix('s')}")
    return unique_names


def run_report(
    parser: Parser,
    arguments: Sequence[str] | None,
    *,
    make_report: Callable[[argparse.Namespace, list[str] | None], tuple[Any, str, bool]],
    interrupt_message: str,
) -> int:
    """Run a command that looks at converted datasets, and return its exit code.

    Args:
        parser: Parser of ``root_parser``.
        arguments: Arguments of the command line, None for those of this process.
        make_report: Function of the parsed arguments and ``--datasets``; returns the content of ``--json``, the text
            for people, and whether the result is bad.
        interrupt_message: Line to print after Ctrl-C.
    """
    parsed = parser.parse_args(arguments)
    interrupt_on_kill()

    def report() -> int:
        json_content, report_text, is_bad = make_report(parsed, split_names(parsed.datasets))
        print_result(json.dumps(json_content, indent=1) if parsed.json else report_text)
        return EXIT_FAILED if is_bad else 0

    return run_command(report, path=parsed.root, interrupted=interrupt_message)


def print_result(text: str) -> None:
    """Print a text; the reader may close the pipe early (``| head``)."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python would complain again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
