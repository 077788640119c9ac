from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from convert.storage.staging import STAGING, machine, stage, staging_base, sweep

HOLD = """
import sys
from pathlib import Path
from convert.storage.staging import stage
with stage(Path(sys.argv[1])) as folder:
    (folder / "file").write_text("half-written")
    print(folder, flush=True)
    sys.stdin.read()
"""


def hold(base: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(base)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_folder_in_use_is_left_alone_and_that_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with hold(tmp_path) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        sweep(tmp_path)
        assert (folder / "file").exists()
        os.kill(process.pid, signal.SIGKILL)
    assert (folder / "file").exists()
    with stage(tmp_path) as mine:
        assert set(tmp_path.iterdir()) == {mine, tmp_path / "other"}


def test_an_error_inside_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), stage(tmp_path):
        raise ValueError("inside")
    assert list(tmp_path.iterdir()) == []


def test_folders_of_other_kinds_and_machines_stay(tmp_path: Path) -> None:
    """Beam's scratch folders are locked by other means or by nobody, locks of other machines may not be seen."""
    remaining = [tmp_path / name for name in ("pairstream-beam-abc", "pairstream-abc", f"{STAGING}another-abc")]
    for folder in remaining:
        folder.mkdir()
    with stage(tmp_path):
        pass
    assert set(tmp_path.iterdir()) == set(remaining)
    abandoned = tmp_path / f"{STAGING}{machine()}-abc"
    abandoned.mkdir()
    sweep(tmp_path)
    assert not abandoned.exists()


def test_a_prefix_is_swept_apart(tmp_path: Path) -> None:
    with stage(tmp_path) as folder, stage(tmp_path, prefix="other-") as second:
        (tmp_path / f"{STAGING}{machine()}-abc").mkdir()
        sweep(tmp_path, prefix="other-")
        assert len(list(tmp_path.iterdir())) == 3
        assert {folder, second} < set(tmp_path.iterdir())


def test_a_folder_that_others_sweep_before_it_is_locked_is_made_anew(tmp_path: Path) -> None:
    done = threading.Event()

    def sweep_always() -> None:
        while not done.is_set():
            sweep(tmp_path)

    sweepers = [threading.Thread(target=sweep_always) for _ in range(2)]
    for sweeper in sweepers:
        sweeper.start()
    try:
        for _ in range(300):
            with stage(tmp_path) as folder:
                (folder / "file").write_text("kept")
                assert (folder / "file").read_text() == "kept"
    finally:
        done.set()
        for sweeper in sweepers:
            sweeper.join()
    assert list(tmp_path.iterdir()) == []


def test_the_system_says_where_if_nobody_else_does(tmp_path: Path) -> None:
    code = "from convert.storage.staging import staging_base; print(staging_base(None))"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout == f"{tmp_path}\n"
    assert staging_base("/scratch") == Path("/scratch")
