"""The network disk of the measurements: a real mount, whose requests take time and are counted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bench.measure.child import BenchFailed
from bench.network_disk import missing, mounted

needs_fuse = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@needs_fuse
def test_names_and_pages_are_asked_for_once_and_each_opening_again(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("content")
    with mounted(tmp_path, delay_s=0.02) as disk:
        began = time.perf_counter()
        assert [(disk.path / "one.txt").read_text() for _ in range(3)] == ["content"] * 3
        assert time.perf_counter() - began > 5 * 0.02
        with pytest.raises(OSError, match="Read-only"):
            (disk.path / "two.new").touch()
        assert not disk.requests
    assert not disk.path.exists()
    own = disk.requests[str(os.getpid())]
    assert own["open"] == {".txt": 3}
    assert own["read"] == {".txt": 1}
    assert own["lookup"][".txt"] == 1


@pytest.mark.skipif(missing() is None, reason="this machine has all of it")
def test_what_the_machine_lacks_is_told(tmp_path: Path) -> None:
    with pytest.raises(BenchFailed, match=r"install|cannot be opened"), mounted(tmp_path, delay_s=0.0):
        pass
