"""Records of shards that are not open are what they are of open ones, and what changed since is found out."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stream.metadata
import stream.shard_cache
from stream import RecordError, digest, make_loader
from stream.batch import Assembler
from stream.job import BatchMaker
from stream.loader import Loader
from stream.mixed import MixedData, Options, open_mixture
from stream.point_lookup import PointLookup, read_closed
from stream.shard_cache import ShardCache
from stream.shards import OpenShard
from stream.tables import ShardTables
from tests.open_files import open_files
from tests.rewritten_records import forget_places


@pytest.fixture(autouse=True)
def _only_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that were open before are not opened again, however often they are asked for, and nothing is kept of
    those that stay open."""
    monkeypatch.setattr(stream.metadata, "_PACK_AFTER", 10**9)
    monkeypatch.setattr(stream.shard_cache, "_LATELY", 0)
    monkeypatch.setattr(stream.shard_cache, "_MANY", 10**9)


class Opened:
    """Counts the shards that are opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0

        def make(*arguments: Any) -> OpenShard:
            self.count += 1
            return OpenShard(*arguments)

        monkeypatch.setattr(stream.shard_cache, "OpenShard", make)


def open_once(data: MixedData) -> tuple[ShardCache, list[tuple[int, ShardTables]]]:
    """A cache of one shard in which all were open, and what each said."""
    spec, cache, found = data.spec, ShardCache(data.spec.shards, max_open=1), []
    for index in range(len(spec.shards)):
        shard = cache[index]
        if shard.info.records:
            member = shard.info.member
            vectors = {"action": spec.actions[member], "state": spec.states[member]}
            tables = ShardTables(shard, **vectors, columns=(), offset=spec.offset)
            shard.read(0)
            _ = tables.num_steps
            found.append((index, tables))
    return cache, found


@pytest.mark.parametrize("horizon", [None, 1, 3, 40])
def test_what_is_said_of_a_record_is_what_its_open_shard_says(oxe_root: Path, horizon: int | None) -> None:
    data = open_mixture(oxe_root, "oxe29", split="train", options=Options(horizon=horizon))
    spec = data.spec
    cache, opened = open_once(data)
    lookup = PointLookup(spec, cache)
    count = 0
    for index, tables in opened:
        shard = OpenShard(spec.shards[index])
        for record in range(len(tables)):
            expected, found = (
                [np.zeros(shape, np.float32) for shape in ((spec.window, spec.action_size), (spec.state_size,))]
                for _ in range(2)
            )
            _, *said = tables.describe(record, horizon, *expected)
            described = lookup.describe(index, record, *found)
            assert described is not None
            assert [described.length, described.place, described.language] == said
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)
            assert read_closed(described.record) == shard.read(record)
            assert lookup.find(index, record) == described.record
            count += 1
    assert count == sum(spec.shards.column("records")) > 500


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, {}),
        ({"metadata": "none"}, {}),
        ({"metadata": "dataset_only"}, {}),
        ({"horizon": 5, "action": "mean"}, {}),
        ({}, {"threads": 3}),
        ({}, {"decode": "device"}),
    ],
)
def test_batches_are_the_same_however_few_shards_are_open(
    oxe_root: Path, options: dict[str, Any], arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_mixture(oxe_root, "oxe29", split="train", options=Options(**options))
    rows = data.plan.rows(data.plan.batch_samples(0, 300))
    shards = len(set(rows.shard.tolist()))
    expected = made(Assembler(data.spec, **arguments), rows)
    few = Assembler(data.spec, max_open=4, **arguments)
    opened = Opened(monkeypatch)
    for row in rows.split(1):
        made(few, row)
    assert opened.count == shards
    opened.count = 0
    before = open_files()
    assert made(few, rows) == expected
    assert opened.count == 0
    assert len(open_files()) == len(before)


def made(assembler: Assembler, rows: Any) -> str:
    out = assembler.empty(len(rows))
    done = assembler.assemble(rows, out)
    assert not done.failed
    return digest({**out, **done.arrays, **done.texts})


def test_further_columns_are_read_of_open_shards(oxe_root: Path) -> None:
    data = open_mixture(oxe_root, "oxe29", split="train", options=Options(columns=("reward", "episode_id")))
    rows = data.plan.rows(data.plan.batch_samples(0, 100))
    few = Assembler(data.spec, max_open=4)
    assert [made(few, rows) for _ in range(2)] == [made(Assembler(data.spec), rows)] * 2


def test_records_of_older_conversions_are_read_of_open_shards(oxe_root: Path, tmp_path: Path) -> None:
    shutil.copytree(oxe_root / "bridge", tmp_path / "bridge")
    (dataset,) = (tmp_path / "bridge").iterdir()
    data = open_mixture(tmp_path, {"bridge": 1.0}, split="train", options=Options())
    rows = data.plan.rows(data.plan.batch_samples(0, 40))
    expected = made(Assembler(data.spec), rows)
    forget_places(dataset)
    older = open_mixture(tmp_path, {"bridge": 1.0}, split="train", options=Options())
    few = Assembler(older.spec, max_open=1)
    assert [made(few, rows) for _ in range(2)] == [expected] * 2


class Used:
    """A loader of a copy of two datasets with room for one open shard, whose shards were all open."""

    def __init__(self, oxe_root: Path, root: Path) -> None:
        for name in ("bridge", "kuka"):
            shutil.copytree(oxe_root / name, root / name)
        self.root = root
        self.loader: Loader = make_loader(root, {"bridge": 1, "kuka": 1}, batch_size=8, seed=3, horizon=3)
        self.maker = BatchMaker(self.loader.steps.setup(), max_open=1)
        self.rows = self.loader.steps.plan(range(12)).split(8)
        self.expected = [self.digest(step) for step in range(12)]
        assert [self.digest(step) for step in range(12)] == self.expected
        shards = self.loader.data.spec.shards
        # Takes the place of the one that was open.
        self.maker.assembler._cache[next(number for number, info in enumerate(shards) if info.dataset == "kuka")]

    def digest(self, step: int) -> str:
        batch, done = self.maker.make(step, self.rows[step])
        for _, error in done.failed:
            raise error
        return digest(batch)

    def path(self, suffix: str) -> Path:
        (path,) = self.root.glob(f"bridge/*/train/*-00001-of-*{suffix}")
        return path


@pytest.fixture
def used(oxe_root: Path, tmp_path: Path) -> Used:
    return Used(oxe_root, tmp_path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def cut_in_secret(path: Path) -> None:
    """The time of change stays."""
    stat = path.stat()
    cut(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def replace(path: Path) -> None:
    """By a file of the same size and time, of zeros."""
    stat = path.stat()
    path.rename(path.with_suffix(".old"))
    path.write_bytes(bytes(stat.st_size))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def zero_in_secret(path: Path) -> None:
    """In place; size and time of change stay."""
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(stat.st_size // 3)
        file.write(bytes(stat.st_size // 3))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("damage", [cut, cut_in_secret, replace, zero_in_secret, Path.unlink])
@pytest.mark.parametrize("suffix", [".arrayrecord", ".records.arrow", ".steps.arrow", ".episodes.arrow"])
def test_a_file_that_is_damaged_after_it_was_open_never_gives_wrong_data(
    used: Used, suffix: str, damage: Callable[[Path], None]
) -> None:
    path = used.path(suffix)
    damage(path)
    before, failed = len(open_files()), 0
    for step, expected in enumerate(used.expected):
        try:
            found = used.digest(step)
        except RecordError as error:
            failed += 1
            assert (error.dataset, error.shard) == ("bridge", "train-00001-of-00002")
            assert path.name in str(error) or "its bytes are not those" in str(error)
        else:
            assert found == expected
    assert failed
    assert len(open_files()) <= before + 1


def test_a_record_that_is_damaged_after_its_file_was_open_is_named(used: Used) -> None:
    path = used.path(".arrayrecord")
    stat, content = path.stat(), bytearray(path.read_bytes())
    places = [place for place in range(len(content) - 4) if content[place : place + 4] == b"FRM1"]
    content[places[2] + 400] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    errors = []
    for step, expected in enumerate(used.expected):
        try:
            assert used.digest(step) == expected
        except RecordError as error:
            errors.append(error)
    assert {(error.shard, error.record) for error in errors} == {("train-00001-of-00002", 2)}
    assert "its bytes are not those that were written" in str(errors[0])


def test_a_file_that_was_copied_over_with_the_same_content_goes_on(used: Used) -> None:
    for suffix in (".arrayrecord", ".records.arrow", ".steps.arrow", ".episodes.arrow"):
        path = used.path(suffix)
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    assert [used.digest(step) for step in range(12)] == used.expected


def test_a_file_that_cannot_be_looked_at_is_closed(used: Used, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network file system ``fstat`` may fail."""
    lookup, rows = used.maker.assembler._lookup, used.rows[0]
    shard, record = int(rows.shard[0]), int(rows.record[0])
    place = lookup.find(shard, record)
    assert place is not None
    assert read_closed(place) is not None
    before = open_files()

    def fail(descriptor: int) -> os.stat_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fail)
        found = [lookup.find(shard, record), read_closed(place)]
    assert found == [None, None]
    assert open_files() == before
