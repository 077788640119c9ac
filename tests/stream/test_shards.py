from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from array_record.python.array_record_module import ArrayRecordReader

from stream.catalog import Catalog
from stream.format import FILE_KINDS, FormatError
from stream.mixture import Member
from stream.shards import OpenShard, ShardInfo
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


def copy_of_bridge(oxe_root: Path, folder: Path) -> ShardInfo:
    """The first training shard of a copy, to damage."""
    shutil.copytree(oxe_root / "bridge", folder / "bridge")
    return list_shards(folder, ["bridge"])[0]


@pytest.fixture
def copied(oxe_root: Path, tmp_path: Path) -> ShardInfo:
    return copy_of_bridge(oxe_root, tmp_path)


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
    with pytest.raises(FormatError) as raised:
        touch(OpenShard(copied), kind)
    assert str(path) in str(raised.value)


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


def test_sidecars_hold_no_file_open(shards: list[ShardInfo]) -> None:
    kept = [OpenShard(info) for info in shards[:10]]
    for shard in kept:
        for kind in ("records", "steps", "episodes"):
            touch(shard, kind)
    assert not [path for path in open_files() if path.endswith(".arrow")]
