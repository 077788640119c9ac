from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from stream.catalog import Catalog
from stream.format import FILE_KINDS, FormatError
from stream.mixture import Member
from stream.shards import OpenShard, ShardCache, ShardInfo, default_max_open
from stream.views import Views
from tests.open_files import open_files


def list_shards(root: Path, names: list[str], *, split: str = "train") -> list[ShardInfo]:
    catalog = Catalog(root)
    views = Views([Member(name, split, 1.0) for name in names], [catalog.open(name) for name in names])
    return [info for info in views.shards if info.split == split]


@pytest.fixture
def shards(oxe_root: Path) -> list[ShardInfo]:
    """The training shards of all 29 datasets."""
    return list_shards(oxe_root, Catalog(oxe_root).complete)


@pytest.fixture
def copied(oxe_root: Path, tmp_path: Path) -> ShardInfo:
    """A shard in a copy, to damage."""
    shutil.copytree(oxe_root / "bridge", tmp_path / "bridge")
    return list_shards(tmp_path, ["bridge"])[0]


def touch(shard: OpenShard, kind: str) -> None:
    """Use the file of a kind."""
    if kind == "arrayrecord":
        shard.read(0)
    else:
        getattr(shard, kind)


@pytest.mark.parametrize("damage", ["cut by a byte", "cut in half", "empty", "longer", "missing", "a folder"])
@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_file_that_is_not_as_the_manifest_says_is_named(copied: ShardInfo, kind: str, damage: str) -> None:
    path = copied.path(kind)
    content = path.read_bytes()
    if damage in ("missing", "a folder"):
        path.unlink()
    else:
        sizes = {"cut by a byte": len(content) - 1, "cut in half": len(content) // 2, "empty": 0}
        path.write_bytes((content + b"\0")[: sizes.get(damage, len(content) + 1)])
    if damage == "a folder":
        path.mkdir()
    with pytest.raises((FormatError, OSError)) as raised:
        touch(OpenShard(copied), kind)
    assert str(path) in str(raised.value)
    assert isinstance(raised.value, FileNotFoundError if damage == "missing" else FormatError)


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_file_of_the_right_size_with_other_content_raises(copied: ShardInfo, kind: str) -> None:
    path = copied.path(kind)
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises((FormatError, OSError)) as raised:
        touch(OpenShard(copied), kind)
    assert kind == "arrayrecord" or str(path) in str(raised.value)


def test_a_flipped_byte_fails_its_record_and_no_other(copied: ShardInfo) -> None:
    good = [OpenShard(copied).read(i) for i in range(copied.records)]
    path = copied.path("arrayrecord")
    content = bytearray(path.read_bytes())
    content[content.index(good[3]) + len(good[3]) // 2] ^= 1
    path.write_bytes(content)
    shard = OpenShard(copied)
    for record in range(copied.records):
        if record == 3:
            with pytest.raises(FormatError, match="cannot be read"):
                shard.read(record)
        else:
            assert shard.read(record) == good[record]


def test_a_record_beyond_the_last_raises(shards: list[ShardInfo]) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        OpenShard(shards[0]).read(shards[0].records)


def test_records_are_those_of_the_file(shards: list[ShardInfo]) -> None:
    for info in shards[::7]:
        reader = ArrayRecordReader(str(info.path("arrayrecord")))
        expected = reader.read_all()
        reader.close()
        shard = OpenShard(info)
        assert [shard.read(i) for i in range(info.records)] == expected


def test_the_cache_keeps_no_more_files_open_than_it_may(shards: list[ShardInfo]) -> None:
    assert len(shards) == 58
    before = len(open_files())
    cache = ShardCache(shards, max_open=5)
    most = 0
    for index in [*range(58), *range(57, -1, -1), *np.random.default_rng(0).integers(0, 58, 100)]:
        shard = cache[index]
        for kind in FILE_KINDS:
            touch(shard, kind)
        most = max(most, len(open_files()) - before)
        assert len(cache) <= 5
        del shard
    # One more while the shard that fell out is still in hand.
    assert 5 <= most <= 6


def test_sidecars_hold_no_file_open(shards: list[ShardInfo]) -> None:
    kept = [OpenShard(info) for info in shards[:10]]
    for shard in kept:
        for kind in ("records", "steps", "episodes"):
            touch(shard, kind)
    assert not [path for path in open_files() if path.endswith(".arrow")]


def test_the_shards_used_last_stay_open(shards: list[ShardInfo]) -> None:
    cache = ShardCache(shards, max_open=3)
    first, second, third = (cache[i] for i in range(3))
    assert cache[0] is first
    _ = cache[3]
    assert cache[0] is first
    assert cache[2] is third
    assert cache[1] is not second


def test_a_shard_in_hand_can_be_read_after_it_fell_out_of_the_cache(shards: list[ShardInfo]) -> None:
    cache = ShardCache(shards, max_open=1)
    shard = cache[0]
    expected = shard.read(0)
    for index in range(1, 5):
        cache[index].read(0)
    assert shard.read(0) == expected


def test_a_forgotten_shard_is_opened_anew(copied: ShardInfo) -> None:
    cache = ShardCache([copied], max_open=2)
    path = copied.path("arrayrecord")
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(FormatError):
        cache[0].read(0)
    path.write_bytes(content)
    cache.forget(0)
    cache.forget(0)
    assert cache[0].read(0) in content


@pytest.mark.parametrize("max_open", [2, 100])
def test_threads_share_a_cache(shards: list[ShardInfo], max_open: int) -> None:
    few = shards[:8]
    expected = [[OpenShard(info).read(i) for i in range(info.records)] for info in few]
    cache = ShardCache(few, max_open=max_open)

    def read(seed: int) -> int:
        rng = np.random.default_rng(seed)
        for _ in range(300):
            shard = int(rng.integers(len(few)))
            record = int(rng.integers(few[shard].records))
            assert cache[shard].read(record) == expected[shard][record]
            assert cache[shard].records["episode"][record] >= 0
        return seed

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(8))) == list(range(8))
    assert len(cache) <= max_open


def test_the_default_leaves_file_handles_to_others() -> None:
    assert 4 <= default_max_open() <= 1024
