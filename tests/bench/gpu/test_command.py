"""The command without CUDA: the checks that the CPU can make, and figures that mean nothing here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.gpu.checks import LeftOut, check_equal, decode_plainly, loader_of, run_checks
from bench.gpu.command import GpuOptions, format_result, main
from bench.gpu.torch_checks import TorchChecks
from stream import Frames
from tests.bench.conftest import Refused


@pytest.mark.slow
def test_without_cuda_the_cpu_does_what_it_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--batch-size", "8", "--image-size", "32", "--episodes", "2", "--steps", "14", "--batches", "3"]
    out = tmp_path / "out"
    assert main([*size, "--num-workers", "1", "--step-ms", "1", "--device", "cpu", "--out", str(out)]) == 0
    result = json.loads((out / "gpu.json").read_text())
    checks = {check["name"]: check for check in result["checks"]}
    assert {check["status"] for check in checks.values()} == {"ok", "skipped"}
    skipped = {name: check["note"] for name, check in checks.items() if check["status"] == "skipped"}
    assert skipped == dict.fromkeys(
        ("torch: page-locked memory", "torch: copies beside a step"), "there is no CUDA device"
    )
    assert sum(name.startswith("jax") for name in checks) == 3
    assert len(result["figures"]) == 6
    assert all(figure["pairs_per_s"] > 0 for figure in result["figures"])
    printed = capsys.readouterr().out
    assert "these figures say nothing about a GPU" in printed
    assert [path.name for path in out.iterdir()] == ["gpu.json"]


def test_a_check_that_fails_is_told_and_ends_the_command_with_1() -> None:
    def wrong() -> str:
        raise AssertionError("frames differ")

    def left_out() -> str:
        raise LeftOut("no device")

    checks = run_checks({"a": lambda: "fine", "b": wrong, "c": left_out})
    assert [(check["status"], check["note"]) for check in checks] == [
        ("ok", "fine"),
        ("failed", "AssertionError: frames differ"),
        ("skipped", "no device"),
    ]
    parameters = {"device": "cpu", "batch_size": 8, "num_workers": 1}
    figures = [{"name": "x", "skipped": "no time"}, {"name": "y", "failed": "killed"}]
    shown = format_result({"checks": checks, "figures": figures, "parameters": parameters})
    for message in ("| b | failed | AssertionError: frames differ |", "| x | - | no time |", "| y | - | killed |"):
        assert message in shown


def test_batches_are_compared_bitwise() -> None:
    batch: dict[str, Any] = {"frames": np.zeros(4, np.uint8), "language": ["a"]}
    check_equal(batch, batch, step=0)
    for change in ({"frames": np.ones(4, np.uint8)}, {"language": ["b"]}, {"more": 1}):
        with pytest.raises(AssertionError, match="step 7"):
            check_equal({**batch, **change}, batch, step=7)


def test_pixels_of_another_camera_are_found(frames_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "420").symlink_to(frames_root)
    checks = TorchChecks(str(tmp_path), "cpu")
    frames = Frames([0], cameras=["primary", "wrist"])
    assert "from the host: mean 0.00, most 0" in checks.decoding("420", frames)

    def swapped(batch: dict[str, Any], shapes: Any) -> dict[str, np.ndarray]:
        first, second = shapes
        decoded = decode_plainly(batch, loader_of(str(tmp_path), "420", frames=frames).batch_at(0))
        return {first: decoded[second], second: decoded[first]}

    monkeypatch.setattr("stream.frameworks.torch_carriers.decode_frames", swapped)
    with pytest.raises(AssertionError, match="beyond 2"):
        checks.decoding("420", frames)


def test_a_device_that_does_not_exist_is_refused(refused: Refused) -> None:
    for device, message in (("cuda:77", "torch sees no CUDA device 77 here"), ("gpu", "expected cuda, cuda:1 or cpu")):
        code, line = refused(main, ["--device", device])
        assert code == 2 and f"found {device!r}, {message}" in line
    assert GpuOptions(num_workers=3).num_workers == 3
