"""The stores of the format study: chosen pairs, what is written of them, and what one pass over each format gives."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from bench.formats.frames import PairFile, PicturePairs, RootPairs, decode_pair, write_pairs
from bench.formats.readers import Reading, read_pair_file
from bench.formats.run import check_request, hash_pairs
from bench.formats.stores import DATASET, FORMATS, Store, bytes_needed, count_shards, write_store
from bench.measure.child import ask
from convert.verify.command import main as verify
from stream import PairSource
from stream.storage.errors import ArgumentError, FormatError

PAIRS, SHARDS = 70, 2


@pytest.fixture(scope="module")
def pairs(oxe_root: Path, tmp_path_factory: pytest.TempPathFactory) -> PairFile:
    """70 pairs of 64x64, of all datasets of the root."""
    chosen = RootPairs(oxe_root, "oxe29", split="train", pairs=PAIRS)
    return write_pairs(chosen, tmp_path_factory.mktemp("pairs") / "pairs.bin")


@pytest.fixture(scope="module")
def source(pairs: PairFile) -> list[str]:
    """The hash of each pair, in order; all differ."""
    hashes = hash_pairs(read_pair_file(pairs))
    assert len(set(hashes)) == PAIRS
    return hashes


def _store(name: str, pairs: PairFile, folder: Path) -> Store:
    size = {"pairs": pairs.pairs, "height": pairs.height, "width": pairs.width}
    return Store(format=name, folder=str(folder / name), shards=SHARDS, **size)


@pytest.fixture(scope="module")
def written(pairs: PairFile, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Store, dict[str, Any]]]:
    """A store of each format, and the figures of its writing."""
    folder = tmp_path_factory.mktemp("stores")
    stores = {name: _store(name, pairs, folder) for name in FORMATS}
    return {name: (store, write_store(pairs, store)) for name, store in stores.items()}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_gives_the_pairs_of_the_source(
    name: str, written: dict[str, tuple[Store, dict[str, Any]]], source: list[str]
) -> None:
    readings = [
        Reading(batch_size=4, passes=1, workers=0, order="sequential"),
        Reading(batch_size=4, passes=1, workers=2, order="shuffled"),
        Reading(batch_size=4, passes=2, workers=0, order="shuffled"),
    ]
    passes = ask("bench.formats.run", check_request(written[name][0], readings), timeout=120)["passes"]
    assert passes[0] == source
    assert Counter(passes[1]) == Counter(source) and passes[1] != source
    assert Counter(passes[2]) == Counter(source * 2)
    assert source != passes[2][:PAIRS] != passes[2][PAIRS:]


def test_figures_of_a_store_are_those_of_its_files(
    written: dict[str, tuple[Store, dict[str, Any]]], pairs: PairFile
) -> None:
    for store, figures in written.values():
        files = [path for path in Path(store.folder).rglob("*") if path.is_file()]
        assert figures["files"] == len(files)
        assert figures["file_bytes"] == sum(path.stat().st_size for path in files) > pairs.frame_bytes
        assert figures["write_s"] > 0
        assert figures["disk_bytes"] <= bytes_needed(pairs.pairs, pairs.frame_bytes, 1)
    assert written["jpeg"][1]["files"] == 2 * PAIRS + 1


def test_the_index_names_the_jpegs_byte_for_byte(
    written: dict[str, tuple[Store, dict[str, Any]]], pairs: PairFile
) -> None:
    folder = Path(written["jpeg"][0].folder)
    with (folder / "index.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [((folder / row["first"]).read_bytes(), (folder / row["last"]).read_bytes()) for row in rows] == list(pairs)


def test_our_store_is_a_whole_conversion(
    written: dict[str, tuple[Store, dict[str, Any]]], source: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    root = written["ours"][0].folder
    assert verify([root, "--deep"]) == 0, capsys.readouterr()
    loaded = PairSource(root, {DATASET: 1})
    assert hash_pairs(loaded[number]["frames"] for number in range(len(loaded))) == source


def test_pairs_are_spread_over_all_datasets(oxe_root: Path, pairs: PairFile, source: list[str]) -> None:
    everything = PairSource(oxe_root, "oxe29")
    hashes = hash_pairs(everything[number]["frames"] for number in range(len(everything)))
    found = {everything[hashes.index(one)]["dataset"].item() for one in source}
    assert found == set(range(29))


def test_pictures_become_pairs_of_neighbours(tmp_path: Path) -> None:
    for number, name in enumerate(("b.png", "a.jpg", "c.png", "note.txt")):
        shade = np.full((40, 60, 3), 60 * number, np.uint8)
        encoded = cv2.imencode(Path(name).suffix.replace(".txt", ".png"), shade)[1]
        (tmp_path / name).write_bytes(encoded.tobytes())
    made = write_pairs(PicturePairs(tmp_path, size=32, pairs=None), tmp_path / "pairs.bin")
    assert (made.pairs, made.height, made.width) == (2, 32, 32)
    shades = [decode_pair(pair, 32, 32).mean(axis=(1, 2, 3)).round().tolist() for pair in made]
    assert shades == [[60, 0], [0, 120]]


def test_too_few_pictures_or_pairs_are_refused(tmp_path: Path, oxe_root: Path) -> None:
    with pytest.raises(ArgumentError, match="0 pictures"):
        PicturePairs(tmp_path, size=32, pairs=None)
    with pytest.raises(ArgumentError, match="no such folder"):
        PicturePairs(tmp_path / "other", size=32, pairs=None)
    with pytest.raises(ArgumentError, match=r"--pairs 100000: kuka in .* pairs"):
        RootPairs(oxe_root, "kuka", split="train", pairs=100_000)


def test_frames_of_two_sizes_are_refused(tmp_path: Path) -> None:
    small, large = (cv2.imencode(".jpg", np.zeros((n, n, 3), np.uint8))[1].tobytes() for n in (8, 16))
    with pytest.raises(FormatError, match="16x16"):
        write_pairs([(small, small), (small, large)], tmp_path / "pairs.bin")


def test_there_is_a_shard_for_each_worker_and_none_is_empty() -> None:
    def shards(pairs: int, frame_bytes: int, workers: int) -> int:
        size = {"height": 1, "width": 1}
        return count_shards(PairFile(path="", pairs=pairs, frame_bytes=frame_bytes, **size), workers)

    assert shards(100, 1000, 8) == 8
    assert shards(3, 1000, 8) == 3
    assert shards(100_000, 2_560_000_001, 2) == 11
    assert shards(100, 1000, 0) == 1
