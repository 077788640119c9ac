"""A local root, and members of the mixture that lie in a bucket and are read in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pairstream.info.command import main as info
from pairstream.view.command import main as view
from stream import ArgumentError, digest, load_loader, make_loader
from stream.cache.quota import CacheQuota, sparse_copies
from tests.fixtures.command import run
from tests.fixtures.object_stores import web_server

OPTIONS: dict[str, Any] = {"batch_size": 8, "seed": 5, "num_steps": 5}


def mixture(far: object) -> dict[str, Any]:
    return {"near": {"dataset": "demo", "weight": 1}, "far": {"dataset": "demo", "weight": 2, "root": str(far)}}


def test_a_member_in_a_bucket_uses_the_cache_of_a_local_root(
    bucket: str, small_root: Path, cache: Path, tmp_path: Path
) -> None:
    expected = [digest(batch) for batch in make_loader(small_root, mixture(small_root), **OPTIONS)]
    loader = make_loader(small_root, mixture(bucket), **OPTIONS, num_workers=1, cache=f"{cache}:1GB")
    assert [digest(batch) for batch in loader] == expected
    assert loader.stats()["requests"] > 0
    loader.save(tmp_path / "loader.json")
    reloaded = load_loader(tmp_path / "loader.json", cache=cache)
    assert [digest(batch) for batch in reloaded] == expected
    assert reloaded.stats()["requests"] == 0
    options = ("--loader", str(tmp_path / "loader.json"), "--step", "2", "--digest", "--cache", str(cache))
    assert run(*options, module="pairstream replay").out == f"2 {expected[2]}\n"


def test_the_same_dataset_of_several_roots_is_in_one_mixture(
    bucket: str, small_root: Path, oxe_like: Path, cache: Path
) -> None:
    with web_server(small_root) as url, web_server(oxe_like) as other_url:
        (oxe_like / "info.json").write_bytes((small_root / "info.json").read_bytes())
        for main, elsewhere in ((bucket, other_url), (bucket, url), (url, other_url)):
            local = small_root, oxe_like if elsewhere == other_url else small_root
            expected = [digest(batch) for batch in make_loader(local[0], mixture(local[1]), **OPTIONS)]
            loader = make_loader(main, mixture(elsewhere), **OPTIONS, cache=f"{cache}:1GB")
            assert [digest(batch) for batch in loader] == expected
            reloaded = make_loader(main, mixture(elsewhere), **OPTIONS, cache=f"{cache}:1GB")
            assert [digest(batch) for batch in reloaded] == expected and reloaded.stats()["requests"] == 0
    folders = sorted(path.name[:22] for path in (cache / ".members").iterdir())
    assert len(folders) == 2 and folders[0].startswith("http-127.0.0.1-")
    held = list(sparse_copies(cache))
    assert {path.relative_to(cache).parts[0] for path in held} == {"demo", ".members"}
    CacheQuota(cache, 1).free_space(1)
    assert not sum(path.stat().st_blocks for path in held)


def test_an_address_with_a_key_and_a_cache_that_nothing_can_use_are_refused(
    small_root: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ArgumentError, match="has a name, key or query in it"):
        make_loader(small_root, mixture("s3://key@bucket/oxe"), **OPTIONS, cache=cache)
    for command in (
        lambda: info([str(small_root), "--cache", str(cache)]),
        lambda: view([str(small_root), "demo", "0", "--cache", str(cache), "--save", str(cache)]),
    ):
        assert command() == 2
        assert "is for roots like s3://BUCKET" in capsys.readouterr().err
