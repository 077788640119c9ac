"""Ranged reads from a Hub that redirects to signed addresses, limits requests and fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream.base.errors import ArgumentError, FormatError
from stream.storage import hub_store, object_reads
from stream.storage.hub import HubAddress, list_tree, pin_commit
from stream.storage.hub_folder import HubFolder
from stream.storage.object_reads import Read
from stream.storage.object_reads import object_reads as reads_of_process
from stream.storage.object_stores import open_store
from stream.storage.remote import RemoteError, checked_url
from tests.fixtures.command import wait_until
from tests.fixtures.servers import hub_server as hub_server_module
from tests.fixtures.servers.clock import Clock
from tests.fixtures.servers.hub_cdn import Cdn, hub_cdn
from tests.fixtures.servers.hub_server import TOKEN, Hub, hub_server

SHARD = "oxe/demo/1.0.0/train/train-00000-of-00001.arrayrecord"
CONTENT = os.urandom(20_000)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Return a Hub with a dataset of some files, of which the shard is behind a CDN."""
    for name, content in {SHARD: CONTENT, "README.md": b"# A dataset", "oxe/info.json": b"{}"}.items():
        (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / name).write_bytes(content)
    with hub_server() as server, hub_cdn() as cdn:
        server.cdn = cdn
        server.add("org/oxe", tmp_path / "files")
        server.use_here(monkeypatch, tmp_path / "home")
        yield server
    open_store.cache_clear()


@pytest.fixture
def cdn(hub: Hub) -> Cdn:
    assert hub.cdn is not None
    return hub.cdn


@pytest.fixture
def shard(hub: Hub) -> str:
    return f"{pin_commit('hf://datasets/org/oxe')}/{SHARD}"


def read(url: str, begin: int, end: int) -> bytes:
    return reads_of_process().read(url, begin, end, late_s=60)


def test_a_branch_is_pinned_to_the_commit_that_it_names_now(hub: Hub) -> None:
    repository = hub.repositories["org/oxe"]
    first = repository.refs["main"]
    repository.refs["refs/convert/parquet"] = first
    assert pin_commit("hf://datasets/org/oxe/oxe") == f"hf://datasets/org/oxe@{first}/oxe"
    second = repository.commit({"README.md": b"changed"})
    assert pin_commit("hf://datasets/org/oxe@main") == f"hf://datasets/org/oxe@{second}"
    for revision in ("refs/convert/parquet", "refs%2Fconvert%2Fparquet"):
        assert pin_commit(f"hf://datasets/org/oxe@{revision}/oxe") == f"hf://datasets/org/oxe@{first}/oxe"
    asked = len(hub.asked)
    assert pin_commit(f"hf://datasets/org/oxe@{first}") == f"hf://datasets/org/oxe@{first}"
    assert len(hub.asked) == asked


def test_an_address_of_another_form_is_refused_with_the_form() -> None:
    for url in ("hf://datasets/oxe", "hf://org/oxe", "hf://datasets/org/oxe@a@b"):
        with pytest.raises(RemoteError, match=r"expected hf://datasets/ORG/NAME\[@REVISION\]\[/FOLDER\]$") as caught:
            pin_commit(url)
        assert caught.value.refused
    with pytest.raises(RemoteError, match=r"a bucket of the Hub is read through its S3 gateway"):
        pin_commit("hf://buckets/org/oxe")
    assert checked_url("hf://datasets/org/oxe@main/x") == "hf://datasets/org/oxe@main/x"
    for url in ("hf://key@datasets/org/oxe", "hf://datasets/org/oxe@main?token=x", "s3://datasets/org/oxe@main"):
        with pytest.raises(ArgumentError, match="has a name, key or query in it"):
            checked_url(url)


def test_a_tree_of_several_pages_is_listed_once_for_all_folders(hub: Hub) -> None:
    files = {f"a/{number}/file": b"x" * number for number in range(25)}
    commit, hub.page = hub.repositories["org/oxe"].commit(files), 10
    folder = HubFolder(f"hf://datasets/org/oxe@{commit}")
    assert folder.folders() == ["a"] and (folder / "a").folders() == sorted(map(str, range(25)))
    assert (folder / "a" / "7").sizes() == {"file": 7} and (folder / "a").size("12/file") == 12
    assert (folder / "a").size("none") is None and (folder / "b").sizes() == {}
    assert sum("/tree/" in line for line in hub.asked) == 3
    assert list_tree("org/oxe", commit) == {f"a/{number}": {"file": number} for number in range(25)}


def test_ranges_of_a_file_share_one_signed_address_until_it_expires(hub: Hub, cdn: Cdn, shard: str) -> None:
    for begin in range(0, 1000, 100):
        assert read(shard, begin, begin + 50) == CONTENT[begin : begin + 50]
    assert hub.resolved() == 1 and cdn.asked == [206] * 10
    cdn.expire()
    for begin in range(0, 300, 100):
        assert read(shard, begin, begin + 50) == CONTENT[begin : begin + 50]
    assert hub.resolved() == 2 and cdn.asked == [206] * 10 + [403] + [206] * 3


def test_ranges_that_are_read_together_ask_for_one_address(hub: Hub, cdn: Cdn, shard: str) -> None:
    received = dict[int, bytes]()

    def keep(begin: int, content: memoryview) -> None:
        received[begin] = bytes(content)

    reads = [Read(shard, begin, begin + 50, keep) for begin in range(0, 2000, 50)]
    assert reads_of_process().start(reads).result() == [None] * 40
    assert received == {begin: CONTENT[begin : begin + 50] for begin in range(0, 2000, 50)}
    assert hub.resolved() == 1


def test_an_address_that_is_signed_for_its_range_is_requested_for_each(hub: Hub, cdn: Cdn, shard: str) -> None:
    cdn.one_range = True
    for begin in range(0, 1000, 100):
        assert read(shard, begin, begin + 50) == CONTENT[begin : begin + 50]
    assert hub.resolved() == 10 and cdn.asked == [206, 403, *[206] * 9]


def test_only_the_hub_gets_the_token(hub: Hub, cdn: Cdn, shard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["org/oxe"].closed = "private"
    with pytest.raises(RemoteError, match=r"no such dataset on .*, or a private one") as caught:
        read(shard, 0, 10)
    assert caught.value.refused
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert read(shard, 0, 10) == CONTENT[:10]
    assert cdn.asked == [206] and cdn.tokens == 0


def test_a_gated_dataset_a_missing_one_and_a_missing_file_are_different_errors(hub: Hub, shard: str) -> None:
    hub.repositories["org/oxe"].closed = "gated"
    with pytest.raises(RemoteError, match="its owners grant access on request"):
        read(shard, 0, 10)
    hub.repositories["org/oxe"].closed = ""
    with pytest.raises(FormatError, match=r"none.arrayrecord: no such object"):
        read(f"{shard.removesuffix(SHARD)}none.arrayrecord", 0, 10)
    with pytest.raises(RemoteError, match="org/other: no such dataset"):
        pin_commit("hf://datasets/org/other")
    with pytest.raises(RemoteError, match="org/oxe@v9: no such branch, tag or commit"):
        pin_commit("hf://datasets/org/oxe@v9")


def test_small_files_come_complete_from_the_hub(hub: Hub, cdn: Cdn, shard: str) -> None:
    folder = HubFolder(shard.removesuffix(f"/{SHARD}"))
    assert folder.read("README.md") == b"# A dataset" and folder.read_range("README.md", 2, 5) == b"A d"
    assert (folder / "oxe").read("info.json") == b"{}" and cdn.asked == []
    assert folder.read(SHARD) == CONTENT
    with pytest.raises(FileNotFoundError):
        folder.read("none")


def test_a_server_that_ignores_ranges_is_refused_before_its_file_comes(
    cdn: Cdn, shard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cdn.ranges = False
    assert read(shard, 5, 10) == CONTENT[5:10]
    monkeypatch.setattr(hub_store, "_WHOLE_BYTES", 19_999)
    with pytest.raises(RemoteError, match="does not answer requests for ranges of a file") as caught:
        read(shard, 5, 10)
    assert caught.value.refused


def test_another_range_than_was_asked_for_is_refused(cdn: Cdn, shard: str) -> None:
    cdn.shift = 3
    with pytest.raises(RemoteError, match="bytes 5 to 10 were asked for, and 'bytes 8-9/20000' came"):
        read(shard, 5, 10)


def test_a_range_behind_the_end_is_an_error_and_one_across_it_is_short(shard: str) -> None:
    assert read(shard, 19_990, 20_010) == CONTENT[-10:]
    with pytest.raises(FormatError, match="ends before byte 20,001"):
        read(shard, 20_001, 20_002)


def test_failures_of_hub_and_cdn_are_repeated(hub: Hub, cdn: Cdn, shard: str) -> None:
    hub.failures, cdn.failures = [500, 502, 408], [503, 504, 429]
    assert read(shard, 0, 10) == CONTENT[:10]
    assert hub.failures == cdn.failures == []


def test_the_limit_of_requests_is_waited_for_and_is_no_outage(
    hub: Hub, cdn: Cdn, shard: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(reads_of_process())
    for module in (hub_store, hub_server_module):
        monkeypatch.setattr(module, "time", clock)
    cdn.one_range = True
    assert [read(shard, begin, begin + 9) for begin in (0, 1)] == [CONTENT[:9], CONTENT[1:10]]
    hub.busy_until = clock.monotonic() + 3 * object_reads.DEADLINE_S
    reads = [Read(shard, begin, begin + 9, lambda begin, content: None) for begin in range(20)]
    started = reads_of_process().start(reads)
    clock.settle()
    assert wait_until(clock.all_sleep, seconds=60)
    clock.forward(3 * object_reads.DEADLINE_S + 5)
    assert started.result(timeout=60) == [None] * 20
    # All requests that were sent before the first answer, and none after it.
    assert 1 <= hub.early <= 20
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1 and lines[0].startswith("the limit of requests to the Hub, 5,000 in 300 s, is used up")
    sent_early = hub.early
    read(shard, 100, 109)
    assert hub.early == sent_early


def test_the_signed_address_is_in_no_error(cdn: Cdn, shard: str) -> None:
    cdn.valid_s = -1
    with pytest.raises(
        RemoteError, match=rf"{SHARD}: {cdn.address}, to which the Hub redirects, answered 403"
    ) as caught:
        read(shard, 0, 10)
    assert "Signature" not in str(caught.value)


def test_a_hub_that_does_not_answer_is_one_error(hub: Hub, shard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_reads, "DEADLINE_S", 0.3)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    open_store.cache_clear()
    with pytest.raises(RemoteError, match=rf"{SHARD}, bytes 0 to 10: cannot be read: no answer from http://127"):
        read(shard, 0, 10)


def test_addresses_are_written_as_they_are_read() -> None:
    address = HubAddress("org/oxe", "refs/pr/1", "a/b")
    assert HubAddress.of(str(address)) == address and str(address) == "hf://datasets/org/oxe@refs%2Fpr%2F1/a/b"
    assert HubAddress.of("hf://datasets/org/oxe@refs/pr/1/a/b/") == address
