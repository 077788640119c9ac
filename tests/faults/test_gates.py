"""Processes that a test lets wait in the middle of their work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.fixtures.command import TIMEOUT, wait_until
from tests.fixtures.faults.gate import Gates

PROGRAM = """if True:
    import sys
    from pathlib import Path
    for name in ("first.json", "other", "second.json", "third.json"):
        (Path(sys.argv[1]) / "new").touch()
        (Path(sys.argv[1]) / "new").replace(Path(sys.argv[1]) / name)
"""


def test_a_process_waits_before_the_next_file_of_a_closed_gate_until_that_opens(tmp_path: Path) -> None:
    gates = Gates()
    gates.close("*.json", after=1)
    environment = {**os.environ, **gates.variables}
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], env=environment) as process:
        try:
            assert wait_until((tmp_path / "other").exists, seconds=TIMEOUT)
            assert not wait_until((tmp_path / "second.json").exists, seconds=0.3)
            gates.close("*.json", after=1)
            assert wait_until((tmp_path / "second.json").exists, seconds=TIMEOUT)
            assert not wait_until((tmp_path / "third.json").exists, seconds=0.3)
            gates.open("*.json")
            assert process.wait(TIMEOUT) == 0
        finally:
            process.kill()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.json", "other", "second.json", "third.json"]
