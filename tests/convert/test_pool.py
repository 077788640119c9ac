"""Processes that die."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial

from convert.pool import Crashed, ProcessPool
from stream.base.progress import Progress


def test_a_process_that_dies_costs_only_its_task() -> None:
    signals = [signal.SIGCHLD, signal.SIGKILL, signal.SIGCHLD, signal.SIGSEGV, signal.SIGCHLD]
    with ProcessPool(2, name="test") as pool, Progress(5, "tasks", stream=None) as shown:
        actual = pool.run(
            [partial(signal.raise_signal, number) for number in signals], progress=shown, task_sizes=[1] * 5
        )
    assert actual == [None, Crashed(-9), None, Crashed(-11), None]


def test_no_process_gets_ctrl_c_while_it_starts() -> None:
    # In a new process: the first worker is started with the resource tracker of multiprocessing.
    code = """
import functools, signal
from convert.pool import ProcessPool
from stream.base.progress import Progress
blocked = functools.partial(signal.pthread_sigmask, signal.SIG_BLOCK, ())
with ProcessPool(2, name="test") as pool:
    found = pool.run([blocked, blocked], progress=Progress(2, "tasks", stream=None), task_sizes=[1, 1])
    print([signal.SIGINT in signals for signals in found])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (result.stdout, result.stderr) == ("[True, True]\n", "")
