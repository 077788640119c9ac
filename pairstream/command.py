"""Parts that the commands of this package share: parser and tables."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from stream.base.arguments import Parser
from stream.base.errors import ArgumentError
from stream.base.extras import imports_of


def command_parser(command: str, *, description: str, epilog: str, usage: str | None = None) -> Parser:
    """Return the parser of ``pairstream COMMAND``; the lines of its epilog stay as they are."""
    return Parser(
        prog=f"pairstream {command}",
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


@contextlib.contextmanager
def needs_extra(extra: str, *, by: str) -> Iterator[None]:
    """Raise ArgumentError for a failed import, with the extra to install."""
    try:
        with imports_of(extra, by=by):
            yield
    except ModuleNotFoundError as error:
        raise ArgumentError(str(error)) from None


def plain_table() -> Table:
    """Return a table without lines between its cells."""
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")


def print_table(table: Table) -> None:
    """Print a table in the width of the terminal; a pipe gets full lines."""
    Console(width=None if sys.stdout.isatty() else 1 << 20).print(table)
