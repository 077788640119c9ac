"""The benchmark of LeRobot videos and HDF5 converts the frames that the bare work reads."""

import json

import pytest

from bench.convert.files import main


@pytest.mark.long
@pytest.mark.parametrize("source", [("lerobot", "--codec", "h264", "--cameras", "2"), ("hdf5", "--chunk", "episode")])
def test_conversion_and_bare_work_are_of_the_same_frames(
    source: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    size = ["--steps", "10", "--episodes", "2", "--size", "64", "--repeat", "1", "--num-workers", "1"]
    assert main(["--kind", *source, *size, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["frames"] == (40 if source[0] == "lerobot" else 20)
    assert 0 < result["ratio"] < 10
    assert result["peak_worker_bytes"] > 1e7
