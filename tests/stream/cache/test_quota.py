"""The room of a cache: a bound that holds, and a disk that is full."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from stream import digest, make_loader
from stream.cache import cached_file
from stream.cache.cached_file import CachedFile
from stream.cache.quota import CacheQuota, sparse_copies
from tests.fixtures.command import TIMEOUT, wait_until
from tests.fixtures.faults.open_files import open_files

OPTIONS: dict[str, Any] = {"batch_size": 12, "seed": 5, "num_steps": 25}


def cached(path: Path, quota: CacheQuota | None = None, *, size: int = 50_000, span: int = 0) -> CachedFile:
    """Open the copy of a shard whose object is never asked for."""
    quota = quota or CacheQuota(path.parent, None)
    return CachedFile(f"{path}.arrayrecord", url="s3://b/x", size=size, quota=quota, span=span)


def taken(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in sparse_copies(folder))


def batches(root: object, cache: str | None = None, **more: Any) -> list[str]:
    return [digest(batch) for batch in make_loader(str(root), "demo", **{**OPTIONS, **more}, cache=cache)]


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_cache_smaller_than_the_data_keeps_its_bound_and_every_batch(
    num_workers: int, bucket: str, cache: Path, small_root: Path
) -> None:
    everything = sum(path.stat().st_size for path in small_root.rglob("*.arrayrecord"))
    loader = make_loader(bucket, "demo", **OPTIONS, num_workers=num_workers, cache=f"{cache}:200KB")
    assert everything > 2 * 200_000
    most = 0
    digests = []
    for batch in loader:
        digests.append(digest(batch))
        most = max(most, taken(cache))
    assert digests == batches(small_root)
    assert 0 < most < everything
    CacheQuota(cache, 200_000).free_space(200_000)
    assert taken(cache) <= 200_000


def test_whole_shards_leave_least_recently_used_first_and_who_reads_them_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "demo/1.0.0/train/cached"
    folder.mkdir(parents=True)
    shards = [folder / f"{number}.arrayrecord" for number in range(4)]
    for number, path in enumerate(shards):
        path.write_bytes(os.urandom(100_000))
        os.utime(path, (time.time() - 100 + number,) * 2)
    with shards[1].open("r+b") as reader:
        os.utime(shards[1])
        CacheQuota(tmp_path, 250_000).free_space(250_000)
        assert [path.stat().st_blocks > 0 for path in shards] == [False, True, False, True]
        assert all(path.stat().st_size == 100_000 for path in shards)
        CacheQuota(tmp_path, 1).free_space(1)
        assert reader.read(5) == bytes(5)
        reader.seek(0)
        reader.write(b"again")
        reader.flush()
        assert shards[1].read_bytes()[:5] == b"again"


def test_a_sparse_copy_counts_with_what_it_takes_of_the_disk(tmp_path: Path) -> None:
    folder = tmp_path / "demo/1.0.0/train/cached"
    folder.mkdir(parents=True)
    for number in range(4):
        (folder / f"{number}.arrayrecord").write_bytes(os.urandom(40_960))
        os.truncate(folder / f"{number}.arrayrecord", 100 << 20)
    assert taken(tmp_path) == 4 * 40_960
    CacheQuota(tmp_path, 200_000).free_space(200_000)
    assert taken(tmp_path) == 4 * 40_960
    CacheQuota(tmp_path, 150_000).free_space(150_000)
    assert taken(tmp_path) == 3 * 40_960


def test_a_copy_in_use_is_marked_and_stays_longest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_file, "_TOUCH_S", 0)
    folder = tmp_path / "demo/1.0.0/train"
    quota = CacheQuota(tmp_path, None)
    files = [cached(folder / str(number), quota) for number in range(3)]
    copies = [folder / f"cached/{number}.arrayrecord" for number in range(3)]
    for number, path in enumerate(copies):
        path.write_bytes(os.urandom(50_000))
        os.utime(path, (1000 + number,) * 2)
    files[0].ahead([(20_000, 100)])
    quota.free_space(120_000)
    assert [path.stat().st_blocks > 0 for path in copies] == [True, False, True]


def test_neighbours_are_asked_for_with_one_request_and_records_far_apart_with_several(tmp_path: Path) -> None:
    file = cached(tmp_path / "x", size=16 << 20)
    (read,) = file.ahead([(at, 900) for at in range(100_000, 150_000, 1000)])
    assert (read.begin, read.end) == (98_304, 151_552)
    gap = 64 << 10
    assert [(r.begin, r.end) for r in file.ahead([(8192, 10), (12_288 + gap, 10)])] == [(8192, 12_288 + gap + 4096)]
    assert len(file.ahead([(8192, 10), (12_288 + gap + 4096, 10)])) == 2
    every = file.ahead([(at, 4000) for at in range(0, 12 << 20, 4096)])
    assert [(r.begin, r.end) for r in every] == [(at, at + (4 << 20)) for at in range(0, 12 << 20, 4 << 20)]


def test_a_full_disk_is_one_warning_and_every_batch(
    bucket: str, cache: Path, small_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", cache], capture_output=True, timeout=60
    )
    if mounted.returncode:
        pytest.skip("no right to mount a small disk")
    try:
        with caplog.at_level(logging.WARNING, "stream"):
            assert batches(bucket, str(cache)) == batches(small_root)
        (line,) = (record.getMessage() for record in caplog.records if "written" in record.getMessage())
        assert line.startswith(f"{cache}: cannot be written (No space left on device), so records are read from the ")
    finally:
        subprocess.run(["umount", "-l", cache], check=True)


def test_a_disk_that_takes_no_file_is_one_warning_and_every_batch(
    bucket: str, cache: Path, small_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loader = make_loader(bucket, "demo", **OPTIONS, on_error="replace", cache=str(cache))
    (cache / "demo/1.0.0/train/cached").write_bytes(b"")  # as if the disk were full or read-only
    with caplog.at_level(logging.WARNING, "stream"):
        assert [digest(batch) for batch in loader] == batches(small_root)
    (line,) = (record.getMessage() for record in caplog.records if "written" in record.getMessage())
    assert line.startswith(f"{cache}: cannot be written (File exists), so records are read from the store without")


def test_a_copy_that_the_disk_refused_begins_when_it_takes_files_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_file, "_TOUCH_S", 0)
    (tmp_path / "cached").write_bytes(b"")
    (tmp_path / "x.arrayrecord").write_bytes(b"too short")
    file = cached(tmp_path / "x")
    assert str(tmp_path / "x.arrayrecord") not in open_files()
    (tmp_path / "cached").unlink()
    (read,) = file.ahead([(20_000, 100)])
    read.keep(read.begin, memoryview(b"a" * (read.end - read.begin)))
    assert (tmp_path / "cached/x.arrayrecord").read_bytes()[20_000:20_100] == b"a" * 100


def test_memory_that_stood_for_a_full_disk_is_given_back_as_the_disk_takes_records_again(tmp_path: Path) -> None:
    quota, kept = CacheQuota(tmp_path, None), dict[int, memoryview]()
    for begin in (0, 1000, 2000):
        quota.keep(kept, begin, memoryview(bytes(1000)))
    quota.count_written(1000)
    assert list(kept) == [1000, 2000]
    quota.count_written(5000)
    assert not kept

    # What is kept again counts once.
    for _ in range(300):
        quota.keep(kept, 0, memoryview(bytes(4 << 20)))
    quota.keep(kept, 4 << 20, memoryview(bytes(1000)))
    assert list(kept) == [0, 4 << 20]
    quota.count_written(1000)
    assert list(kept) == [4 << 20]


@pytest.mark.parametrize("disk_end", [4096, 18_000], ids=["nothing written", "a part written"])
@pytest.mark.parametrize("span", [0, 16384])
def test_what_is_in_memory_is_not_asked_for_again(span: int, disk_end: int, tmp_path: Path) -> None:
    file = cached(tmp_path / "x", span=span)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    (read,) = file.ahead([(20_000, 100)])
    resource.setrlimit(resource.RLIMIT_FSIZE, (disk_end, most[1]))  # as if the disk were full
    try:
        read.keep(read.begin, memoryview(b"a" * (read.end - read.begin)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert list(file.ahead([(20_000, 100)])) == [] and bytes(file.pread(100, 20_000)) == b"a" * 100
    assert [file_read.begin for file_read in file.ahead([(20_000, 100), (40_000, 100)])] == [32768 if span else 36864]


def test_a_record_of_which_a_part_is_a_hole_is_asked_for(tmp_path: Path) -> None:
    file = cached(tmp_path / "x")
    (read,) = file.ahead([(8192, 8000)])
    read.keep(8192, memoryview(b"a" * 4096))
    assert [(repeated.begin, repeated.end) for repeated in file.ahead([(8192, 8000)])] == [(8192, read.end)]
    read.keep(12_288, memoryview(b"a" * (read.end - 12_288)))
    assert file.ahead([(8192, 8000)]) == []


def test_written_records_make_room_by_themselves(tmp_path: Path) -> None:
    folder, quota = tmp_path / "demo/1.0.0/train", CacheQuota(tmp_path, 100_000)
    files = [cached(folder / str(number), quota) for number in range(4)]
    reads = [file.ahead([(0, 48_000)])[0] for file in files]
    for read in reads:
        read.keep(0, memoryview(os.urandom(49_152)))

    def holds_after_another_record() -> bool:
        reads[-1].keep(0, memoryview(os.urandom(4096)))
        return taken(tmp_path) <= 100_000

    assert wait_until(holds_after_another_record, seconds=TIMEOUT)
