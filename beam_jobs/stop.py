"""How a worker process that failed has the others ended: it tells the launcher, through a socket that takes no file.

A file would need room on a disk, and a full disk is what workers fail of.
"""

from __future__ import annotations

import socket
from types import TracebackType

_MOST = 1 << 15


class StopSocket:
    """The launcher's end; to be used in a ``with`` statement. ``address`` goes to the workers.

    It is a Unix socket without a name in the file system (an abstract one, of Linux), so nothing of it can be left.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("")
        self._socket.setblocking(False)
        self.address: bytes = self._socket.getsockname()

    def __enter__(self) -> StopSocket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def message(self) -> str:
        """What a worker failed of; empty if none has."""
        try:
            return self._socket.recv(_MOST).decode(errors="replace")
        except BlockingIOError:
            return ""


def tell(address: bytes, message: str) -> bool:
    """Tell the launcher why to stop; returns whether it is there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        try:
            ours.sendto(message.encode()[:_MOST], socket.MSG_DONTWAIT, address)
        except BlockingIOError:
            # It has been told often enough.
            return True
        except OSError:
            return False
    return True
