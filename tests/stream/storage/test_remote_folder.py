"""Folders of web servers, and errors of requests in words that say what to do."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from bench.measure.ports import free_port
from stream.base.errors import ArgumentError
from stream.storage import object_reads, object_stores, remote_folder
from stream.storage.remote import RemoteError, explain, is_final
from stream.storage.remote_folder import RemoteFolder
from tests.fixtures.object_stores import environment_of, web_server


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(object_reads, "DEADLINE_S", 0.2)
    # A clock that runs fast, so that the real deadline of a folder ends after a fifth of a second too.
    monkeypatch.setattr(remote_folder, "time", SimpleNamespace(monotonic=lambda: 50 * time.monotonic()))
    object_stores.open_store.cache_clear()
    yield
    object_stores.open_store.cache_clear()


def test_a_space_in_an_address_is_encoded_once(tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder" / "one").write_bytes(b"first")
    with web_server(tmp_path) as url:
        folder = RemoteFolder(f"{url}/a%20folder")
        assert (folder.read("one"), folder.size("one"), folder.read_range("one", 1, 3)) == (b"first", 5, b"ir")
        assert (folder.size("two"), str(folder)) == (None, f"{url}/a%20folder")
        with pytest.raises(RemoteError, match=f"^{folder}/two: no such object$"):
            folder.read_range("two", 0, 5)


def test_a_server_that_is_down_is_said(tmp_path: Path) -> None:
    folder = RemoteFolder(f"http://127.0.0.1:{free_port()}/oxe")
    for attempt in (folder.check, lambda: folder.read_range("one", 0, 5)):
        with pytest.raises(RemoteError) as caught:
            attempt()
        assert str(caught.value).startswith(f"{folder}/") and not caught.value.refused
        assert str(caught.value).endswith("; check the address, the network and the server, and try again")
        assert "cannot be read: no answer" in str(caught.value)
    with pytest.raises(RemoteError, match=f"no answer from {folder.url[:-4]};"):
        folder.check()


@contextlib.contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Give the address of a server of this process."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def google_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "key.json"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    return path


def test_the_key_of_a_google_service_account_asks_for_a_scope(google_key: Path) -> None:
    class Tokens(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            claims = json.loads(base64.urlsafe_b64decode(body["assertion"][0].split(".")[1] + "=="))
            form = claims.get("scope") == "https://www.googleapis.com/auth/devstorage.read_write"
            answer = {"access_token": "given", "expires_in": 3600} if form else {"error": "invalid_scope"}
            content = json.dumps(answer).encode()
            self.send_response(200 if form else 400)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {"type": "service_account", "client_email": "me@host", "private_key": pem, "private_key_id": "1"}
    with serving(Tokens) as url:
        google_key.write_text(json.dumps({**account, "token_uri": f"{url}/token"}))
        assert RemoteFolder("gs://bucket/oxe").store.credential_provider()["token"] == "given"


def test_credentials_of_another_kind_are_said(google_key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    google_key.write_text('{"type": "unknown"}')
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    for url, reason in (("gs://bucket/oxe", "unknown"), ("s3://bucket/oxe", "nobody")):
        message = rf"{url}: cannot be opened: no credentials that are valid \(.*{reason}.*says how to set"
        with pytest.raises(RemoteError, match=message) as caught:
            RemoteFolder(url)
        assert caught.value.refused


def test_a_server_without_ranges_is_said(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"first")
    message = r"one, .* does not answer requests for ranges of a file; use one that"
    with (
        serving(partial(SimpleHTTPRequestHandler, directory=str(tmp_path))) as url,
        pytest.raises(RemoteError, match=message) as caught,
    ):
        RemoteFolder(url).read_range("one", 1, 3)
    assert caught.value.refused


def test_a_server_that_answers_after_the_deadline_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"first")
    answers = iter([503] * 8)
    with (
        web_server(tmp_path, lambda method, path, body: next(answers, body)) as url,
        pytest.raises(RemoteError, match=r"/one: cannot be read: the server answered 503 Service Unavailable$"),
    ):
        RemoteFolder(url).read("one")


def test_an_answer_that_repeats_a_token_is_told_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Expired(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            message = "<Code>ExpiredToken</Code><Message>The provided token has expired.</Message>"
            self.send_response(400)
            self.end_headers()
            self.wfile.write(f"<Error>{message}<Token-0>secret-word</Token-0></Error>".encode())

    with serving(Expired) as url:
        for name, value in environment_of("s3", url).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(RemoteError) as caught:
            RemoteFolder("s3://bucket/oxe").read("one")
    assert str(caught.value) == (
        "s3://bucket/oxe/one: cannot be read: no credentials that are valid (the server answered 400 Bad Request: "
        "ExpiredToken: The provided token has expired.); docs/object-stores.md says how to set them"
    )
    assert caught.value.refused


def test_a_profile_names_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    address = f"http://127.0.0.1:{free_port()}"
    (tmp_path / "config").write_text(
        f"[profile mine]\nendpoint_url = {address}\naws_access_key_id = a\naws_secret_access_key = b\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert RemoteFolder("s3://bucket/oxe").store.config["endpoint"] == address


def test_what_a_web_server_refuses_to_those_who_may_not_list_is_missing(tmp_path: Path) -> None:
    with web_server(tmp_path, lambda *_: 403) as url:
        assert RemoteFolder(url).size("one") is None
        with pytest.raises(RemoteError, match="one: cannot be read: not allowed with these credentials"):
            RemoteFolder(url).read("one")


@pytest.mark.parametrize("kind", ["ConnectTimeoutError", "EndpointConnectionError", "TransportError"])
def test_a_service_of_credentials_that_does_not_answer_is_asked_again(kind: str) -> None:
    class UnauthenticatedError(Exception):
        """An error of obstore, by its name."""

    silent = UnauthenticatedError(f"no valid credentials for path External AWS credential provider: {kind}: no route")
    wrong = UnauthenticatedError("no valid credentials for path External AWS credential provider: RefreshError: wrong")
    assert (is_final(silent), is_final(wrong)) == (False, True)
    assert explain(silent)[0].startswith("no answer from the service of credentials")


def test_an_answer_is_told_without_its_page_and_another_region_with_a_remedy() -> None:
    message = "Server returned non-2xx status code: 403 Forbidden: <html>\n<h1>Nothing\nhere</h1></html>"
    expected = "not allowed with these credentials (the server answered 403 Forbidden); docs/object-stores.md says"
    assert explain(RuntimeError(message))[0].startswith(expected)
    message = "Received redirect without LOCATION, this normally indicates an incorrectly configured region"
    assert explain(RuntimeError(message)) == ("the bucket is in another region; set AWS_REGION to it", True)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "http://", "htp://me:word@host", "http://a b"])
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_an_endpoint_that_is_no_address_is_said(scheme: str, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST"}[scheme]
    monkeypatch.setenv(variable, endpoint)
    if (scheme, endpoint) == ("gs", "127.0.0.1:9000"):
        RemoteFolder("gs://bucket/oxe")  # as Google's own libraries take it
        return
    with pytest.raises(RemoteError, match=f"{variable}=.*: expected an address such as https://HOST:PORT") as caught:
        RemoteFolder(f"{scheme}://bucket/oxe")
    assert caught.value.refused and "word" not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://host/oxe", "s3://", "https:///oxe", "s3://a bucket/oxe", "s3:"])
def test_an_address_of_another_kind_names_those_that_are_taken(url: str) -> None:
    with pytest.raises(RemoteError) as caught:
        RemoteFolder(url)
    assert (
        str(caught.value)
        == f"{url}: expected a folder, s3://BUCKET/..., gs://BUCKET/..., https://HOST/... or hf://datasets/ORG/NAME"
    )
    assert caught.value.refused


@pytest.mark.parametrize("url", ["s3://name:word@bucket/oxe", "gs://bucket/a#word", "https://host/oxe?key=word"])
def test_an_address_with_a_secret_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ArgumentError, match="has a name, key or query in it") as caught:
        RemoteFolder(url)
    assert "word" not in str(caught.value) and caught.value.refused


def test_a_range_of_a_file_on_a_thin_link_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_reads, "DEADLINE_S", 5)
    (tmp_path / "one").write_bytes(b"first")
    asked = []

    def slowly(method: str, path: str, body: bytes) -> bytes:
        asked.append(path)
        time.sleep(0.7)
        return body

    with web_server(tmp_path, slowly) as url:
        assert RemoteFolder(url).read_range("one", 1, 3) == b"ir"
    assert asked == ["/one"]
