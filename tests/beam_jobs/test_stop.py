"""A failed worker tells the launcher, even if the disk is full."""

from __future__ import annotations

import subprocess
import sys

from beam_jobs.stop import StopSocket, tell


def test_what_a_worker_tells_arrives() -> None:
    with StopSocket() as stop:
        assert stop.message() == ""
        code = f"from beam_jobs.stop import tell; assert tell({stop.address!r}, 'the disk is füll')"
        subprocess.run([sys.executable, "-c", code], check=True)
        assert stop.message() == "the disk is füll"
        assert stop.message() == ""


def test_a_long_message_is_cut() -> None:
    with StopSocket() as stop:
        assert tell(stop.address, "x" * 10**6)
        assert set(stop.message()) == {"x"}


def test_telling_does_not_wait_for_a_launcher_that_does_not_listen() -> None:
    with StopSocket() as stop:
        assert all(tell(stop.address, "again") for _ in range(1000))


def test_a_launcher_that_is_gone_is_known() -> None:
    with StopSocket() as stop:
        address = stop.address
    assert not tell(address, "nobody is there")
