"""From episodes of RLDS or LeRobot to shards of frames and an index: plain functions, no Beam in them."""

import importlib.util
import sys

from stream.base.extras import missing

__version__ = "0.2.0"

_LIBRARIES = ("apache_beam", "cv2", "google_crc32c", "psutil", "tensorflow_datasets")


def _check_libraries() -> None:
    """End a command whose libraries are not installed, with one line on standard error and exit code 2.

    Without this check the imports of the command would end in a traceback. ``sys.argv[0]`` is ``-m`` while Python
    imports the package of a module that it is about to run.
    """
    for library in _LIBRARIES if sys.argv[:1] == ["-m"] else ():
        try:
            found = importlib.util.find_spec(library) is not None
        except ImportError:
            found = False
        if not found:
            print(f"error: {missing(library, 'convert', by='this command')}", file=sys.stderr)
            sys.exit(2)


_check_libraries()
