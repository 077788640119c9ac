"""Ports that a test or a benchmark gives to a server before that begins."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.measure import ports
from bench.measure.ports import answers, free_port
from tests.fixtures.command import REPOSITORY

CHOOSE = "from bench.measure.ports import free_port; print(*(free_port() for _ in range(50)), flush=True); input()"


def test_processes_that_choose_at_the_same_time_get_different_ports() -> None:
    with ExitStack() as stack:
        started = [
            subprocess.Popen(
                [sys.executable, "-c", CHOOSE],
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(3)
        ]
        processes = [stack.enter_context(process) for process in started]
        chosen = [port for process in processes if process.stdout for port in process.stdout.readline().split()]
        for process in processes:
            process.communicate("\n")
    assert len(set(chosen)) == len(chosen) == 150


def test_no_port_is_one_that_the_kernel_gives_to_a_connection() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if first < ports._FIRST + ports._FEWEST:
        pytest.skip(f"connections get ports from {first} on")
    assert not first <= free_port() <= last


def test_a_port_where_a_server_listens_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    assert not answers(port)
    with socket.create_server(("127.0.0.1", port)):
        assert answers(port)
        # Only the server keeps the port now, and the search begins there.
        ports._LEASES.pop().close()
        monkeypatch.setattr(random.Random, "randrange", lambda *_: port)
        assert free_port() != port
