"""Parser that all commands of this package share."""

from __future__ import annotations

import argparse

from stream.base.arguments import Parser


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
