"""Ports for servers that are started with a number: no other process takes one between the choice and the start."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
from pathlib import Path

_FIRST, _FEWEST = 20_000, 1_000
"""Below are the usual ports of services, and those that Ray gives its workers."""
_LEASES: list[socket.socket] = []
"""A socket by port that this process chose: its name is taken as long as this process runs."""


def free_port() -> int:
    """Return a port of this machine where nothing listens, and that no call in any process returns meanwhile.

    It is none of those that the kernel gives to connections, and to servers that ask for any port.
    """
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if end < _FIRST + _FEWEST:
        end = 32_768
    # Processes begin at different ports, so that few calls meet a port of another process.
    start = random.Random(os.getpid()).randrange(_FIRST, end)
    for port in itertools.chain(range(start, end), range(_FIRST, start)):
        lease = socket.socket(socket.AF_UNIX)
        try:
            lease.bind(f"\0pairstream-port-{port}")
            with socket.socket() as probe:
                probe.bind(("", port))
        except OSError:
            lease.close()
            continue
        _LEASES.append(lease)
        return port
    raise OSError(f"no port from {_FIRST} to {end} is free")


def answers(port: int) -> bool:
    """Return whether a server listens on a port of this machine."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
