"""A worker process of the local multi-process runner, which is quiet and ends with its parent.

Beam's own entry point logs at INFO to stderr before it reads its options, and a worker whose parent was killed
continues its bundle.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys

RUNNER_PID = "PAIRSTREAM_RUNNER_PID"
"""Environment variable with the parent's process id: the parent may be dead before the worker can ask for it."""
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel end this process with its parent, however the parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ[RUNNER_PID]):
        os._exit(1)


def main() -> None:
    """Run Beam's SDK harness; its log goes to the runner only."""
    end_with_parent()
    logging.getLogger().addHandler(logging.NullHandler())
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


if __name__ == "__main__":
    # Before the slow imports: Ctrl-C goes to the whole process group, and the runner then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
