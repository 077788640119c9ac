"""The command on a small sample: layouts differ as they should, a lower quality is smaller and further away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.layouts import main
from convert.registry.registry import load_registry
from convert.sample.command import make_sample
from tests.bench.conftest import Refused


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("layouts") / "source"
    make_sample(
        root,
        [load_registry().dataset(name) for name in ("taco_play",)],
        episodes=2,
        steps=18,
        shards=1,
        jobs=1,
    )
    return root


@pytest.mark.long
def test_what_is_stored_more_than_once_takes_more(source: Path, tmp_path: Path, capsys: Any) -> None:
    given = ["--source", str(source), "--datasets", "taco_play", "--codecs", "raw,jpeg:95,jpeg:60,h264:28"]
    given += ["--batches", "1", "--repeat", "1"]
    assert main([*given, "--out", str(tmp_path / "out")]) == 0
    assert "| frames, all cameras |" in capsys.readouterr().out
    result = json.loads((tmp_path / "out" / "layouts.json").read_text())
    found = {each["layout"]: each for each in result["layouts"]}
    assert found["pairs, all frames"]["bytes"] > 1.5 * found["pairs, endpoints"]["bytes"]
    assert found["frames, primary camera"]["records"] == result["steps"]
    assert found["frames, all cameras"]["bytes"] > found["frames, primary camera"]["bytes"]
    raw, *others = result["codecs"]
    assert raw["psnr_db"] > 100 and raw["ssim"] == 1
    assert raw["windows"]["8 frames"]["bytes"] == pytest.approx(8 * 256 * 256 * 3, rel=0.01)
    sizes = [each["bytes_per_frame"] for each in result["codecs"]]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 4
    assert all(20 < each["psnr_db"] < 60 and 0.5 < each["ssim"] < 1 for each in others)


def test_a_source_that_is_not_there(refused: Refused, tmp_path: Path) -> None:
    code, line = refused(main, ["--source", str(tmp_path), "--datasets", "bridge"])
    assert code == 1 and str(tmp_path) in line


@pytest.mark.parametrize("made", [True, False])
def test_a_root_without_datasets_is_an_error(refused: Refused, tmp_path: Path, made: bool) -> None:
    if made:
        (tmp_path / "root").mkdir()
    code, line = refused(main, ["--root", str(tmp_path / "root")])
    assert code == 2 and str(tmp_path / "root") in line
