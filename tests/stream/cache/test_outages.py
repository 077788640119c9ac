"""Outages of seconds, and the counts of what was sent meanwhile."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from stream import digest, make_loader
from stream.storage import object_reads
from stream.storage.object_reads import ObjectReads, Read
from stream.storage.remote import RemoteError, Traffic
from tests.faults.chaos import outage
from tests.faults.chaos.outage import FORMS, FailingServer, Form
from tests.fixtures.command import wait_until
from tests.fixtures.object_stores import Alter, web_server

pytestmark = pytest.mark.long
SHARD = "demo/1.0.0/train/train-00000-of-00006.arrayrecord"


@pytest.mark.parametrize("form", FORMS)
def test_reads_that_begin_before_and_in_an_outage_are_answered_after_it(
    form: Form, small_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, came = (small_root / SHARD).read_bytes(), dict[int, bytes]()
    began, ends = threading.Event(), threading.Event()

    def keep(begin: int, answer: memoryview) -> None:
        came[begin] = bytes(answer)

    def last(seconds: float) -> None:
        began.set()
        ends.wait(60)

    monkeypatch.setattr(outage, "time", SimpleNamespace(sleep=last))
    traffic = Traffic()
    with FailingServer(small_root).serving() as server:
        reads = [Read(f"{server.url}/{SHARD}", at, at + 50, keep, None, traffic) for at in range(0, 1000, 50)]
        store = ObjectReads()
        assert store.start(reads[:1]).result() == [None]
        failing = threading.Thread(target=server.fail, args=(form,), kwargs={"seconds": 0.7})
        failing.start()
        assert began.wait(60)
        started = store.start(reads[1:])
        assert wait_until(lambda: traffic.requests > 20, seconds=60)
        ends.set()
        assert started.result(timeout=60) == [None] * 19
        failing.join()
    assert came == {at: content[at : at + 50] for at in range(0, 1000, 50)}
    assert traffic.num_bytes == 1000


def twice(status: int) -> Alter:
    """Return what answers the first two requests with a status."""
    answers = iter([status, status])
    return lambda method, path, body: next(answers, body)


def test_a_request_that_is_refused_is_sent_once_and_any_other_again(small_root: Path) -> None:
    for status in (401, 403, 404, 416):
        traffic = Traffic()
        refused = pytest.raises((RemoteError, ValueError))
        with web_server(small_root, lambda *_, status=status: status) as url, refused:
            ObjectReads().read(f"{url}/{SHARD}", 0, 9, late_s=60, traffic=traffic)
        assert (traffic.requests, traffic.num_bytes) == (1, 0)
    for status in (400, 408, 429, 500, 502, 503, 504):
        traffic = Traffic()
        with web_server(small_root, twice(status)) as url:
            content = ObjectReads().read(f"{url}/{SHARD}", 0, 9, late_s=60, traffic=traffic)
        assert content == (small_root / SHARD).read_bytes()[:9]
        assert (traffic.requests, traffic.num_bytes) == (3, 9)


def test_records_that_are_read_again_count_as_requests(small_root: Path, cache: Path) -> None:
    with web_server(small_root) as url:
        loader = make_loader(url, "demo", batch_size=12, seed=5, num_steps=25, num_workers=0, cache=cache)
        expected = [digest(batch) for batch in loader]
        before = loader.stats()
        for path in cache.rglob("cached/*.arrayrecord"):
            with path.open("r+b") as file:
                file.write(bytes(byte ^ 0x55 for byte in path.read_bytes()))
        assert [digest(batch) for batch in loader] == expected
        after = loader.stats()
    assert after["requests"] > before["requests"] + 20
    assert after["remote_bytes"] > before["remote_bytes"] + 20_000


def test_requests_that_failed_count(small_root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A second request may be given up before it gets to the server.
    monkeypatch.setattr(object_reads, "_LATE_S", (math.inf, math.inf))
    asked = list[str]()

    def every_second_fails(method: str, path: str, body: bytes) -> bytes | int:
        if "arrayrecord" not in path:
            return body
        asked.append(path)
        return 503 if len(asked) % 2 else body

    with web_server(small_root, every_second_fails) as url:
        loader = make_loader(url, "demo", batch_size=12, seed=5, num_steps=5, num_workers=0, cache=cache)
        list(loader)
        assert loader.stats()["requests"] == len(asked) > 10


def test_after_many_quick_answers_a_range_is_late_soon(small_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_reads, "_STEP", 1.2)
    asked, ends = list[str](), threading.Event()

    def last_stalls(method: str, path: str, body: bytes) -> bytes:
        asked.append(path)
        if len(asked) == 31:
            ends.wait(60)
        return body

    with web_server(small_root, last_stalls) as url:
        store = ObjectReads()
        for at in range(31):
            store.read(f"{url}/{SHARD}", at, at + 5)
        ends.set()
    # A busy machine may make another answer late.
    assert len(asked) >= 32


def test_a_second_request_that_was_not_needed_is_given_up(small_root: Path) -> None:
    asked, ends = list[str](), threading.Event()

    def the_second_stalls(method: str, path: str, body: bytes) -> bytes:
        asked.append(path)
        number = len(asked)
        if number == 17 or (number % 2 == 0 and number < 17):
            ends.wait(60)
        elif number % 2:
            # The first is answered once the second has come.
            wait_until(lambda: len(asked) > number, seconds=60)
        return body

    with web_server(small_root, the_second_stalls) as url:
        store = ObjectReads()
        for _ in range(9):
            store.read(f"{url}/{SHARD}", 0, 5, late_s=0.1)
        ends.set()
    assert len(asked) == 18
