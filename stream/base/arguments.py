"""Shared parts of commands: one-line errors, exit codes, whole-number options, printable text."""

from __future__ import annotations

import argparse
import functools
import inspect
import operator
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable
from importlib import import_module
from numbers import Real
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

from stream.base.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_PIPE,
    EXIT_USAGE,
    ArgumentError,
    StreamError,
    closest,
)

_P = ParamSpec("_P")
_R = TypeVar("_R")

_OTHER_NAMES = {
    **dict.fromkeys(("chunk_size", "chunk", "action_horizon", "horizon"), "action=16, or action=stream.Vector(16)"),
    **dict.fromkeys(("weights", "weight"), "mixture={'bridge': 2, 'rt1': 1}, and of samples sample_weights='column'"),
    **dict.fromkeys(("dataset", "datasets"), "mixture='bridge,rt1', or a file of a mixture"),
    **dict.fromkeys(("epochs", "passes"), "num_epochs=1"),
    "device": "stream.torch.to_device(loader, device), which moves batches to a device",
    "action_from": "action=stream.Vector(16, start=-1)",
    "state_from": "state=stream.Vector(2, start=-1)",
    "state_horizon": "state=stream.Vector(2)",
    "action_space": "action=stream.Vector(space='oxe')",
    "state_space": "state=stream.Vector(space='eef')",
    "action_columns": "action=stream.Vector(columns={'bridge': ['action']})",
    "state_columns": "state=stream.Vector(columns={'bridge': ['state']})",
    "unmapped": "action=stream.Vector(space='oxe', on_unmapped='mask')",
    "unknown_units": "action=stream.Vector(space='oxe', on_unknown_units='keep')",
    "cameras": "frames=stream.Frames(cameras=['primary', 'wrist'])",
    **dict.fromkeys(("image_size", "size"), "frames=stream.Frames(size=(224, 224))"),
    **dict.fromkeys(("image_fit", "fit"), "frames=stream.Frames(size=(224, 224), fit='pad')"),
    **dict.fromkeys(("image_filter", "filter"), "frames=stream.Frames(size=(224, 224), filter='lanczos')"),
    **dict.fromkeys(("bounds", "edges"), "frames=stream.Frames([-1, 0], edges='repeat')"),
    "decode": "frames=stream.Frames(decode='device')",
    "metadata": "action=None, state=None and language=None, which leave them out",
    **dict.fromkeys(("filters", "where"), "select=stream.Select(where=[('success', '==', True)])"),
    "missing": "select=stream.Select(where=[...], on_missing_column='drop')",
    "episodes": "select=stream.Select(episodes=['episode_1'])",
    "keep_ranges": "select=stream.Select(keep_ranges='ranges.json')",
    **dict.fromkeys(("min_actions", "min_future_actions"), "select=stream.Select(min_future_actions=16)"),
    **dict.fromkeys(("threads", "prefetch"), "num_workers=stream.Workers(4, threads=2, prefetch=4)"),
}
"""Our form of an argument, by its name in other programs, or as an argument of another object."""


class Parser(argparse.ArgumentParser):
    """A parser that prints an error as one line, without the usage text, and ends with exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Print the message with a hint to ``--help``, and end the program."""
        self.exit(EXIT_USAGE, f"error: {message}; see {self.prog} --help\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the program, without a word if the reader of the help has left, as ``head`` does."""
        super().exit(run_command(lambda: status), message)


def run_program(module: str) -> NoReturn:
    """Import a module, run its ``main``, and end the program with the exit code.

    Ctrl-C is one line and exit code 130, also while the module is imported, which may take seconds.
    """
    try:
        sys.exit(import_module(module).main())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


def run_command(
    command: Callable[[], int | None], *, path: Path | str | None = None, interrupted: str = "interrupted"
) -> int:
    """Run a command and return its exit code; an error becomes one line on standard error.

    ``path`` is named for an OSError that names no file, and ``interrupted`` is printed after Ctrl-C.
    """
    try:
        exit_code = command()
        # Unlike a flush of sys.stdout, which is None if the output was closed (`>&-`).
        print(end="", flush=True)
        return exit_code or 0
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Flushing the rest of the buffer at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except StreamError as error:
        # Lists of faults are indented; other line breaks come from the texts of libraries.
        message_lines = map(printable, str(error).split("\n  "))
        print("error: " + "\n  ".join(message_lines), file=sys.stderr)
        return EXIT_USAGE if error.refused else EXIT_FAILED
    except OSError as error:
        location = error.filename or path
        message = f"{location}: {error.strerror or error}" if location else str(error)
        print(f"error: {printable(message)}", file=sys.stderr)
        return EXIT_FAILED


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Add ``--cache``, for roots that are read in place."""
    parser.add_argument(
        "--cache",
        metavar="DIR:SIZE",
        type=lambda text: False if text == "none" else text,
        help="for s3://, gs://, https:// and hf://: folder for the data that were read, such as /tmp/oxe:9GB, or none "
        "(default: PAIRSTREAM_CACHE, or ~/.cache/pairstream with half of the free space)",
    )


def whole_number(least: int) -> Callable[[str], int]:
    """Return a ``type`` of argparse for whole numbers of at least ``least``.

    >>> whole_number(1)("64")
    64
    """

    def read(argument: str) -> int:
        # int() would also accept 1_000 and digits of other scripts.
        if not (argument.isascii() and argument.isdigit() and len(argument) < 19 and int(argument) >= least):
            raise argparse.ArgumentTypeError(f"found {argument!r}, expected a whole number of at least {least}")
        return int(argument)

    return read


def printable(text: str, *, latin: bool = False) -> str:
    r"""Return a text as one line, with control characters escaped.

    ``latin`` escapes letters beyond Latin-1 too; Pillow's font lacks them.

    >>> print(printable("put 红 there\x1b"), printable("put 红 there", latin=True))
    put 红 there\x1b put \u7ea2 there
    """
    last = 0xFF if latin else sys.maxunicode
    letters = " ".join(text.split())
    return "".join(c if c.isprintable() and ord(c) <= last else ascii(c)[1:-1] for c in letters)


def interrupt_on_kill() -> None:
    """Let SIGTERM end the program as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def check_names(arguments: Iterable[str], parameters: Collection[str], *, owner: str = "") -> None:
    """Raise ArgumentError for the first unknown name of an argument, with the form to write, or the closest name."""
    for argument in arguments:
        if argument not in parameters:
            other_name = None if owner else _OTHER_NAMES.get(argument)
            hint = f"write {other_name}" if other_name else closest(argument, parameters, noun="arguments")
            raise ArgumentError(f"{owner}{': ' if owner else ''}unknown argument {argument!r}; {hint}")


def with_known_names(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function refuse an unknown keyword argument with the closest name of its signature."""
    parameter_names = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        check_names(kwargs, parameter_names)
        return function(*args, **kwargs)

    return call


def check_whole_number(argument: str, value: Any, *, least: int | None) -> int:
    """Return a whole number of any type as int; raise ArgumentError if it is not one, or less than ``least``.

    >>> check_whole_number("seed", -3, least=None)
    -3
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or (least is not None and number < least):
        bound = "" if least is None else f" >= {least}"
        raise ArgumentError(f"{argument}={value!r:.100}; expected a whole number{bound}")
    return number


def check_probability(argument: str, value: Any) -> float:
    """Return a number from 0 to 1 of any type as float; raise ArgumentError if it is not one.

    >>> check_probability("dropout", 1)
    1.0
    """
    is_number = isinstance(value, Real)
    if not is_number or isinstance(value, bool) or not 0 <= value <= 1:
        raise ArgumentError(f"{argument}={value!r:.100}; expected a probability from 0 to 1")
    return float(value)


def check_choice(argument: str, value: Any, choices: Collection[Any]) -> None:
    """Raise ArgumentError if a value is not one of some choices."""
    if not isinstance(value, str | None) or value not in choices:
        raise ArgumentError(f"{argument}={value!r:.100}; expected one of {', '.join(map(repr, choices))}")
