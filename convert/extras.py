"""Check that the libraries of an extra are installed, before a command imports them."""

from __future__ import annotations

import importlib.util
import sys

from stream.storage.extras import missing

_MODULES = {"convert": ("apache_beam", "cv2", "google_crc32c", "psutil", "tensorflow_datasets")}
"""Modules that commands import, by extra."""


def check_command(extra: str) -> None:
    """End a command whose extra is not installed, with one line on standard error and exit code 2.

    A package calls this while it is imported. It does nothing unless Python is about to run one of its modules, which
    is when ``sys.argv[0]`` is ``-m``. Without this check the imports of the command would end in a traceback.
    """
    if sys.argv[:1] != ["-m"]:
        return
    for module in _MODULES[extra]:
        if not _is_installed(module):
            print(f"error: {missing(module, extra, by='this command')}", file=sys.stderr)
            sys.exit(2)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False
