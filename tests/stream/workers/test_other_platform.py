"""A platform without what only Linux has, simulated: every process loses those names when it starts."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from stream import digest, make_loader
from stream.base.machine import reopen
from tests.fixtures.command import run
from tests.fixtures.object_stores import web_server
from tests.stream.cache.conftest import small_root

__all__ = ["small_root"]

WITHOUT = """
import fcntl, os
for module, names in (
    (os, ("memfd_create", "MFD_CLOEXEC", "posix_fallocate", "sched_getaffinity", "RWF_NOWAIT")),
    (fcntl, ("F_OFD_SETLK", "F_OFD_SETLKW", "F_OFD_GETLK")),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
"""
READS = """
import sys
import stream.storage.region
from stream import digest, make_loader
if __name__ == "__main__":
    stream.storage.region._CAN_POPULATE = False
    root, cache = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    loader = make_loader(root, "demo", batch_size=8, seed=5, num_workers=2, num_steps=6, shuffle="block:4", cache=cache)
    sys.platform = "darwin"
    print(*map(digest, loader), *map(digest, [loader.batch_at(3)]))
"""


@pytest.mark.long
def test_batches_of_workers_are_the_same_without_what_only_linux_has(small_root: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    (tmp_path / "reads.py").write_text(READS)
    loader = make_loader(small_root, "demo", batch_size=8, seed=5, num_steps=6, shuffle="block:4")
    expected = [digest(batch) for batch in loader]
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).resolve().parents[3]}"}
    with web_server(small_root) as url:
        for arguments in ([str(small_root)], [url, str(tmp_path / "cache")]):
            result = run(*arguments, module="reads", environment=environment)
            assert result.out.split() == [*expected, expected[3]], result.err


def test_macos_is_a_warning_and_other_platforms_are_an_error(
    small_root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with caplog.at_level(logging.WARNING, "stream"):
        make_loader(small_root, "demo", batch_size=2)
    assert [record.getMessage() for record in caplog.records] == [
        "macOS is for looking and small runs: it was tried on Linux only, without what macOS lacks"
    ]
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(OSError, match="shared memory of Linux or macOS, and this is win32; use Linux"):
        make_loader(small_root, "demo", batch_size=2)


def test_a_file_is_opened_again_with_a_position_of_its_own_with_and_without_proc(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with (tmp_path / "file").open("rb") as file:
        assert file.read(3) == b"con"
        for proc in (Path("/proc"), tmp_path / "none"):
            with reopen(file.fileno(), proc=proc) as second:
                assert second.read() == b"content"
        assert file.read() == b"tent"
