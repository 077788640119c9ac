"""Damaged copies of a root: they are found, fetched again, and reported."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from pairstream.fetch import fetch, main
from stream import add_labels, digest, make_loader, remove_labels
from stream.base.errors import FormatError
from stream.cache import copies
from tests.fixtures.command import flip
from tests.fixtures.datasets.rlds_dataset import convert_dataset, demo_episode, write_dataset
from tests.fixtures.object_stores import web_server

FOLDER = Path("demo/1.0.0/train")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    shards = [[demo_episode(9, seed=shard)] for shard in range(2)]
    convert_dataset(write_dataset(folder / "source", splits={"train": shards}).conversion(folder / "oxe"))
    (folder / "oxe" / "info.json").write_text('{"datasets": [{"dataset": "demo", "version": "1.0.0"}]}')
    return folder / "oxe"


def damage(path: Path) -> None:
    """Change a byte in the middle of a file."""
    flip(path, path.stat().st_size // 2)


def batches(root: Path | str, cache: Path | None = None, columns: tuple[str, ...] = ()) -> list[str]:
    loader = make_loader(str(root), "demo", batch_size=4, num_steps=8, columns=columns, cache=cache)
    return [digest(batch) for batch in loader]


def attach(root: Path, values: tuple[float, float]) -> None:
    """Attach labels ``value`` to the two episodes."""
    table = root.with_name("value.csv")
    table.write_text("episode,value\n" + "".join(f"{number},{value}\n" for number, value in enumerate(values)))
    add_labels(root, "demo", table, split="train")


def test_damaged_tables_and_a_shard_of_another_size_are_fetched_again_and_counted(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = fetch(str(root), tmp_path / "local", "demo")
    assert (first["tables_damaged"], first["shards_damaged"]) == (0, 0)
    shard = next((tmp_path / "local" / FOLDER).glob("*.arrayrecord"))
    for table in ("steps", "episodes"):
        damage(tmp_path / "local" / FOLDER / f"{table}.arrow")
    os.truncate(shard, shard.stat().st_size - 1)
    assert main([str(root), str(tmp_path / "local"), "--mixture", "demo"]) == 0
    assert "damaged, and fetched again: 2 tables, 1 shards\n3 files fetched" in capsys.readouterr().out
    for path in (root / FOLDER).iterdir():
        assert (tmp_path / "local" / FOLDER / path.name).read_bytes() == path.read_bytes()
    assert batches(tmp_path / "local") == batches(root)
    assert fetch(str(root), tmp_path / "local", "demo")["files_fetched"] == 0


@pytest.mark.parametrize("table", ["steps", "episodes", "records"])
def test_a_damaged_table_of_a_cache_mends_itself(
    table: str, root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with web_server(root) as url, caplog.at_level(logging.WARNING, "stream"):
        assert batches(url, tmp_path) == batches(root)
        assert not caplog.records
        path = tmp_path / FOLDER / f"{table}.arrow"
        damage(path)
        assert batches(url, tmp_path) == batches(root)
    assert [record.getMessage() for record in caplog.records] == [f"{path}: was damaged, and was fetched again"]


def test_damaged_labels_of_a_cache_mend_themselves_and_new_ones_are_not_reported_as_damage(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, cache = Path(shutil.copytree(root, tmp_path / "root")), tmp_path / "cache"
    attach(source, (1.5, 2.5))
    labels = Path(FOLDER, "labels", "value.arrow")
    with web_server(source) as url, caplog.at_level(logging.WARNING, "stream"):
        batches(url, cache, ("value",))
        damage(cache / labels)
        assert batches(url, cache, ("value",)) == batches(source, columns=("value",))
        assert (cache / labels).read_bytes() == (source / labels).read_bytes()
        remove_labels(source, "demo", "value", split="train")
        attach(source, (3.5, 4.5))
        assert batches(url, cache, ("value",)) == batches(source, columns=("value",))
    assert [record.getMessage() for record in caplog.records] == [
        f"{cache / labels}: was damaged, and was fetched again"
    ]


@pytest.mark.parametrize("position", [0, None], ids=["its format", "a column"])
def test_a_large_damaged_table_of_a_cache_is_one_error_and_fetched_by_the_next_loader(
    position: int | None, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_MOST_COMPARED", 0)
    with web_server(root) as url:
        assert batches(url, tmp_path) == batches(root)
        path = tmp_path / FOLDER / "steps.arrow"
        damage(path) if position is None else path.write_bytes(bytes(path.stat().st_size))
        with pytest.raises((FormatError, ValueError), match=f"{path}: .* removed from the cache: open the data again"):
            batches(url, tmp_path)
        assert batches(url, tmp_path) == batches(root)
    assert path.read_bytes() == (root / FOLDER / "steps.arrow").read_bytes()
