"""The comparison with peers, run tiny: its figures mean nothing here, but they are complete and fit together."""

from __future__ import annotations

import ast
import importlib.util
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.loader.parameters import Parameters
from bench.measure.child import ChildFailed
from bench.peers.command import main
from bench.peers.comparison import check_pixels, make_points
from bench.peers.export import export_mixture
from bench.peers.list import PEERS
from bench.peers.protocol import Decoder, Export, Request, pixel_hash
from bench.peers.table import sentences
from stream.frameworks.grain import PairSource
from tests.bench.conftest import Refused
from tests.fixtures.command import REPOSITORY, Result, run, start, wait_until

pytestmark = pytest.mark.long

BATCH, STEPS = 4, 4
_WEIGHTS = {"bridge": 2, "kuka": 1, "language_table": 1}
_NEEDS = {"ours": "grain", "grain": "grain", "lmdb": "lmdb", "webdataset": "webdataset", "tfdata": "tensorflow"}
_HERE = [name for name, needed in _NEEDS.items() if importlib.util.find_spec(needed)]


@pytest.fixture(scope="module")
def folder(oxe_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted root, ``oxe``, its ``source``, and a mixture of three of its datasets, 2 to 1 to 1."""
    made = tmp_path_factory.mktemp("bench-peers")
    (made / "oxe").symlink_to(oxe_root)
    (made / "source").symlink_to(oxe_root.parent / "source")
    splits = "splits: {train: 'train[:2]', val: 'train[2:]'}"
    members = "".join(f"  {name}: {{weight: {weight}, {splits}}}\n" for name, weight in _WEIGHTS.items())
    (made / "three.yaml").write_text(f"members:\n{members}")
    return made


def _arguments(folder: Path, *more: str) -> list[str]:
    size = ["--batch-size", str(BATCH), "--steps", str(STEPS), "--warmup", "1", "--num-workers", "1", "--repeat", "1"]
    data = ["--root", str(folder / "oxe"), "--mixture", str(folder / "three.yaml"), "--source", str(folder / "source")]
    return [*data, *size, "--slice-s", "0", "--work", str(folder / "work"), *more]


def _run(folder: Path, *more: str) -> Result:
    return run(*_arguments(folder, *more), module="bench.peers")


@pytest.fixture(scope="module")
def printed(folder: Path) -> dict[str, Any]:
    """What ``--json`` prints of all peers that this environment can import."""
    peers = ",".join("tfdata:sample" if name == "tfdata" else name for name in _HERE)
    done = _run(folder, "--peers", peers, "--python", sys.executable, "--json", "--out", str(folder / "out"))
    assert done.code == 0, done.err
    return dict(json.loads(done.out))


@pytest.fixture(scope="module")
def runs(printed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The one run of each peer."""
    assert [point["error"] for point in printed["points"]] == [None] * len(_HERE)
    return {point["point"]["peer"]: point["repeats"][0] for point in printed["points"]}


@pytest.fixture(scope="module")
def exported(folder: Path) -> tuple[Export, set[str]]:
    hashes = export_mixture(_parameters(folder), folder / "export", most=10_000)
    return Export(folder / "export"), hashes


def _parameters(folder: Path) -> Parameters:
    return Parameters(root=str(folder / "oxe"), mixture=str(folder / "three.yaml"))


def _request(folder: Path) -> Request:
    return Request(
        adapter="",
        do="measure",
        export=folder / "export",
        copy=folder / "none",
        batch_size=16,
        num_workers=1,
        warmup=1,
        steps=1,
        limit_s=60.0,
        metadata="full",
        order="shuffled",
        variant="sample",
        seed=0,
        source=str(folder / "source"),
        asked=time.monotonic(),
    )


def test_pairs_of_a_batch_have_the_pixels_of_the_root(runs: dict[str, dict[str, Any]]) -> None:
    checked = {name: run["checked_pairs"] for name, run in runs.items()}
    assert checked == {name: None if name == "tfdata" else BATCH for name in runs}


def test_other_pixels_are_an_error() -> None:
    assert check_pixels(["a", "b"], {"a", "b", "c"}) == 2
    with pytest.raises(ChildFailed, match="1 of 2 pairs have other pixels"):
        check_pixels(["a", "x"], {"a"})


def test_counts_are_those_of_the_measured_steps(runs: dict[str, dict[str, Any]]) -> None:
    for measured in runs.values():
        assert measured["steps"] == STEPS
        assert sum(measured["counts"]) == STEPS * BATCH
        assert sum(measured["mixing"]["shares"]) == pytest.approx(1)
        assert measured["samples_per_s"] == pytest.approx(STEPS * BATCH / measured["seconds"])


def test_ours_is_mixed_exactly(runs: dict[str, dict[str, Any]]) -> None:
    assert runs["ours"]["mixing"]["off"] <= 2


def test_times_and_memory_are_told(runs: dict[str, dict[str, Any]]) -> None:
    for measured in runs.values():
        step = measured["step_ms"]
        assert 0 < step["p50"] <= step["p99"] <= step["max"]
        assert measured["first_batch_s"] > 0
        # A process that has imported numpy takes more than this.
        assert measured["peak_pss_bytes"] > 10_000_000


def test_a_copy_holds_all_frames(printed: dict[str, Any], exported: tuple[Export, set[str]]) -> None:
    pairs = map(exported[0].pair, range(len(exported[0])))
    frames = sum(len(pair["first"]) + len(pair["second"]) for pair in pairs)
    copied = set(printed["copies"]) - {"ours"}
    assert copied == set(_HERE) - {"ours", "tfdata"}
    for name in copied:
        assert frames < printed["copies"][name]["bytes"]
        assert printed["copies"][name]["seconds"] > 0


def test_files_are_kept_and_copies_are_not(printed: dict[str, Any], folder: Path) -> None:
    assert json.loads((folder / "out" / "peers.json").read_text())["points"] == printed["points"]
    table = (folder / "out" / "peers.md").read_text()
    assert all(f"| {point['name']} |" in table for point in printed["points"])
    assert (folder / "out" / "peers.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (folder / "out" / "peers.svg").read_bytes()
    assert list((folder / "work").iterdir()) == []


def test_exported_pairs_are_those_of_the_root(folder: Path, exported: tuple[Export, set[str]]) -> None:
    export, hashes = exported
    source = PairSource(folder / "oxe", folder / "three.yaml")
    assert len(export) == len(source) >= len(hashes)
    for place in (0, len(source) // 2, len(source) - 1):
        sample, expected = Decoder(_request(folder))(export.record(place)), source[place]
        assert set(sample) == {"frames", "dataset", "episode", "step", "language", "action", "state"}
        for key in sample:
            np.testing.assert_array_equal(sample[key], expected[key])
        assert pixel_hash(expected["frames"]) in hashes
    assert export.weights == pytest.approx([0.5, 0.25, 0.25])


@pytest.mark.skipif("tfdata" not in _HERE, reason="needs tensorflow")
def test_tfdata_makes_the_pairs_of_the_root(folder: Path, exported: tuple[Export, set[str]]) -> None:
    from bench.peers.loaders.tfdata import Tfdata

    with Tfdata.open_batches(_request(folder)) as batches:
        batch = next(batches)
    source = PairSource(folder / "oxe", folder / "three.yaml")
    pairs = [source[place] for place in range(len(source))]
    places = {tuple(int(pair[key]) for key in ("dataset", "episode", "step")): pair for pair in pairs}
    assert set(batch["dataset"].tolist()) == {0, 1, 2}
    for row in range(16):
        pair = places[tuple(int(batch[key][row]) for key in ("dataset", "episode", "step"))]
        np.testing.assert_allclose(batch["action"][row], pair["action"], rtol=1e-6)
        np.testing.assert_allclose(batch["state"][row], pair["state"], rtol=1e-6)
        assert batch["language"][row].decode() == pair["language"]
        # Another filter and no second JPEG; other pairs of the same dataset are further away than this.
        off = np.abs(batch["frames"][row].astype(int) - pair["frames"].astype(int)).mean()
        swapped = np.abs(batch["frames"][row].astype(int) - pair["frames"][::-1].astype(int)).mean()
        assert off < 6 and (off < swapped or swapped < 1)


def test_a_peer_that_is_not_installed_says_how(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_arguments(folder, "--peers", "lmdb", "--venvs", str(folder / "venvs"))) == 1
    told = f"lmdb failed: not installed; run: python -m bench.peers --install lmdb --venvs {folder / 'venvs'}"
    assert told in capsys.readouterr().out


def test_a_peer_that_dies_is_a_row_and_the_others_go_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = folder / "python"
    python.write_text("#!/bin/sh\nkill -9 $$\n")
    python.chmod(0o755)
    more = ("--peers", "lmdb,ours", "--python", str(python), "--json", "--slice-s", "0.1")
    assert main(_arguments(folder, *more)) == 0
    died, ours = json.loads(capsys.readouterr().out)["points"]
    assert died["error"].startswith("was killed by SIGKILL") and not died["repeats"]
    (measured,) = ours["repeats"]
    assert [part["seconds"] >= 0.1 for part in measured["limit_slices"]] == [True, True]
    limit = np.mean([part["pairs_per_s"] for part in measured["limit_slices"]])
    assert measured["ratio"] == pytest.approx(measured["samples_per_s"] / limit)


def test_an_interrupt_removes_the_copies(folder: Path, tmp_path: Path) -> None:
    arguments = [*_arguments(folder, "--peers", "ours", "--steps", "1000000"), "--work", str(tmp_path)]
    with start(*arguments, module="bench.peers") as command:
        assert wait_until(lambda: len(command.processes()) > 1, seconds=60)
        command.signal(signal.SIGINT)
        done = command.wait()
        assert (done.code, done.err.strip()) == (130, "interrupted")
        assert wait_until(lambda: not command.processes(), seconds=20)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--peers", "lmbd"), "no peer 'lmbd'"),
        (("--peers", "tfdata:fast"), "variants: sample, choose, threads"),
        (("--metadata", "some"), "found 'some', expected one of full, none"),
        (("--max-pairs", "3"), "of which each peer would make a copy"),
    ],
)
def test_usage_errors(folder: Path, arguments: tuple[str, ...], message: str, refused: Refused) -> None:
    code, line = refused(main, _arguments(folder, *arguments))
    assert code == 2
    assert message in line


def test_who_is_ahead_follows_from_the_ranges() -> None:
    def point(name: str, *rates: float) -> dict[str, Any]:
        repeats = [{"samples_per_s": rate} for rate in rates]
        where = {"peer": name, "metadata": "full", "order": "shuffled", "batch_size": 4, "num_workers": 1}
        return {"name": name, "point": where, "median": repeats[1], "repeats": repeats, "error": None}

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
    *checked, told = sentences(result)[1:]
    assert checked == [
        "Equal to those of the root, all samples: a.",
        "Equal to those of the root, all samples but for the pixels: b.",
    ]
    assert "metadata full, shuffled, batches of 4, 1 workers: " in told
    assert told.endswith("faster than ours: a (2.00); slower than ours: c (0.50); no difference seen: b (1.10)")


def test_a_name_has_the_parameters_that_differ() -> None:
    peers = [(PEERS["ours"], ""), (PEERS["tfdata"], "sample")]
    points = make_points(peers, metadata=["full", "none"], order=["shuffled"], batch_size=[4], num_workers=[1])
    assert [point.name for point in points] == [
        "ours metadata=full",
        "tfdata:sample metadata=full",
        "ours metadata=none",
        "tfdata:sample metadata=none",
    ]


@pytest.mark.parametrize("name", [name for name in PEERS if name != "ours"])
def test_a_peer_imports_nothing_that_its_environment_lacks(name: str) -> None:
    allowed = set(sys.stdlib_module_names) | {"numpy", "psutil", "simplejpeg", "torch", "grain", "tensorflow"}
    assert set(_imports(PEERS[name].module, set())) - allowed <= {"tensorflow_datasets"}
    pinned = [line for line in PEERS[name].requirements.read_text().splitlines() if not line.startswith("#")]
    assert pinned and all("==" in line for line in pinned)


def _imports(module: str, seen: set[str]) -> Iterator[str]:
    """The first names of all modules that a module of this repository imports, directly or not."""
    seen.add(module)
    for node in ast.walk(ast.parse((REPOSITORY / f"{module.replace('.', '/')}.py").read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        for found in names:
            if found.split(".")[0] == "bench":
                yield from _imports(found, seen) if found not in seen else ()
            else:
                yield found.split(".")[0]
