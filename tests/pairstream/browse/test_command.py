"""The command ends with one sentence where it cannot begin, and with nothing left after Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.fixtures.command import run, wait_until
from tests.pairstream.browse.running_site import PATIENCE_S, Site, end_site, start_site
from tests.stream.crafted_root import CraftedRoot

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def small_root(oxe_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets, one with a shard of zeros."""
    root = tmp_path_factory.mktemp("small")
    for name in ("bridge", "rt1"):
        shutil.copytree(oxe_root / name, root / name)
    shard = next(root.glob("bridge/*/train/*-00000-of-*.arrayrecord"))
    shard.write_bytes(b"\0" * shard.stat().st_size)
    return root


@pytest.fixture(scope="module")
def small_site(small_root: Path, tmp_path_factory: pytest.TempPathFactory) -> object:
    started_site = start_site(small_root, tmp_path_factory.mktemp("marks") / "marks.json")
    yield started_site
    end_site(started_site)


def browse(*arguments: object) -> tuple[int, str]:
    """Return exit code and error of the command."""
    done = run(*map(str, arguments), "--no-open", module="pairstream browse")
    return done.code, done.error()


def test_no_root_and_another_format_are_one_sentence(tmp_path: Path, oxe_root: Path) -> None:
    none = tmp_path / "none"
    assert browse(none) == (2, f"error: {none}: no such folder; give the --output of a conversion")
    assert "holds no complete conversion" in browse(tmp_path)[1]
    crafted = CraftedRoot(oxe_root, tmp_path / "root")
    crafted.set("format_version", 1)
    code, text = browse(crafted.root)
    assert code == 2 and "format version 1, this program reads version 2" in text


def test_a_folder_of_several_roots_is_refused_with_their_names(small_root: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        shutil.copytree(small_root / "rt1", tmp_path / name / "rt1")
    expected = f"error: {tmp_path}: holds roots, not datasets; give {tmp_path / 'first'} or {tmp_path / 'second'}"
    assert browse(tmp_path) == (2, expected)


def test_marks_of_another_root_are_said_once_and_stay(small_root: Path, tmp_path: Path) -> None:
    marks = tmp_path / "marks.json"
    marks.write_text('{"kuka": ["a"], "droid": {"leave_out": ["b"]}}')
    site = start_site(small_root, marks)
    try:
        answer = httpx.post(f"{site.address}mark/rt1/train/0", json={"marked": True}, timeout=PATIENCE_S)
        site.process.send_signal(signal.SIGINT)
        errors = site.process.communicate(timeout=PATIENCE_S)[1]
    finally:
        site.process.kill()
    assert answer.status_code == 200
    assert errors == f"{marks} also has marks of kuka, droid, which {small_root} does not hold; they stay in the file\n"
    content = json.loads(marks.read_text())
    assert len(content.pop("rt1")["leave_out"]) == 1
    assert content == {"kuka": ["a"], "droid": {"leave_out": ["b"]}}


def test_a_port_in_use_and_a_wrong_host_are_one_sentence(small_root: Path) -> None:
    with socket.socket() as bound_socket:
        bound_socket.bind(("127.0.0.1", 0))
        bound_socket.listen()
        port = bound_socket.getsockname()[1]
        code, text = browse(small_root, "--port", port)
    assert code == 2
    assert text == f"error: port {port} of 127.0.0.1 is in use; give another with --port, or 0 for any"
    assert browse(small_root, "--host", "256.1.1.1")[0] == 2


def test_transforms_that_do_not_exist_are_refused_before_a_page_asks_for_them(small_root: Path) -> None:
    reason = "ModuleNotFoundError: No module named 'no_such_module'"
    refused = browse(small_root, "--transforms", "no_such_module:make", "--port", 0)
    assert refused == (2, f"error: --transforms no_such_module:make: {reason}")


def test_static_refuses_a_folder_with_files_and_unknown_episodes(small_root: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").touch()
    assert "exists and is not empty" in browse(small_root, "--static", tmp_path / "full")[1]
    assert "episode 99" in browse(small_root, "--static", tmp_path / "new", "--episodes", "rt1/train/99")[1]
    assert "expected NAME/SPLIT/NUMBER" in browse(small_root, "--static", tmp_path / "new", "--episodes", "rt1")[1]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "path",
    [
        "/frame/../../../etc/passwd/0/0/0.jpg",
        "/frame/..%2f..%2fetc/train/0/0/0.jpg",
        "/frame/bridge/..%2ftrain/0/0/0.jpg",
        "/frame/bridge/train/0/0/%2e%2e%2f0.jpg",
        "/dataset/%2e%2e/train",
        "/dataset/bridge/%2e%2e%2f%2e%2e",
        "/episode/..%2f..%2fetc/passwd/0",
        "/frame/bridge/train/-1/0/0.jpg",
        "/frame/bridge/train/99999999999999999999/0/0.jpg",
        "/episode/bridge/none/0",
    ],
)
def test_an_address_leaves_the_root_nowhere(small_site: Site, path: str) -> None:
    # A socket, because libraries tidy such addresses up.
    host, port = small_site.address.removeprefix("http://").rstrip("/").split(":")
    with socket.create_connection((host, int(port))) as asking:
        asking.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: asking.recv(1 << 16), b""))
    status = answer.split(b" ")[1]
    assert status in (b"404", b"422") and b"root:" not in answer and b"Traceback" not in answer, answer[:300]


def test_another_host_name_is_refused(small_site: Site) -> None:
    assert httpx.get(small_site.address, headers={"Host": "evil.example"}, timeout=PATIENCE_S).status_code == 400


def test_a_damaged_record_is_one_sentence_and_the_pages_go_on(small_site: Site) -> None:
    response = httpx.get(f"{small_site.address}frame/bridge/train/0/0/1.jpg", timeout=PATIENCE_S)
    assert response.status_code == 500
    assert "split train, shard train-00000-of-00002, record 1 (step 1 of camera image): cannot be read" in response.text
    assert httpx.get(f"{small_site.address}episode/bridge/train/0", timeout=PATIENCE_S).status_code == 200


def test_a_thousand_requests_at_once_are_a_thousand_answers(small_site: Site) -> None:
    # Few pages of NiceGUI: each takes a tenth of a second to build, and has two minutes.
    others = ["frame/rt1/train/0/0/1.jpg", "frame/bridge/train/0/0/1.jpg", "dataset/none/train"]
    paths = ["dataset/rt1/train", *others * 8]

    async def ask() -> list[int]:
        limits = httpx.Limits(max_connections=1000)
        async with httpx.AsyncClient(limits=limits, timeout=300) as client:
            answers = [client.get(f"{small_site.address}{paths[number % 25]}") for number in range(1000)]
            return [answer.status_code for answer in await asyncio.gather(*answers)]

    # In a thread of its own: playwright's loop of other tests runs in this one.
    with ThreadPoolExecutor(1) as pool:
        responses = pool.submit(lambda: asyncio.run(ask())).result()
    assert responses == [200, *[200, 500, 404] * 8] * 40
    # The server closes its ends of the connections once it comes to them.
    folder = Path(f"/proc/{small_site.process.pid}/fd")
    assert wait_until(lambda: len(list(folder.iterdir())) < 200, seconds=PATIENCE_S)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command(small_root: Path, tmp_path: Path, sent: int) -> None:
    site = start_site(small_root, tmp_path / "marks.json")
    assert httpx.get(f"{site.address}doctor", timeout=PATIENCE_S).status_code == 200
    end_site(site, sent=sent)
    assert not (tmp_path / "marks.json").exists()
