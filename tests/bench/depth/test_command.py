"""The command on a few maps: both ways are measured, and real maps are read from a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from bench.depth import made, main
from tests.bench.conftest import Refused
from tests.fixtures.datasets.rlds_dataset import png


def test_made_and_real_maps_are_read_both_ways(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "maps").mkdir()
    for number in range(3):
        (tmp_path / "maps" / f"{number}.png").write_bytes(png(made(1.0, 64, number)))
    (tmp_path / "maps" / "colour.png").write_bytes(png(np.zeros((8, 8, 3), np.uint8)))
    given = ["--size", "32", "--count", "2", "--repeat", "1", "--maps", str(tmp_path / "maps")]
    assert main([*given, "--out", str(tmp_path / "out")]) == 0
    assert "| real |" in capsys.readouterr().out
    result = json.loads((tmp_path / "out" / "depth.json").read_text())
    assert [each["maps"] for each in result["kinds"]] == [2, 2, 2, 2]
    assert all(each["speed"] > 0 and each["ours_bytes"] > 0 for each in result["kinds"])


def test_a_sensor_leaves_holes_and_a_simulator_none() -> None:
    assert (made(0.0, 64, 1) > 0).all()
    assert 0.05 < (made(4.0, 64, 1) == 0).mean() < 0.15


def test_a_folder_without_depth(refused: Refused, tmp_path: Path) -> None:
    code, line = refused(main, ["--maps", str(tmp_path)])
    assert code != 0 and "has no PNG of one channel of 16 bits" in line
