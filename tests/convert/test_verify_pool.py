"""Processes that die."""

from __future__ import annotations

import signal

from convert.verify_pool import Crashed, WorkerPool


def test_a_process_that_dies_costs_only_its_task() -> None:
    tasks = [signal.SIGCHLD, signal.SIGKILL, signal.SIGCHLD, signal.SIGSEGV, signal.SIGCHLD]
    with WorkerPool(2) as pool:
        found = dict(pool.run(signal.raise_signal, tasks, tick=lambda: None))
    assert found == {0: None, 1: Crashed("signal 9"), 2: None, 3: Crashed("signal 11"), 4: None}
