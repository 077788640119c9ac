"""Tests of folders of object stores, against running emulators."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from convert.storage import object_store as stores
from convert.storage.object_store import CHUNK, StoreFolder
from stream.storage.remote import RemoteError, is_remote, join
from tests.fixtures.command import Result, run
from tests.fixtures.object_stores import SCHEMES, Alter, Store, environment_of, object_store, objects, proxy


@pytest.fixture(scope="module", params=SCHEMES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with object_store(request.param, tmp_path_factory.mktemp("store") / "log") as running:
        yield running


@pytest.fixture
def folder(store: Store) -> StoreFolder:
    return StoreFolder(f"{store.new_bucket()}/a/folder")


def test_what_is_written_can_be_listed_read_and_removed(folder: StoreFolder) -> None:
    assert (folder.sizes(), folder.folders(), folder.size("one")) == ({}, [], None)
    folder.write("one", b"first")
    folder.write("two", b"")
    (folder / "below").write("three", b"third")
    assert folder.sizes() == {"one": 5, "two": 0}
    assert folder.folders() == ["below"]
    assert (folder.size("one"), folder.size("below"), folder.read("one")) == (5, None, b"first")
    assert folder.read_range("one", 1, 3) == b"ir"
    assert folder.read_some(["one", "two", "nothing"]) == {"one": b"first", "two": b""}
    folder.remove(["one", "nothing"])
    assert folder.sizes() == {"two": 0}
    with pytest.raises(FileNotFoundError, match=f"{folder}/one: no such object"):
        folder.read("one")


def test_an_object_is_read_from_its_start_to_its_end_in_several_requests(folder: StoreFolder, tmp_path: Path) -> None:
    content = os.urandom(CHUNK + 1000)
    (tmp_path / "large").write_bytes(content)
    folder.upload(tmp_path / "large", "large")
    with folder.open("large", num_bytes=len(content)) as file:
        assert (file.read(10), file.read(CHUNK), file.read(10_000)) == (
            content[:10],
            content[10 : CHUNK + 10],
            content[CHUNK + 10 :],
        )
        assert file.read(1) == b""


def test_an_object_that_exists_is_left_as_it_is_and_its_end_is_an_error(folder: StoreFolder) -> None:
    folder.write("one", b"first", unless_there=True)
    folder.write("one", b"other", unless_there=True)
    assert folder.read("one") == b"first"
    with pytest.raises(RemoteError, match=f"{folder}/one: 5 bytes came for 9"):
        folder.read_range("one", 0, 9)


@pytest.mark.slow
def test_what_has_no_hash_that_is_an_md5_is_read_back(
    folder: StoreFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the limit only files beyond 5 GB are stored in parts.
    monkeypatch.setattr(stores, "_MAX_PUT", 0)
    monkeypatch.setattr(stores, "_PART", 5 << 20)
    (tmp_path / "parts").write_bytes(os.urandom(12 << 20))
    folder.upload(tmp_path / "parts", "parts")
    assert folder.size("parts") == 12 << 20


@pytest.mark.parametrize("limit", [8 << 20, 5 << 20], ids=["one request", "parts"])
def test_a_copy_of_what_is_too_large_for_one_request_is_sent_in_parts(
    folder: StoreFolder, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(6 << 20)
    (folder / "before").write("large", content)
    (folder / "before").write("small", b"small")
    monkeypatch.setattr(stores, "_MAX_PUT", limit)
    monkeypatch.setattr(stores, "_PART", 5 << 20)
    folder.copy(folder / "before", ["large", "small"])
    assert (folder.read("large"), folder.read("small")) == (content, b"small")
    assert folder.store.head(folder.key("large"))["e_tag"].strip('"').endswith("-2") == (limit < len(content))
    with pytest.raises(FileNotFoundError, match="nothing"):
        folder.copy(folder / "before", ["nothing"])


def test_a_request_has_time_for_its_bytes_and_few_times_differ(folder: StoreFolder) -> None:
    def timeout_s(size: int) -> int:
        parts = folder._store_for(size).client_options["timeout"].split()  # such as 2h 8m
        return sum(int(part[:-1]) * {"s": 1, "m": 60, "h": 3600}[part[-1]] for part in parts)

    assert (timeout_s(0), folder._store_for(0)) == (30, folder.store)
    times = {size: timeout_s(size << 20) for size in range(1, 5 << 10, 7)}
    assert all(30 + size <= seconds <= 60 + 2 * size for size, seconds in times.items())
    assert len(set(times.values())) < 10


Call = Callable[[StoreFolder], object]


@pytest.mark.parametrize(
    "call",
    [
        StoreFolder.sizes,
        lambda folder: folder.size("one"),
        lambda folder: folder.read("one"),
        lambda folder: folder.read_some(["one", "two"]),
        lambda folder: folder.read_range("one", 0, 9),
        lambda folder: folder.write("one", b"content"),
        lambda folder: folder.copy(folder, ["one"]),
        lambda folder: folder.remove(["one"]),
    ],
    ids=["list", "head", "get", "gets", "range", "put", "copy", "delete"],
)
def test_ctrl_c_ends_each_request_of_a_store_that_does_not_answer(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name, value in environment_of("s3", f"http://127.0.0.1:{server.getsockname()[1]}").items():
            monkeypatch.setenv(name, value)
        folder = StoreFolder(f"s3://{uuid.uuid4()}/oxe")
        connections = list[socket.socket]()

        def interrupt() -> None:
            connections.append(server.accept()[0])
            os.kill(os.getpid(), signal.SIGINT)

        # Not sooner than a request has come: the call is under way then, and its caller ready for the end.
        interrupting = threading.Thread(target=interrupt, daemon=True)
        interrupting.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            call(folder)
        # Without the end it would go on for its deadline.
        assert time.monotonic() - began < 0.5 * folder.deadline_s
        interrupting.join()
        for connection in connections:
            connection.close()


def test_a_file_arrives_whatever_it_ends_with(folder: StoreFolder, tmp_path: Path) -> None:
    for end in (b"\r", b"\n", b"\r\n", b"\n--==0==--", b"\n--==0==--\n"):
        (tmp_path / "file").write_bytes(b"content" + end)
        folder.upload(tmp_path / "file", "file")
        assert folder.read("file") == b"content" + end


def upload_through(store: Store, alter: Alter, bucket: str, folder: Path) -> Result:
    """Upload a file through a proxy that alters requests."""
    (folder / "file").write_bytes(b"the content of a file" * 100)
    code = "import sys; from pathlib import Path; from convert.storage.object_store import StoreFolder as R\n"
    (folder / "store_file.py").write_text(f"{code}R(sys.argv[1]).upload(Path(sys.argv[2]), 'file')")
    path = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with proxy(store, alter) as environment:
        changed = {**environment, "PYTHONPATH": path}
        return run(bucket, str(folder / "file"), module="store_file", environment=changed)


def test_other_content_than_was_sent_is_an_error_and_does_not_stay(store: Store, tmp_path: Path) -> None:
    bucket = store.new_bucket()
    result = upload_through(store, lambda method, path, body: body.replace(b"content", b"c0ntent"), bucket, tmp_path)
    assert result.code == 1
    assert "RemoteError" in result.err
    assert objects(bucket) == {}


def test_what_was_damaged_once_on_the_way_is_sent_again(store: Store, tmp_path: Path) -> None:
    bucket = store.new_bucket()
    sent: list[bytes] = []

    def damage_first(method: str, path: str, body: bytes) -> bytes:
        if b"content of a file" not in body:
            return body
        sent.append(body)
        return body.replace(b"content", b"c0ntent") if len(sent) == 1 else body

    result = upload_through(store, damage_first, bucket, tmp_path)
    assert (result.code, len(sent)) == (0, 2), result.err
    assert objects(bucket) == {"file": (tmp_path / "file").read_bytes()}


def test_a_process_may_end_right_after_a_request(store: Store, tmp_path: Path) -> None:
    bucket = store.new_bucket()
    for _ in range(4):
        result = upload_through(store, lambda method, path, body: body, bucket, tmp_path)
        assert result.code == 0, result.err


def test_a_bucket_may_be_empty_and_one_that_is_not_there_is_refused(store: Store) -> None:
    empty = StoreFolder(store.new_bucket())
    empty.check()
    assert (empty.sizes(), empty.folders()) == ({}, [])
    nowhere = StoreFolder(f"{store.scheme}://nowhere-at-all/oxe")
    for attempt in (nowhere.check, lambda: nowhere.write("one", b"")):
        with pytest.raises(RemoteError, match="no such bucket") as caught:
            attempt()
        assert caught.value.refused


@pytest.mark.parametrize("url", ["hdfs://name/oxe", "s3://", "gs:///", "s3:/bucket/oxe"])
def test_no_other_address_is_taken(url: str) -> None:
    with pytest.raises(RemoteError, match=r"expected a folder, s3://BUCKET/... or gs://BUCKET/...") as caught:
        StoreFolder(url)
    assert caught.value.refused


def test_an_error_comes_back_from_another_process_as_it_was() -> None:
    error = pickle.loads(pickle.dumps(RemoteError("no", refused=True)))
    assert (str(error), error.refused) == ("no", True)


def test_a_path_is_an_address_only_with_a_scheme() -> None:
    assert is_remote("s3:") and not is_remote("data/s3:/x")
    assert join(Path("/data"), "a", "b") == "/data/a/b"
