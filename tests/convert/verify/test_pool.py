"""Processes that die."""

from __future__ import annotations

import signal
import subprocess
import sys

from convert.verify.pool import Crashed, WorkerPool


def test_a_process_that_dies_costs_only_its_task() -> None:
    tasks = [signal.SIGCHLD, signal.SIGKILL, signal.SIGCHLD, signal.SIGSEGV, signal.SIGCHLD]
    with WorkerPool(2) as pool:
        found = dict(pool.run(signal.raise_signal, tasks, tick=lambda: None))
    assert found == {0: None, 1: Crashed("signal 9"), 2: None, 3: Crashed("signal 11"), 4: None}


def test_no_process_gets_ctrl_c_while_it_starts() -> None:
    # In a new process: the first worker is started with the resource tracker of multiprocessing.
    code = """
import functools, signal
from convert.verify.pool import WorkerPool
blocked = functools.partial(signal.pthread_sigmask, signal.SIG_BLOCK)
with WorkerPool(2) as pool:
    print([signal.SIGINT in found for _, found in pool.run(blocked, [(), ()], tick=lambda: None)])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (result.stdout, result.stderr) == ("[True, True]\n", "")
