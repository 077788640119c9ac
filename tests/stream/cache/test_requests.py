"""Requests for ranges of objects, whatever the store does with them."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest

from stream.storage import object_reads
from stream.storage.object_reads import ObjectReads, Read
from stream.storage.remote import RemoteError, Traffic
from tests.fixtures.command import wait_until
from tests.fixtures.object_stores import CUT, web_server
from tests.fixtures.servers.clock import Clock
from tests.fixtures.servers.no_server import no_server

SHARD = "demo/1.0.0/train/train-00000-of-00006.arrayrecord"


def test_a_request_that_never_ends_is_sent_again(small_root: Path) -> None:
    ends, asked = threading.Event(), list[str]()

    def stalls_once(method: str, path: str, body: bytes) -> bytes:
        asked.append(path)
        if len(asked) == 1:
            ends.wait(60)
        return body

    with web_server(small_root, stalls_once) as url:
        content = ObjectReads().read(f"{url}/{SHARD}", 100, 150)
        assert not ends.is_set() and len(asked) == 2
        ends.set()
    assert content == (small_root / SHARD).read_bytes()[100:150]


def test_an_answer_that_is_cut_is_asked_for_again(small_root: Path) -> None:
    answers = iter([CUT, CUT])
    with web_server(small_root, lambda method, path, body: next(answers, body)) as url:
        assert ObjectReads().read(f"{url}/{SHARD}", 100, 150) == (small_root / SHARD).read_bytes()[100:150]


def test_answers_that_are_always_cut_are_one_error(small_root: Path) -> None:
    store = ObjectReads()
    clock = Clock(store)

    def cut(method: str, path: str, body: bytes) -> int:
        clock.forward(object_reads.DEADLINE_S / 4)
        return CUT

    with (
        web_server(small_root, cut) as url,
        pytest.raises(RemoteError, match=rf"{SHARD}, bytes 100 to 150: cannot be read: no answer"),
    ):
        store.read(f"{url}/{SHARD}", 100, 150)


def test_a_slow_store_is_not_asked_for_everything_again(small_root: Path) -> None:
    answers, traffic = threading.Event(), Traffic()

    def late(method: str, path: str, body: bytes) -> bytes:
        answers.wait()
        return body

    store = ObjectReads()
    clock = Clock(store)
    with web_server(small_root, late) as url:
        shard, came = f"{url}/{SHARD}", list[int]()
        reads = [
            Read(shard, at, at + 50, lambda begin, content: came.append(begin), None, traffic)
            for at in range(0, 2000, 50)
        ]
        started = store.start(reads)
        try:
            assert wait_until(lambda: traffic.requests >= 48, seconds=60)
            for _ in range(5):
                clock.forward(4)
                clock.settle()
            assert traffic.requests == 48
        finally:
            answers.set()
        errors = started.result()
    assert errors == [None] * 40 and sorted(came) == list(range(0, 2000, 50))


@pytest.mark.parametrize("num_ranges", [8, 256])
def test_all_ranges_of_a_store_that_is_down_end_at_one_deadline(num_ranges: int) -> None:
    store = ObjectReads()
    clock = Clock(store)
    with no_server() as url:
        reads = [Read(f"{url}/x", at, at + 1, lambda begin, content: None) for at in range(num_ranges)]
        started = store.start(reads)
        clock.settle()
        # Time for those that wait for others too: a second deadline would never come.
        clock.forward(object_reads.DEADLINE_S)
        errors = started.result(timeout=60)
    for error in errors:
        assert isinstance(error, RemoteError) and "cannot be read: no answer" in str(error)


def test_ranges_that_wait_are_not_late_while_answers_come(small_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_reads, "_IN_FLIGHT", 4)
    monkeypatch.setattr(object_reads, "_LATE_S", (math.inf, math.inf))
    store = ObjectReads()
    clock = Clock(store)
    began = clock.monotonic()
    four = threading.Barrier(4, lambda: clock.forward(50))

    def slow(method: str, path: str, body: bytes) -> bytes:
        four.wait()
        return body

    with web_server(small_root, slow) as url:
        reads = [Read(f"{url}/{SHARD}", at, at + 5, lambda begin, content: None) for at in range(28)]
        assert store.start(reads).result() == [None] * 28
    assert clock.monotonic() - began > 3 * object_reads.DEADLINE_S


def test_a_claim_of_another_process_is_waited_for_until_the_deadline() -> None:
    store = ObjectReads()
    clock = Clock(store)
    read = Read("http://127.0.0.1:1/x", 0, 9, lambda begin, content: None, lambda begin, end, *, take: False)
    started = store.start([read])
    clock.settle()
    clock.forward(object_reads.DEADLINE_S / 2)
    clock.settle()
    assert not started.done()
    clock.forward(object_reads.DEADLINE_S / 2)
    (error,) = started.result(timeout=60)
    assert isinstance(error, RemoteError)
    assert "bytes 0 to 9: cannot be read: another process of this machine reads it" in str(error)


def test_a_read_does_not_end_with_the_deadline_of_an_older_one(small_root: Path) -> None:
    store = ObjectReads()
    clock = Clock(store)
    is_down = True
    with web_server(small_root, lambda method, path, body: 503 if is_down and "arrayr" in path else body) as url:
        read = Read(f"{url}/{SHARD}", 0, 9, lambda begin, content: None)
        older = store.start([read])
        clock.settle()
        clock.forward(0.5 * object_reads.DEADLINE_S)
        newer = store.start([read])
        clock.settle()
        clock.forward(0.5 * object_reads.DEADLINE_S)
        assert isinstance(older.result(timeout=60)[0], RemoteError)
        is_down = False
        assert newer.result(timeout=60) == [None]
