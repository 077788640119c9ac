"""Libraries that come with an extra of this package, and what is said where one is missing."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator

_OF_COMMANDS = {"convert": ("apache_beam", "cv2", "google_crc32c", "psutil", "tensorflow_datasets")}
"""Modules that the commands of a package import, by extra."""


def missing(module: str, extra: str, *, by: str) -> str:
    """Say that a module is missing, and how to install it.

    >>> missing("jax", "jax", by="stream.jax")
    "stream.jax needs jax, which is not installed; install pairstream[jax]: pip install -c constraints.txt -e '.[jax]'"
    """
    how = f"pip install -c constraints.txt -e '.[{extra}]'"
    return f"{by} needs {module}, which is not installed; install pairstream[{extra}]: {how}"


@contextlib.contextmanager
def imports_of(extra: str, *, by: str) -> Iterator[None]:
    """Raise ModuleNotFoundError with one clear sentence where an import of an extra fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(missing(error.name or extra, extra, by=by), name=error.name) from None


def check_command(extra: str) -> None:
    """End a command whose extra is not installed, with one line on standard error and exit code 2.

    A package calls this while it is imported. It does nothing unless Python is about to run one of its modules: then
    ``sys.argv[0]`` is ``-m``. The imports of the command itself would end in a traceback.
    """
    if sys.argv[:1] != ["-m"]:
        return
    for module in _OF_COMMANDS[extra]:
        if not _is_there(module):
            print(f"error: {missing(module, extra, by='this command')}", file=sys.stderr)
            sys.exit(2)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False
