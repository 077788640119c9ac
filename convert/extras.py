"""Check that the libraries of an extra are installed before a command imports them."""

from __future__ import annotations

import importlib.util
import sys

from stream.storage.extras import missing

_OF_COMMANDS = {"convert": ("apache_beam", "cv2", "google_crc32c", "psutil", "tensorflow_datasets")}
"""Modules that the commands of a package import, by extra."""


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
