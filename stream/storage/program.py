"""The start of a command. This module imports nothing slow."""

import sys
from importlib import import_module
from typing import NoReturn


def run(module: str) -> NoReturn:
    """Import a module, run its ``main``, and end the program with the exit code.

    Ctrl-C is one line and exit code 130, also while the module is imported, which may take seconds.
    """
    try:
        sys.exit(import_module(module).main())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
