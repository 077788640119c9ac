"""Hosts of one network on one machine: network namespaces, each with an address, a name and processes of its own.

They hang on a bridge in a namespace of its own, so the network of the machine is not touched.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fixtures.command import Command, start

_ETC = Path("/etc/netns")
"""Folder of the files that ``ip netns exec`` puts over those of /etc."""


@functools.cache
def missing() -> str:
    """Return what is missing for namespaces on this machine, or an empty text."""
    for tool in ("ip", "unshare"):
        if shutil.which(tool) is None:
            return f"there is no program {tool} (Debian: iproute2, util-linux)"
    name = f"pairstream-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"`ip netns add` needs CAP_SYS_ADMIN and CAP_NET_ADMIN, as root has: {tried.stderr.strip()}"
    _ip("netns", "delete", name)
    return ""


@dataclass(frozen=True)
class Host:
    """One host."""

    name: str
    address: str
    namespace: str
    switch: str

    @contextlib.contextmanager
    def start(self, *arguments: str, module: str, **environment: str) -> Iterator[Command]:
        """Start ``python -m module`` here, see ``tests.fixtures.command.start``."""
        with start(*arguments, module=module, environment=environment, through=self._enter()) as command:
            try:
                yield command
            finally:
                self.kill()

    def _enter(self) -> list[str]:
        named = f'hostname {self.name} && exec "$@"'
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", named, "sh"]

    def cut(self) -> None:
        _ip("-n", self.switch, "link", "set", self.name, "down")

    def restore(self) -> None:
        _ip("-n", self.switch, "link", "set", self.name, "up")

    def lose(self) -> None:
        """Lose the host: its cable first, so that no end of a connection is sent."""
        self.cut()
        self.kill()

    def kill(self) -> None:
        for pid in _ip("netns", "pids", self.namespace).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@contextlib.contextmanager
def make_hosts(*names: str) -> Iterator[list[Host]]:
    """Give hosts of one network, ``10.77.0.1`` and on; all processes in them are killed at the end."""
    prefix = f"pairstream-{os.getpid()}"
    switch = f"{prefix}-switch"
    hosts = [Host(name, f"10.77.0.{number}", f"{prefix}-{name}", switch) for number, name in enumerate(names, 1)]
    table = "127.0.0.1 localhost\n" + "".join(f"{host.address} {host.name}\n" for host in hosts)
    with contextlib.ExitStack() as stack:
        for namespace in (switch, *(host.namespace for host in hosts)):
            _ip("netns", "add", namespace)
            stack.callback(_ip, "netns", "delete", namespace)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for host in hosts:
            stack.callback(shutil.rmtree, _ETC / host.namespace, ignore_errors=True)
            stack.callback(host.kill)
            (_ETC / host.namespace).mkdir(parents=True)
            (_ETC / host.namespace / "hosts").write_text(table)
            peer = ("peer", "name", "eth0", "netns", host.namespace)
            _ip("-n", switch, "link", "add", host.name, "type", "veth", *peer)
            _ip("-n", switch, "link", "set", host.name, "master", "bridge", "up")
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip("-n", host.namespace, "link", "set", device, "up")
        yield hosts


def _ip(*arguments: Any) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
