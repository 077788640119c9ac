"""A root on the Hub that is read in place: its batches are those of the local root, at one commit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pairstream.fetch import main as fetch
from pairstream.info.command import main as info
from stream import digest, load_loader, make_loader
from stream.storage.object_stores import open_store
from tests.documentation.blocks import block_with, run_block
from tests.fixtures.command import run
from tests.fixtures.servers.hub_cdn import hub_cdn
from tests.fixtures.servers.hub_server import TOKEN, Hub, hub_server

OPTIONS: dict[str, Any] = {"batch_size": 12, "seed": 5, "num_steps": 6}
ROOT = "hf://datasets/org/robots/converted"


@pytest.fixture
def hub(small_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Return a Hub with the small root in a folder of a private dataset, and a token for it."""
    (tmp_path / "dataset").mkdir()
    files = {
        f"converted/{path.relative_to(small_root)}": path.read_bytes()
        for path in small_root.rglob("*")
        if path.is_file()
    }
    with hub_server() as server, hub_cdn() as server.cdn:
        server.add("org/robots", tmp_path / "dataset", closed="private").commit({"README.md": b"", **files})
        server.use_here(monkeypatch, tmp_path / "home")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server
    open_store.cache_clear()


def test_batches_and_states_are_those_of_the_local_root_and_no_file_has_the_token(
    hub: Hub, small_root: Path, cache: Path, tmp_path: Path
) -> None:
    near = make_loader(small_root, "demo", **OPTIONS)
    expected = [digest(batch) for batch in near]
    far = make_loader(ROOT, "demo", **OPTIONS, num_workers=1, cache=f"{cache}:1GB")
    assert [digest(batch) for batch in far] == expected
    assert far.fingerprint == near.fingerprint and far.state_at(3) == near.state_at(3)
    assert far.stats()["requests"] > 0 and hub.cdn is not None and hub.cdn.tokens == 0
    far.save(tmp_path / "loader.json")
    commit = hub.repositories["org/robots"].refs["main"]
    assert json.loads((tmp_path / "loader.json").read_text())["root"] == f"hf://datasets/org/robots@{commit}/converted"
    written = [path for path in (*cache.rglob("*"), tmp_path / "loader.json") if path.is_file()]
    assert len(written) > 5 and not [path for path in written if TOKEN.encode() in path.read_bytes()]


def test_a_run_continues_from_its_commit_after_the_branch_moved(
    hub: Hub, small_root: Path, oxe_like: Path, cache: Path, tmp_path: Path
) -> None:
    mixture = {"a": {"dataset": "demo", "weight": 1}, "b": {"dataset": "demo", "weight": 1, "root": ROOT}}
    loader = make_loader(ROOT, mixture, **OPTIONS, cache=cache)
    expected = [digest(batch) for batch in loader]
    loader.save(tmp_path / "loader.json")
    others = {f"converted/{p.relative_to(oxe_like)}": p.read_bytes() for p in oxe_like.rglob("*") if p.is_file()}
    before = hub.repositories["org/robots"].refs["main"]
    hub.repositories["org/robots"].commit(others)
    continued = load_loader(tmp_path / "loader.json", cache=tmp_path / "elsewhere")
    assert [digest(batch) for batch in continued] == expected
    assert {member["root"] for member in json.loads((tmp_path / "loader.json").read_text())["members"]} == {
        None,
        f"hf://datasets/org/robots@{before}/converted",
    }
    newer = make_loader(ROOT, "demo", **OPTIONS, cache=tmp_path / "newer")
    assert digest(newer.batch_at(0)) == digest(make_loader(oxe_like, "demo", **OPTIONS).batch_at(0))


def test_the_default_cache_keeps_the_commits_of_a_root_apart(
    hub: Hub, oxe_like: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAIRSTREAM_CACHE", f"{cache}:1GB")
    before = digest(make_loader(ROOT, "demo", **OPTIONS).batch_at(0))
    others = {f"converted/{p.relative_to(oxe_like)}": p.read_bytes() for p in oxe_like.rglob("*") if p.is_file()}
    old_commit = hub.repositories["org/robots"].refs["main"]
    hub.repositories["org/robots"].commit(others)
    assert digest(make_loader(ROOT, "demo", **OPTIONS).batch_at(0)) != before
    old_root = ROOT.replace("/converted", f"@{old_commit}/converted")
    assert digest(make_loader(old_root, "demo", **OPTIONS).batch_at(0)) == before


def test_the_block_of_the_page_reads_the_root(
    hub: Hub, small_root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAIRSTREAM_CACHE", f"{cache}:1GB")
    change = {"hf://datasets/ORG/NAME@main/oxe": ROOT, "oxe29": "demo", "num_workers=4": "num_workers=0"}
    code = block_with(small_root, "hf://datasets/ORG/NAME@main", **change)
    loader = run_block(code, {"make_loader": make_loader})["loader"]
    near = make_loader(small_root, "demo", batch_size=64, shuffle="block:64")
    assert digest(loader.batch_at(3)) == digest(near.batch_at(3))


def test_fetch_and_info_take_a_root_on_the_hub(
    hub: Hub, small_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch([ROOT, str(tmp_path / "copy"), "--mixture", "demo"]) == 0
    expected = digest(make_loader(small_root, "demo", **OPTIONS).batch_at(2))
    assert digest(make_loader(tmp_path / "copy", "demo", **OPTIONS).batch_at(2)) == expected
    # One address for each of six shards.
    shards = [line for line in hub.asked if line.endswith(".arrayrecord")]
    assert len(shards) == len(set(shards)) == 6
    capsys.readouterr()
    assert info([ROOT, "--cache", str(tmp_path / "cache")]) == 0
    assert "14 episodes" in capsys.readouterr().out
    assert fetch(["hf://datasets/org/none", str(tmp_path / "none"), "--mixture", "demo"]) == 2
    assert "org/none: no such dataset on" in capsys.readouterr().err


@pytest.mark.long
def test_a_worker_waits_for_the_limit_of_requests_and_gives_the_same_batches(
    hub: Hub, small_root: Path, cache: Path
) -> None:
    assert hub.cdn is not None
    hub.cdn.one_range, hub.limit, hub.window_s = True, 30, 3
    far = make_loader(ROOT, "demo", **OPTIONS, num_workers=1, cache=f"{cache}:1GB")
    expected = [digest(batch) for batch in make_loader(small_root, "demo", **OPTIONS)]
    assert [digest(batch) for batch in far] == expected
    assert hub.early > 0


@pytest.mark.long
def test_a_replay_in_another_process_reads_the_hub(hub: Hub, small_root: Path, cache: Path, tmp_path: Path) -> None:
    loader = make_loader(ROOT, "demo", **OPTIONS, cache=cache)
    loader.save(tmp_path / "loader.json")
    options = ("--loader", str(tmp_path / "loader.json"), "--step", "2", "--digest", "--cache", "none")
    environment = {**hub.environment(tmp_path / "other"), "HF_TOKEN": TOKEN}
    result = run(*options, module="pairstream replay", environment=environment)
    assert result.out == f"2 {digest(make_loader(small_root, 'demo', **OPTIONS).batch_at(2))}\n", result.err
