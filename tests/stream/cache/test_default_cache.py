"""Roots that are read in place without a cache that the caller names."""

from __future__ import annotations

import logging
import shutil
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pairstream.info.command import main as info
from stream import ArgumentError, digest, load_loader, make_loader
from stream.cache.quota import sparse_copies
from stream.storage import cache_folder
from stream.storage.cache_folder import VARIABLE, cached_root
from stream.storage.remote import CachedRoot
from tests.fixtures.command import run
from tests.fixtures.object_stores import web_server

OPTIONS: dict[str, Any] = {"batch_size": 8, "seed": 5, "num_steps": 5}
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def url(small_root: Path) -> Iterator[str]:
    with web_server(small_root) as address:
        yield address


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home folder of a user who has set no variable and has seen no line."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(cache_folder, "_reported", set())
    return tmp_path / "home"


def default_root(url: str) -> CachedRoot:
    root = cached_root(url, None)
    assert isinstance(root, CachedRoot)
    return root


def test_without_a_cache_a_root_is_kept_in_the_home_folder_and_one_line_says_so(
    url: str, small_root: Path, home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = [digest(batch) for batch in make_loader(small_root, "demo", **OPTIONS)]
    with caplog.at_level(logging.WARNING, "stream"):
        loader = make_loader(url, "demo", **OPTIONS)
        assert [digest(batch) for batch in loader] == expected
        again = make_loader(url, "demo", **OPTIONS)
        assert [digest(batch) for batch in again] == expected and again.stats()["requests"] == 0
    folder = home / ".cache" / "pairstream"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"data that are read in place are kept in {folder}, at most ")
    loader.save(tmp_path / "loader.json")
    assert digest(load_loader(tmp_path / "loader.json").batch_at(3)) == expected[3]
    assert list(sparse_copies(folder))


def test_two_roots_with_datasets_of_one_name_have_separate_folders(url: str, small_root: Path, oxe_like: Path) -> None:
    (oxe_like / "info.json").write_bytes((small_root / "info.json").read_bytes())
    with web_server(oxe_like) as other_url:
        for root, address in ((small_root, url), (oxe_like, other_url), (small_root, url)):
            expected = digest(make_loader(root, "demo", **OPTIONS).batch_at(0))
            assert digest(make_loader(address, "demo", **OPTIONS).batch_at(0)) == expected


def test_the_bound_is_half_of_what_is_free_or_taken_by_the_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(9 << 40, 1 << 40, 100 << 20))
    assert default_root("s3://bucket/oxe").most == 50 << 20
    held = home / ".cache" / "pairstream" / ".members" / "x" / "a" / "1" / "train" / "cached" / "0.arrayrecord"
    held.parent.mkdir(parents=True)
    held.write_bytes(b"1" * (20 << 20))
    assert default_root("s3://bucket/oxe").most == 60 << 20


def test_the_variable_names_another_folder_and_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/scratch:5GB")
    root = default_root("s3://bucket/oxe")
    assert (root.cache, root.most) == (tmp_path / "scratch", 5 * 10**9)
    monkeypatch.setenv(VARIABLE, "s3://bucket/cache")
    with pytest.raises(ArgumentError, match=rf"{VARIABLE}='s3://bucket/cache'; expected a local folder"):
        default_root("s3://bucket/oxe")


def test_a_member_of_a_local_root_uses_the_default_cache(url: str, small_root: Path, home: Path) -> None:
    mixture = {"near": {"dataset": "demo", "weight": 1}, "far": {"dataset": "demo", "weight": 2, "root": url}}
    local = {name: {**member, "root": str(small_root)} for name, member in mixture.items()}
    expected = digest(make_loader(small_root, local, **OPTIONS).batch_at(2))
    assert digest(make_loader(small_root, mixture, **OPTIONS).batch_at(2)) == expected
    assert list(sparse_copies(home / ".cache" / "pairstream"))


@pytest.mark.long
def test_without_any_cache_nothing_stays_when_the_process_ends(url: str, small_root: Path, home: Path) -> None:
    script = f"""
from stream import digest, make_loader
if __name__ == "__main__":
    loader = make_loader({url!r}, "demo", batch_size=8, seed=5, num_workers=1, cache=False)
    print(digest(loader.batch_at(2)), digest(next(iter(loader))), loader.data.root.cache)
"""
    (home.parent / "reads.py").write_text(script)
    result = run(module="reads", environment={"PYTHONPATH": f"{home.parent}:{Path.cwd()}", "TMPDIR": str(home.parent)})
    assert result.code == 0, result.err
    second, first, folder = result.out.split()
    loader = make_loader(small_root, "demo", **OPTIONS)
    assert [second, first] == [digest(loader.batch_at(2)), digest(loader.batch_at(0))], result.err
    assert folder.startswith(f"{home.parent}/pairstream-") and not Path(folder).exists()
    assert not (home / ".cache").exists() and "kept in" not in result.err


def test_commands_use_the_default_cache_and_say_so(
    url: str, home: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "stream"):
        assert info([url]) == 0
        assert "14 episodes" in capsys.readouterr().out and (home / ".cache" / "pairstream").is_dir()
        assert len(caplog.records) == 1
        shutil.rmtree(home)
        assert info([url, "--cache", "none"]) == 0
    assert len(caplog.records) == 1 and not home.exists()
