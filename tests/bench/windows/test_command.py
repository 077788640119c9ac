"""The comparison of windows, run tiny: its figures mean nothing here, but every sample of every loader is compared."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.peers.list import PEERS
from bench.peers.protocol import window_hash
from bench.windows import LOADERS, main
from tests.bench.conftest import Refused
from tests.fixtures.command import REPOSITORY
from tests.stream.conftest import frames_root

__all__ = ["frames_root"]

OWN = [name for name, loader in LOADERS.items() if loader.own]


def arguments(root: Path, tmp_path: Path, *more: str) -> list[str]:
    size = [
        "--batch-size",
        "4",
        "--steps",
        "4",
        "--warmup",
        "1",
        "--num-workers",
        "1",
        "--repeat",
        "1",
        "--slice-s",
        "0",
    ]
    return ["--root", str(root), "--mixture", "bridge", *size, "--work", str(tmp_path / "work"), *more]


def run(root: Path, tmp_path: Path, loaders: list[str], *more: str) -> dict[str, Any]:
    out = tmp_path / "out"
    assert main([*arguments(root, tmp_path, "--loaders", ",".join(loaders), *more), "--out", str(out)]) == 0
    result: dict[str, Any] = json.loads((out / "windows.json").read_text())
    return result


def check(result: dict[str, Any], loaders: list[str]) -> None:
    """Four episodes of ten steps."""
    assert [point["error"] for point in result["points"]] == [None] * len(loaders)
    assert result["checked"] == dict.fromkeys(loaders, 40)
    assert (result["pairs"], result["frames"]) == (40, 8)
    for point in result["points"]:
        (measured,) = point["repeats"]
        exact = LOADERS[point["point"]["peer"]].exact
        assert (measured["steps"], measured["checked_pairs"]) == (4, 4 if exact else None)


@pytest.mark.long
def test_every_sample_of_every_loader_here_is_that_of_the_root(frames_root: Path, tmp_path: Path) -> None:
    check(run(frames_root, tmp_path, OWN), OWN)
    told = (tmp_path / "out" / "windows.md").read_text()
    assert f"Equal to those of the root, all samples: {', '.join(OWN)}." in told
    assert "40 windows of 8 64x64 frames" in told


@pytest.mark.long
def test_single_frames_are_windows_of_one(frames_root: Path, tmp_path: Path) -> None:
    result = run(frames_root, tmp_path, ["ours", "lmdb"], "--window", "1")
    assert [point["error"] for point in result["points"]] == [None, None]
    assert result["checked"] == {"ours": 40, "lmdb": 40} and result["frames"] == 1
    assert "40 single 64x64 frames" in (tmp_path / "out" / "windows.md").read_text()


@pytest.mark.long
def test_of_a_loader_with_pixels_of_its_own_all_but_these_are_compared(
    frames_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LOADERS, "lmdb", replace(LOADERS["lmdb"], exact=False))
    # What is exported claims other pixels.
    monkeypatch.setattr("bench.windows.window_hash", lambda frames, *rest: window_hash(255 - frames, *rest))
    result = run(frames_root, tmp_path, ["ours", "lmdb"])
    assert result["checked"] == {"lmdb": 40}
    assert [bool(point["error"]) for point in result["points"]] == [True, False]


@pytest.mark.slow
def test_every_sample_of_lerobots_loader_is_that_of_the_root(frames_root: Path, tmp_path: Path) -> None:
    venvs = Path(os.environ.get("PAIRSTREAM_TEST_PEERS", REPOSITORY / "build" / "peers"))
    PEERS["lerobot"].install(venvs)
    loaders = [name for name in LOADERS if name.startswith("lerobot")]
    check(run(frames_root, tmp_path, loaders, "--venvs", str(venvs)), loaders)


@pytest.mark.long
def test_a_loader_with_other_samples_is_a_row_with_its_error(
    frames_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # What is exported claims another mask of frames.
    monkeypatch.setattr(
        "bench.windows.window_hash", lambda frames, mask, *rest: window_hash(frames, np.logical_not(mask), *rest)
    )
    assert main(arguments(frames_root, tmp_path, "--loaders", "lmdb")) == 1
    assert "40 of 40 samples differ, such as episode/step 0/0" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--mixture", "brigde"), "no dataset 'brigde'; did you mean 'bridge'?"),
        (("--max-steps", "3"), "dataset bridge has 40 steps, of which each loader would make a copy"),
        (("--loaders", "lmbd"), "no loader 'lmbd'"),
        (("--mixture", "language_table", "--camera", "wrist"), "no dataset of the mixture stores 'wrist'; they store"),
    ],
)
def test_usage_errors(frames_root: Path, tmp_path: Path, more: tuple[str, ...], told: str, refused: Refused) -> None:
    code, line = refused(main, arguments(frames_root, tmp_path, *more))
    assert code == 2
    assert told in line
