"""The command on a small sample: layouts differ as they should, and each codec and depth map is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.layouts.command import main
from bench.layouts.depth import draw_depth
from convert.registry.registry import load_registry
from convert.sample.command import make_sample
from tests.bench.conftest import Refused
from tests.fixtures.datasets.rlds_dataset import png


@pytest.mark.long
def test_frames_that_are_stored_more_than_once_take_more(tmp_path: Path, capsys: Any) -> None:
    source = tmp_path / "source"
    make_sample(source, [load_registry().dataset("taco_play")], episodes=2, steps=18, shards=1, jobs=1)
    size = ["--batches", "1", "--repeat", "1", "--codecs", "raw,jpeg:95,jpeg:60,h264:28"]
    assert main(["--source", str(source), "--datasets", "taco_play", *size, "--out", str(tmp_path / "out")]) == 0
    assert "| frames, all cameras |" in capsys.readouterr().out
    result = json.loads((tmp_path / "out" / "layouts.json").read_text())
    layouts = {row["layout"]: row for row in result["layouts"]}
    assert layouts["pairs, all frames"]["bytes"] > 1.5 * layouts["pairs, endpoints"]["bytes"]
    assert layouts["frames, primary camera"]["records"] == result["steps"]
    assert layouts["frames, all cameras"]["bytes"] > layouts["frames, primary camera"]["bytes"]
    raw, *lossy = result["codecs"]
    assert raw["psnr_db"] > 100 and raw["ssim"] == 1
    assert raw["windows"]["8 frames"]["bytes"] == pytest.approx(8 * 256 * 256 * 3, rel=0.01)
    sizes = [row["bytes_per_frame"] for row in result["codecs"]]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 4
    assert all(20 < row["psnr_db"] < 60 and 0.5 < row["ssim"] < 1 for row in lossy)


def test_generated_and_real_depth_maps_are_read_in_both_formats(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "maps").mkdir()
    for number in range(3):
        (tmp_path / "maps" / f"{number}.png").write_bytes(png(draw_depth(1.0, 64, number)))
    (tmp_path / "maps" / "colour.png").write_bytes(png(np.zeros((8, 8, 3), np.uint8)))
    size = ["--subjects", "depth", "--size", "32", "--count", "2", "--repeat", "1"]
    assert main([*size, "--maps", str(tmp_path / "maps"), "--out", str(tmp_path / "out")]) == 0
    assert "| real |" in capsys.readouterr().out
    result = json.loads((tmp_path / "out" / "layouts.json").read_text())
    assert [row["maps"] for row in result["depth"]] == [2, 2, 2, 2]
    assert all(row["speed"] > 0 and row["ours_bytes"] > 0 for row in result["depth"])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--source", "FOLDER", "--datasets", "bridge"), 2),
        (("--root", "FOLDER"), 2),
        (("--subjects", "depth", "--maps", "FOLDER", "--size", "8", "--count", "1"), 2),
    ],
)
def test_a_folder_without_data_is_one_line(
    arguments: tuple[str, ...], code: int, refused: Refused, tmp_path: Path
) -> None:
    exit_code, line = refused(main, [argument.replace("FOLDER", str(tmp_path)) for argument in arguments])
    assert exit_code == code and str(tmp_path) in line
