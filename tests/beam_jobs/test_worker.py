"""A worker process ends with its parent, even one that was dead before the worker began."""

import os
import subprocess
import sys

from beam_jobs.worker import RUNNER_PID


def test_a_worker_whose_parent_died_before_it_began_ends() -> None:
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    code = "import time; from beam_jobs.worker import end_with_parent; end_with_parent(); time.sleep(30)"
    environment = {**os.environ, RUNNER_PID: str(dead.pid)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=20, check=False).returncode == 1
