"""The benchmark of conversion, run tiny: its figures mean nothing here, but they are all there and fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.convert.command import main, transcode
from bench.convert.files import main as convert_files
from bench.convert.source import CASES, Case, draw_episode, set_up_opencv
from bench.synthetic import VERSION
from convert.shard.images import FramePolicy, convert_frame
from tests.bench.conftest import Refused

STEPS = 8


@pytest.mark.long
def test_a_conversion_is_measured_next_to_its_bare_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept"
    size = ["--cases", "png", "--pairs", "6", "--steps", str(STEPS), "--repeat", "1"]
    assert main([*size, "--json", "--keep", str(kept)]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert result["parameters"]["offset"] == 5 and result["machine"]["versions"]["apache-beam"]
    (case,) = result["cases"]
    (run,) = case["runs"]
    conversion, bare = run["ours"], run["bare"]
    assert case["pairs"] == conversion["result"]["pairs"] == 2 * (STEPS - 5)
    assert case["frames_converted"] == bare["frames"] == 12
    assert case["ratio"] == pytest.approx(bare["seconds"] / conversion["steady_seconds"])
    assert conversion["cpu_seconds"] > 0 and 2**25 < conversion["worker_bytes"] < 2**31
    assert (kept / "output" / "png-0" / "bench_png" / VERSION / "dataset.json").is_file()


def test_a_folder_with_files_is_not_taken_for_keep(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    code, line = refused(main, ["--keep", str(tmp_path)])
    assert code == 2
    assert "is not empty" in line


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_the_bare_work_makes_the_frames_that_the_converter_stores(case: Case) -> None:
    (frame,) = draw_episode(0, case=case, steps=1)
    set_up_opencv()
    assert transcode(frame, case) == convert_frame(frame, FramePolicy(), channels="rgb").data


@pytest.mark.long
@pytest.mark.parametrize("source", [("lerobot", "--codec", "h264", "--cameras", "2"), ("hdf5", "--chunk", "episode")])
def test_conversion_and_bare_work_are_of_the_same_frames(
    source: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    size = ["--steps", "10", "--episodes", "2", "--size", "64", "--repeat", "1", "--num-workers", "1"]
    assert convert_files(["--kind", *source, *size, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["frames"] == (40 if source[0] == "lerobot" else 20)
    assert result["ratio"] > 0
    assert result["peak_worker_bytes"] > 1e7
