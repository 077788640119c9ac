"""Programs with a /dev/shm of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.shared_memory import own_shared_memory


def test_what_a_program_leaves_in_its_shared_memory_is_in_the_folder_alone(tmp_path: Path) -> None:
    through = own_shared_memory(tmp_path / "shm")
    if not through:
        pytest.skip("needs root and unshare")
    leaves = "from pathlib import Path; Path('/dev/shm/left-by-a-test').touch()"
    subprocess.run([*through, sys.executable, "-c", leaves], check=True)
    assert [path.name for path in (tmp_path / "shm").iterdir()] == ["left-by-a-test"]
    assert not Path("/dev/shm/left-by-a-test").exists()
