"""A worker process of the local multi-process runner, which is quiet and ends with its parent.

Beam's own entry point logs at INFO to stderr before it reads its options, and a worker whose parent was killed
continues its bundle.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time

RUNNER_PID = "PAIRSTREAM_RUNNER_PID"
"""Environment variable with the parent's process id: the parent may be dead before the worker can ask for it."""
_POLL = 0.5


def watch_parent() -> None:
    """Start a thread that ends this process within a second of its parent's death, however the parent died."""
    parent = int(os.environ.get(RUNNER_PID) or os.getppid())

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL)
        os._exit(1)

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()


def main() -> None:
    """Run Beam's SDK harness; its log goes to the runner only."""
    watch_parent()
    logging.getLogger().addHandler(logging.NullHandler())
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


if __name__ == "__main__":
    # Before the slow imports: Ctrl-C goes to the whole process group, and the runner then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
