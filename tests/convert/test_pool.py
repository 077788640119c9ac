"""Processes that die."""

from __future__ import annotations

import os
import signal
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


def test_ctrl_c_in_a_terminal_reaches_no_process_of_the_pool() -> None:
    with ProcessPool(2, name="test") as pool, Progress(2, "tasks", stream=None) as shown:
        groups = pool.run([os.getpgrp, os.getpgrp], progress=shown, task_sizes=[1, 1])
    assert os.getpgrp() not in groups
    assert len(set(groups)) == 2
