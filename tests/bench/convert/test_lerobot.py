"""The benchmark of LeRobot videos converts what it decodes."""

import json

import pytest

from bench.convert.lerobot import main


@pytest.mark.long
def test_conversion_and_bare_work_are_of_the_same_frames(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--codec", "h264", "--cameras", "2", "--frames", "10", "--units", "2", "--size", "64", "--repeat", "1"]
    assert main([*few, "--num-workers", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["frames"] == 40
    assert 0 < result["ratio"] < 10
    assert result["peak_worker_bytes"] > 1e7
