"""The cache of open shards: bounded, and not filled with shards that are asked for once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from stream.catalog import Catalog
from stream.format import FILE_KINDS, FormatError
from stream.shard_cache import ShardCache, default_max_open
from stream.shards import OpenShard, ShardInfo
from tests.open_files import open_files
from tests.stream.test_shards import copy_of_bridge, list_shards, touch


@pytest.fixture
def shards(oxe_root: Path) -> list[ShardInfo]:
    """The training shards of all 29 datasets."""
    return list_shards(oxe_root, Catalog(oxe_root).complete)


def used_once(shards: list[ShardInfo], max_open: int) -> ShardCache:
    """A cache of shards that were all read from, the last ones of which are open."""
    cache = ShardCache(shards, max_open=max_open)
    for index in range(len(shards)):
        cache[index].read(0)
    return cache


def test_shards_that_were_not_open_before_are_worth_it(shards: list[ShardInfo]) -> None:
    cache = ShardCache(shards, max_open=2)
    for index in range(10):
        assert not cache.not_worth_opening([index])
        cache[index].read(0)
    assert not cache.not_worth_opening([8, 9])


def test_a_shard_that_is_asked_for_once_takes_no_place(shards: list[ShardInfo]) -> None:
    cache = used_once(shards, max_open=3)
    assert cache.not_worth_opening([55, *range(20), 57, 0, 0]) == set(range(20))
    assert len(cache) == 3
    assert not cache.not_worth_opening([55, 56, 57])


def test_a_shard_that_is_asked_for_again_soon_is_opened(
    shards: list[ShardInfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream.shard_cache._LATELY", 4)
    cache = used_once(shards, max_open=3)
    assert cache.not_worth_opening(range(5)) == set(range(5))
    assert cache.not_worth_opening([0]) == {0}, "four others were asked for since"
    assert not cache.not_worth_opening([4])
    opened = cache[4]
    assert not cache.not_worth_opening([4])
    assert cache.not_worth_opening([55]) == {55}, "it closed for the other"
    assert cache[4] is opened
    assert len(cache) == 3


def test_a_shard_of_which_a_batch_has_many_rows_is_opened(shards: list[ShardInfo]) -> None:
    cache = used_once(shards, max_open=3)
    assert cache.not_worth_opening([1] * 3 + [2] * 4 + [3]) == {1, 3}


def test_as_long_as_there_is_room_shards_are_opened(shards: list[ShardInfo]) -> None:
    cache = used_once(shards, max_open=3)
    cache.forget(57)
    assert not cache.not_worth_opening([0])
    assert cache[0].read(0)
    assert cache.not_worth_opening([1]) == {1}


def test_all_shards_stay_open_where_there_is_room_for_them(shards: list[ShardInfo]) -> None:
    cache = used_once(shards, max_open=len(shards))
    first = [cache[index] for index in range(len(shards))]
    assert not cache.not_worth_opening(range(len(shards)))
    assert [cache[index] for index in range(len(shards))] == first


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


def test_a_forgotten_shard_is_opened_anew(oxe_root: Path, tmp_path: Path) -> None:
    copied = copy_of_bridge(oxe_root, tmp_path)
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
