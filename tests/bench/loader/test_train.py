"""The training benchmark, run tiny: its figures mean nothing here, but they fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.loader.train import RESULT_FILE, TrainParameters, main
from bench.loader.train_run import measure
from tests.bench.conftest import Refused

STEPS = 6


def _arguments(root: Path, *more: str) -> list[str]:
    size = ["--batch-size", "8", "--steps", str(STEPS), "--warmup", "2", "--repeat", "1", "--num-workers", "1"]
    splits = ["--split", "train[:75%]", "--val-split", "train[75%:]"]
    return ["--root", str(root), "--mixture", "bridge", *splits, *size, *more]


@pytest.mark.long
def test_a_sweep_of_step_times_gives_a_row_each(
    oxe_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--sweep", "step-ms=20,60", "--val-every", "3", "--val-steps", "2", "--json", "--out", str(tmp_path / "o"))
    assert main(_arguments(oxe_root, *more)) == 0
    printed = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "o" / RESULT_FILE).read_text()) == printed
    assert [point["point"] for point in printed["points"]] == [{"step_ms": 20.0}, {"step_ms": 60.0}]
    for point, least in zip(printed["points"], (20.0, 60.0), strict=True):
        figures: dict[str, Any] = point["median"]
        step, validation = figures["step_ms"], figures["validation"]
        assert least <= step["p50"] <= step["p90"] <= step["p99"] <= step["max"]
        assert figures["steps"] == STEPS and validation["count"] == 2
        assert figures["samples_per_s"] * step["mean"] == pytest.approx(8000)
        assert 0 <= figures["wait_share"] < 1 and least <= figures["alone_ms"]
        assert figures["alone_ms"] + figures["beyond_ms"] == pytest.approx(step["mean"])
        assert validation["first_batch_s"] + least / 1000 <= validation["seconds"]


def test_frames_may_be_decoded_by_the_trainer(oxe_root: Path) -> None:
    settings = {"root": str(oxe_root), "mixture": "bridge", "batch_size": 8, "steps": 3, "warmup": 1, "step_ms": 1.0}
    figures = measure(TrainParameters(**settings, val_every=0, num_workers=1, decode="device"))  # type: ignore[arg-type]
    assert figures["steps"] == 3


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--val-split", "train[99%:]"), "train[99%:]"),
        (("--mixture", "brigde"), "did you mean 'bridge'?"),
        (("--sweep", "stepms=1"), "no parameter 'stepms'; did you mean 'step_ms'"),
        (("--device", "cuda:77"), "cuda"),
        (("--decode", "gpu"), "argument --decode: found 'gpu', expected one of host, device"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    more: tuple[str, ...], message: str, oxe_root: Path, refused: Refused
) -> None:
    code, line = refused(main, _arguments(oxe_root, *more))
    assert code == 2
    assert message in line
