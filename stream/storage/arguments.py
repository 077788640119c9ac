"""Shared parts of commands: one-line errors, exit codes, whole numbers as options, printable texts."""

from __future__ import annotations

import argparse
import operator
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from stream.storage.errors import ArgumentError, FormatError, StreamError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line on standard error that names ``--help``, without the usage; exit code 2."""

    def error(self, message: str) -> NoReturn:
        """End the program."""
        self.exit(EXIT_USAGE, f"error: {message}; see {self.prog} --help\n")


def run_command(work: Callable[[], None], *, interrupted: str) -> int:
    """Do the work of a command and return its exit code; an error is one line on standard error.

    Args:
        work: Prints the result.
        interrupted: Line to print after Ctrl-C.
    """
    try:
        work()
        sys.stdout.flush()
        return 0
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough. The rest of the buffer must not fail at exit again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except (StreamError, FormatError, OSError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.filename and error.strerror:
            text = f"{error.filename}: {error.strerror}"
        print(f"error: {printable(text)}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, StreamError) and error.refused else EXIT_FAILED


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


def printable(text: str, *, latin: bool = False) -> str:
    r"""Return a text in one line, with characters that move the cursor as escapes.

    Args:
        text: Any text.
        latin: Write letters beyond Latin-1, which Pillow's font lacks, as escapes too.

    >>> print(printable("put 红 there\x1b"), printable("put 红 there", latin=True))
    put 红 there\x1b put \u7ea2 there
    """
    last = 0xFF if latin else sys.maxunicode
    shown = (c if c.isprintable() and ord(c) <= last else ascii(c)[1:-1] for c in " ".join(text.split()))
    return "".join(shown)


def interrupt_on_kill() -> None:
    """Let SIGTERM end the program as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def check_whole(name: str, value: Any, *, least: int | None) -> int:
    """Return an argument as int, whichever type of whole numbers it is of; raises ArgumentError if it is of none, or
    less than ``least``.

    >>> check_whole("seed", -3, least=None)
    -3
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or (least is not None and number < least):
        raise ArgumentError(f"{name}={value!r:.100}; expected a whole number{'' if least is None else f' >= {least}'}")
    return number
