"""The answering side of ``ask``: ``python -m bench.measure.answer MODULE`` calls the module's ``answer`` once.

It needs only the standard library, because the environments of the peers run it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from types import FrameType
from typing import Any


def main(module: str) -> int:
    """Answer the request on standard input and return the exit code.

    An exception becomes the error that ``ask`` raises. The process ends when standard input closes, so it never
    outlives the benchmark. Output of libraries to standard output goes to standard error.
    """
    signal.signal(signal.SIGTERM, _stop)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        result: Mapping[str, Any] = import_module(module).answer(request)
    except Exception as error:
        # The benchmark prints one line; the traceback is for those who run the module by hand.
        sys.excepthook(type(error), error, error.__traceback__)
        result = {"error": f"{type(error).__name__}: {error}"}
    replies.write(json.dumps({**result, "answered": time.monotonic()}) + "\n")
    replies.flush()
    return 1 if "error" in result else 0


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _end_with_parent() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
