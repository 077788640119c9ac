"""The comparison of formats, run tiny: its figures mean nothing here, but they are complete and fit together."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from bench.formats import FORMATS, main
from bench.loader.parameters import Parameters
from bench.measure.child import ask
from bench.peers.export import export_frames
from bench.peers.protocol import Export, pixel_hash
from convert.verify.command import main as verify
from stream import PairSource
from tests.bench.conftest import Refused

pytestmark = pytest.mark.long

PAIRS, BATCH, STEPS = 70, 4, 4
_NEEDS = {"jpeg": "torch", "webdataset": "webdataset", "tfrecord": "tensorflow", "lmdb": "lmdb", "arrayrecord": "grain"}
_HERE = [name for name in FORMATS if importlib.util.find_spec(_NEEDS.get(name, "grain"))]


def _arguments(root: Path, work: Path, *more: str) -> list[str]:
    size = ["--pairs", str(PAIRS), "--batch-sizes", str(BATCH), "--steps", str(STEPS), "--warmup", "1", "--repeat", "1"]
    return ["--root", str(root), *size, "--workers", "1", "--slice-s", "0", "--work", str(work), *more]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for the stores and the results."""
    return tmp_path_factory.mktemp("formats")


@pytest.fixture(scope="module")
def result(oxe_root: Path, kept: Path) -> dict[str, Any]:
    """The result of a real run of all formats that this environment can read, in both orders."""
    more = ("--formats", ",".join(_HERE), "--keep", "--out", str(kept / "out"))
    assert main(_arguments(oxe_root, kept / "work", *more)) == 0
    return dict(json.loads((kept / "out" / "formats.json").read_text()))


@pytest.fixture
def folder(kept: Path, result: dict[str, Any]) -> Path:
    """The folder of the stores."""
    (folder,) = (kept / "work").iterdir()
    return folder


def test_each_format_gives_the_pixels_of_the_root_in_both_orders(result: dict[str, Any]) -> None:
    assert [point["error"] for point in result["points"]] == [None] * 2 * len(_HERE)
    for point in result["points"]:
        (measured,) = point["repeats"]
        assert measured["checked_pairs"] == BATCH
        assert measured["steps"] == STEPS
        assert measured["samples_per_s"] == pytest.approx(STEPS * BATCH / measured["seconds"])
        assert measured["peak_pss_bytes"] > 2**24


def test_figures_of_a_store_are_those_of_its_files(result: dict[str, Any], folder: Path) -> None:
    export = Export(folder / "export")
    frames = sum(len(pair["first"]) + len(pair["second"]) for pair in map(export.pair, range(PAIRS)))
    for name in _HERE:
        store = result["copies"][name]
        assert store["files"] == sum(path.is_file() for path in (folder / name).rglob("*"))
        assert store["bytes"] > frames and store["seconds"] > 0


def test_files_are_written_for_the_page(result: dict[str, Any], kept: Path) -> None:
    table = (kept / "out" / "formats.md").read_text()
    assert all(f"| {point['name']} |" in table for point in result["points"])
    assert "<svg" in (kept / "out" / "formats.svg").read_text()


def test_the_index_of_loose_files_names_the_jpegs_byte_for_byte(folder: Path) -> None:
    export = Export(folder / "export")
    with (folder / "jpeg" / "index.csv").open(newline="") as file:
        rows = [{frame: (folder / "jpeg" / row[frame]).read_bytes() for frame in row} for row in csv.DictReader(file)]
    assert rows == [{frame: export.pair(place)[frame] for frame in ("first", "second")} for place in range(PAIRS)]


def test_our_store_is_a_complete_conversion(
    folder: Path, oxe_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify([str(folder / "ours"), "--deep"]) == 0, capsys.readouterr()
    loaded = PairSource(folder / "ours", {"study": 1})
    hashes = export_frames(Parameters(root=str(oxe_root)), tmp_path / "export", pairs=PAIRS)
    assert len(hashes) == PAIRS
    assert {pixel_hash(loaded[number]["frames"]) for number in range(len(loaded))} == hashes


def test_pairs_are_spread_over_all_datasets(oxe_root: Path, folder: Path) -> None:
    everything = PairSource(oxe_root, "oxe29")
    pairs = [everything[number] for number in range(len(everything))]
    datasets = {pixel_hash(pair["frames"]): int(pair["dataset"]) for pair in pairs}
    chosen = PairSource(folder / "ours", {"study": 1})
    assert {datasets[pixel_hash(chosen[number]["frames"])] for number in range(PAIRS)} == set(range(29))


def test_a_store_has_a_shard_for_each_worker(oxe_root: Path, tmp_path: Path) -> None:
    export_frames(Parameters(root=str(oxe_root), mixture="bridge", split="train"), tmp_path / "export", pairs=5)
    request = {"do": "copy", "export": str(tmp_path / "export"), "batch_size": 1, "num_workers": 3, "warmup": 1}
    request |= {"steps": 1, "limit_s": 1, "metadata": "none", "order": "shuffled", "variant": "", "seed": 0}
    request |= {"adapter": FORMATS["ours"].adapter, "copy": str(tmp_path / "ours"), "source": None, "asked": 0.0}
    ask("bench.peers.protocol", request)
    assert len(list((tmp_path / "ours").rglob("*.arrayrecord"))) == 3


def test_a_missing_library_is_a_row_that_names_it(
    oxe_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lmdb.py").write_text("raise ModuleNotFoundError(\"No module named 'lmdb'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(_arguments(oxe_root, tmp_path / "work", "--formats", "lmdb", "--orders", "shuffled")) == 1
    assert "lmdb failed: ModuleNotFoundError: No module named 'lmdb'" in capsys.readouterr().out
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--formats", "lmdb,webdatset"), "no format 'webdatset'; did you mean 'webdataset'?"),
        (("--orders", "random"), "no order 'random'; orders there: sequential, shuffled"),
        (("--batch-sizes", "16,0"), "argument --batch-sizes: found '0', expected a whole number of at least 1"),
        (("--workers", "two"), "argument --workers: found 'two', expected a whole number of at least 0"),
        (("--mixture", "kuku"), "no mixture or dataset 'kuku'; did you mean 'kuka'"),
        (("--pairs", "999999"), "--pairs 999999: oxe29 in"),
    ],
)
def test_a_wrong_argument_is_one_line(
    more: tuple[str, ...], told: str, oxe_root: Path, tmp_path: Path, refused: Refused
) -> None:
    code, line = refused(main, _arguments(oxe_root, tmp_path, *more))
    assert code == 2
    assert told in line
    assert list(tmp_path.iterdir()) == []
