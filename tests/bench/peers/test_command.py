"""The comparison with peers, run tiny: its figures mean nothing here, but they are complete and fit together."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.measure.child import ChildFailed
from bench.peers.command import main
from bench.peers.comparison import check_pixels
from bench.peers.list import PEERS, STUDIES
from bench.peers.protocol import Export, window_hash
from bench.peers.table import sentences
from convert.verify.command import main as verify
from tests.bench.conftest import Refused
from tests.fixtures.command import REPOSITORY

BATCH, STEPS = 4, 4
_WEIGHTS = {"bridge": 2, "kuka": 1, "language_table": 1}
_LIBRARIES = {"jpeg": "torch", "lmdb": "lmdb", "webdataset": "webdataset", "tfdata": "tensorflow"}
_LIBRARIES |= {"tfrecord": "tensorflow", "ours": "grain", "grain": "grain", "arrayrecord": "grain"}
AVAILABLE = [name for name, library in _LIBRARIES.items() if importlib.util.find_spec(library)]
OWN_WINDOWS = [name for name, peer in STUDIES["windows"].items() if peer.own]


@pytest.fixture(scope="module")
def folder(oxe_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted root, ``oxe``, its ``source``, and a mixture of three of its datasets, 2 to 1 to 1."""
    folder = tmp_path_factory.mktemp("bench-peers")
    (folder / "oxe").symlink_to(oxe_root)
    (folder / "source").symlink_to(oxe_root.parent / "source")
    splits = "splits: {train: 'train[:2]', val: 'train[2:]'}"
    members = "".join(f"  {name}: {{weight: {weight}, {splits}}}\n" for name, weight in _WEIGHTS.items())
    (folder / "three.yaml").write_text(f"members:\n{members}")
    return folder


def _size(work: Path) -> list[str]:
    size = ["--batch-size", str(BATCH), "--steps", str(STEPS), "--warmup", "1", "--num-workers", "1", "--repeat", "1"]
    return [*size, "--slice-s", "0", "--work", str(work)]


def _arguments(folder: Path, *options: str) -> list[str]:
    data = ["--root", str(folder / "oxe"), "--mixture", str(folder / "three.yaml"), "--source", str(folder / "source")]
    return [*data, *_size(folder / "work"), *options]


def _run(arguments: list[str], out: Path, *, code: int = 0) -> dict[str, Any]:
    assert main([*arguments, "--out", str(out)]) == code
    result: dict[str, Any] = json.loads((out / "peers.json").read_text())
    return result


@pytest.mark.long
def test_every_peer_that_is_installed_gives_the_pairs_of_the_root(folder: Path, tmp_path: Path) -> None:
    names = [name for name in STUDIES["pairs"] if name in AVAILABLE]
    result = _run(_arguments(folder, "--peers", ",".join(names), "--python", sys.executable), tmp_path)
    assert [point["error"] for point in result["points"]] == [None] * len(names)
    for point in result["points"]:
        (run,) = point["repeats"]
        exact = point["point"]["peer"] != "tfdata"
        assert (run["steps"], run["checked_pairs"]) == (STEPS, BATCH if exact else None)
        assert sum(run["counts"]) == STEPS * BATCH
        assert run["samples_per_s"] == pytest.approx(STEPS * BATCH / run["seconds"])
        # A process that has imported numpy takes more than this.
        assert run["first_batch_s"] > 0 and run["peak_pss_bytes"] > 10_000_000
    table = (tmp_path / "peers.md").read_text()
    assert all(f"| {point['name']} |" in table for point in result["points"])
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")
    assert list((folder / "work").iterdir()) == []


@pytest.mark.long
def test_each_format_gives_the_pixels_of_the_root_in_both_orders(
    oxe_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [name for name in STUDIES["formats"] if name in AVAILABLE]
    data = ["--study", "formats", "--root", str(oxe_root), "--pairs", "70", "--peers", ",".join(names)]
    arguments = [*data, *_size(tmp_path / "work"), "--orders", "shuffled,sequential", "--keep"]
    result = _run(arguments, tmp_path / "out")
    assert [point["error"] for point in result["points"]] == [None] * 2 * len(names)
    assert {point["repeats"][0]["checked_pairs"] for point in result["points"]} == {BATCH}
    (work,) = (tmp_path / "work").iterdir()
    exported = Export(work / "export")
    num_bytes = sum(len(pair["first"]) + len(pair["second"]) for pair in map(exported.pair, range(70)))
    for name in names:
        copy = result["copies"][name]
        assert copy["files"] == sum(path.is_file() for path in (work / name).rglob("*"))
        assert copy["bytes"] > num_bytes and copy["seconds"] > 0
    assert verify([str(work / "ours"), "--deep"]) == 0, capsys.readouterr()


def _windows(root: Path, tmp_path: Path, peers: list[str], *options: str, code: int = 0) -> dict[str, Any]:
    data = ["--study", "windows", "--root", str(root), "--mixture", "bridge", "--peers", ",".join(peers)]
    return _run([*data, *_size(tmp_path / "work"), *options], tmp_path / "out", code=code)


def _check_windows(result: dict[str, Any], peers: list[str]) -> None:
    """Check four episodes of ten steps."""
    assert [point["error"] for point in result["points"]] == [None] * len(peers)
    assert result["checked"] == dict.fromkeys(peers, 40)
    assert (result["pairs"], result["frames"]) == (40, 8)


@pytest.mark.long
def test_every_window_of_every_own_peer_is_that_of_the_root(frames_root: Path, tmp_path: Path) -> None:
    _check_windows(_windows(frames_root, tmp_path, OWN_WINDOWS), OWN_WINDOWS)
    table = (tmp_path / "out" / "peers.md").read_text()
    assert f"Equal to those of the root, all samples: {', '.join(OWN_WINDOWS)}." in table
    assert "40 windows of 8 64x64 frames" in table


@pytest.mark.slow
def test_every_window_of_lerobots_loaders_is_that_of_the_root(frames_root: Path, tmp_path: Path) -> None:
    venvs = Path(os.environ.get("PAIRSTREAM_TEST_PEERS", REPOSITORY / "build" / "peers"))
    PEERS["lerobot"].install(venvs)
    peers = [name for name in STUDIES["windows"] if name.startswith("lerobot")]
    _check_windows(_windows(frames_root, tmp_path, peers, "--venvs", str(venvs)), peers)


@pytest.mark.long
def test_a_peer_with_other_samples_is_a_row_with_its_error(
    frames_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The export claims another mask of frames.
    monkeypatch.setattr(
        "bench.peers.windows.window_hash",
        lambda frames, mask, *actions: window_hash(frames, np.logical_not(mask), *actions),
    )
    result = _windows(frames_root, tmp_path, ["lmdb"], "--window", "1", code=1)
    assert result["points"][0]["error"] == "40 of 40 samples differ, such as episode/step 0/0"


def test_other_pixels_are_an_error() -> None:
    assert check_pixels(["a", "b"], {"a", "b", "c"}) == 2
    with pytest.raises(ChildFailed, match="1 of 2 pairs have other pixels"):
        check_pixels(["a", "x"], {"a"})


@pytest.mark.long
def test_a_peer_that_dies_is_a_row_and_the_others_continue(folder: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -9 $$\n")
    python.chmod(0o755)
    options = ("--peers", "lmdb,ours", "--python", str(python), "--slice-s", "0.1")
    died, survivor = _run(_arguments(folder, *options), tmp_path)["points"]
    assert died["error"].startswith("was killed by SIGKILL") and not died["repeats"]
    (run,) = survivor["repeats"]
    limit = np.mean([turn["pairs_per_s"] for turn in run["limit_slices"]])
    assert run["ratio"] == pytest.approx(run["samples_per_s"] / limit)
    missing = _run(_arguments(folder, "--peers", "lmdb", "--venvs", str(tmp_path)), tmp_path, code=1)
    expected = f"not installed; run: python -m bench.peers --install lmdb --venvs {tmp_path}"
    assert missing["points"][0]["error"] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--peers", "lmbd"), "no peer 'lmbd'"),
        (("--study", "formats", "--peers", "webdatset"), "no peer 'webdatset'; did you mean 'webdataset'?"),
        (("--metadata", "some"), "found 'some', expected one of full, none"),
        (("--batch-size", "16,0"), "argument --batch-size: found '0', expected a whole number of at least 1"),
        (("--max-samples", "3"), "of which each peer would make a copy"),
        (("--study", "formats", "--pairs", "999999"), "--pairs 999999: "),
        (("--study", "windows", "--mixture", "brigde"), "no dataset 'brigde'; did you mean 'bridge'?"),
        (("--study", "windows", "--mixture", "bridge"), "dataset bridge: is in the layout pairs"),
    ],
)
def test_a_wrong_argument_is_one_line(folder: Path, options: tuple[str, ...], message: str, refused: Refused) -> None:
    code, line = refused(main, _arguments(folder, *options))
    assert code == 2
    assert message in line


def test_faster_and_slower_follow_from_the_ranges() -> None:
    def point(name: str, *rates: float) -> dict[str, Any]:
        repeats = [{"samples_per_s": rate} for rate in rates]
        setting = {"peer": name, "metadata": "full", "order": "shuffled", "batch_size": 4, "num_workers": 1}
        return {"name": name, "point": setting, "median": repeats[1], "repeats": repeats, "error": None}

    result = {
        "parameters": {"repeat": 3},
        "shape": [8, 8],
        "machine": {"cores": 1, "cpu": "any"},
        "peers": {"a": {"exact": True}, "b": {"exact": False}},
        "checked": {"a": 9, "b": 9},
        "pairs": 9,
        "datasets": 1,
        "points": [point("ours", 9, 10, 11), point("a", 12, 20, 21), point("b", 10, 11, 12), point("c", 1, 5, 8)],
    }
    *checked, compared = sentences(result)[1:]
    equal = "Equal to those of the root, all samples"
    assert checked == [f"{equal}: a.", f"{equal} but for the pixels: b."]
    assert "metadata full, shuffled, batches of 4, 1 workers: " in compared
    assert compared.endswith("faster than ours: a (2.00); slower than ours: c (0.50); no difference seen: b (1.10)")


@pytest.mark.parametrize("name", [name for name, peer in PEERS.items() if not peer.own])
def test_a_peer_imports_nothing_that_its_environment_lacks(name: str) -> None:
    allowed = set(sys.stdlib_module_names) | {"numpy", "psutil", "simplejpeg", "torch", "grain", "tensorflow"}
    assert set(_imports(PEERS[name].module, set())) - allowed <= {"tensorflow_datasets"}
    pinned = [line for line in PEERS[name].requirements.read_text().splitlines() if not line.startswith("#")]
    assert pinned and all("==" in line for line in pinned)


def _imports(module: str, seen: set[str]) -> Iterator[str]:
    """Yield the first names of all modules that a module of this repository imports, directly or not."""
    seen.add(module)
    for node in ast.walk(ast.parse((REPOSITORY / f"{module.replace('.', '/')}.py").read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if name.split(".")[0] == "bench":
                yield from _imports(name, seen) if name not in seen else ()
            else:
                yield name.split(".")[0]
