"""What commands share: errors of one line, numbers that are refused where they are read, and how SIGTERM ends them."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line on standard error that names ``--help``, without the usage; exit code 2."""

    def error(self, message: str) -> NoReturn:
        """End the program."""
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def whole(least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from ``least`` on; it raises argparse.ArgumentTypeError.

    >>> whole(1)("64")
    64
    """

    def read(text: str) -> int:
        # As text: int() takes 1_000 and figures of other scripts too.
        if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) >= least):
            raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number of at least {least}")
        return int(text)

    return read


def interrupt_on_kill() -> None:
    """Let SIGTERM end the program as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
