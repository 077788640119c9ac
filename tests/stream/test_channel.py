import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from stream.channel import PIECE, Channel

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def _of_size(size: int) -> bytes:
    """A message that takes so many bytes pickled."""
    beside = len(pickle.dumps(bytes(size), pickle.HIGHEST_PROTOCOL)) - size
    message = bytes(size - beside)
    assert len(pickle.dumps(message, pickle.HIGHEST_PROTOCOL)) == size
    return message


def test_messages_come_whole_and_in_order(ends: Ends) -> None:
    ours, theirs = map(Channel, ends)
    messages = [(1, "a"), b"", *(_of_size(pieces * PIECE + more) for pieces in (1, 2) for more in (-1, 0, 1)), 0]
    for message in messages:
        ours.send(message)
    assert [theirs.receive() for _ in messages] == messages
    assert theirs.receive(wait=False) is None


def test_a_message_may_be_larger_than_the_socket_holds(ends: Ends) -> None:
    ours, theirs = map(Channel, ends)
    message = _of_size(4 * ends[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
    sender = threading.Thread(target=ours.send, args=(message,), daemon=True)
    sender.start()
    assert theirs.receive() == message
    sender.join(timeout=10)
    assert not sender.is_alive()


def test_waiting_ends_with_the_timeout(ends: Ends) -> None:
    theirs = Channel(ends[1], timeout=1)
    began = time.monotonic()
    assert theirs.receive() is None
    assert 0.9 < time.monotonic() - began < 10


def test_a_message_in_pieces_is_waited_for_beyond_the_timeout(ends: Ends) -> None:
    theirs = Channel(ends[1], timeout=1)
    data = pickle.dumps(_of_size(PIECE + 5), pickle.HIGHEST_PROTOCOL)
    ends[0].send(data[:PIECE])
    late = threading.Timer(1.5, ends[0].send, [data[PIECE:]])
    late.start()
    assert pickle.dumps(theirs.receive(wait=False), pickle.HIGHEST_PROTOCOL) == data
    late.join()


def test_what_cannot_be_pickled_is_not_sent_in_part(ends: Ends) -> None:
    ours, theirs = map(Channel, ends)
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        ours.send([_of_size(2 * PIECE), threading.Lock()])
    ours.send("next")
    assert theirs.receive() == "next"


@pytest.mark.parametrize("unread", [False, True])
def test_what_was_sent_is_there_before_the_end(ends: Ends, unread: bool) -> None:
    ours, theirs = map(Channel, ends)
    theirs.send("a")
    theirs.send("b")
    if unread:
        ours.send("never received")
    theirs.close()
    assert [ours.receive(), ours.receive(wait=False)] == ["a", "b"]
    for wait in (True, False):
        with pytest.raises(EOFError):
            ours.receive(wait=wait)


def test_an_end_in_the_middle_of_a_message_is_an_end(ends: Ends) -> None:
    ends[0].send(bytes(PIECE))
    ends[0].close()
    with pytest.raises(EOFError):
        Channel(ends[1]).receive()


def test_sending_to_a_closed_end_is_an_error_and_no_signal() -> None:
    code = """
import signal, socket
from stream.channel import Channel
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
ours, theirs = map(Channel, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
theirs.close()
try:
    ours.send("lost")
except BrokenPipeError:
    print("told")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "told\n"), run.stderr
