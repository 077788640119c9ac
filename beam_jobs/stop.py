"""The message by which a failed worker process has the launcher end the others.

It goes through a socket, not through a file: a file needs room on the disk, and a full disk is why workers fail.
"""

from __future__ import annotations

import socket

_MOST = 1 << 15


class StopSocket:
    """The launcher's end, a context manager; ``address`` goes to the workers.

    It is an abstract Unix socket of Linux, without a name in the file system, so nothing of it can be left behind.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("")
        self._socket.setblocking(False)
        self.address: bytes = self._socket.getsockname()

    def __enter__(self) -> StopSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def message(self) -> str:
        """Return the error of a failed worker, empty if none has failed."""
        try:
            return self._socket.recv(_MOST).decode(errors="replace")
        except BlockingIOError:
            return ""


def tell(address: bytes, message: str) -> bool:
    """Tell the launcher why to stop; returns whether the launcher exists."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        try:
            ours.sendto(message.encode()[:_MOST], socket.MSG_DONTWAIT, address)
        except BlockingIOError:
            # The launcher has unread messages.
            return True
        except OSError:
            return False
    return True
