"""The benchmark of the loader, run tiny: its figures mean nothing here, but they are complete and fit together."""

from __future__ import annotations

import json
import shutil
import signal
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.loader.command import BATCHES_FILE, OVER_TIME, RESULT_FILE, WINDOWS, main, plot_mixture
from bench.loader.parameters import Parameters, open_loader
from bench.loader.run import measure_point, plan_slices
from bench.measure.machine import slope
from tests.bench.conftest import Refused
from tests.fixtures.command import TIMEOUT, Result, run, start, wait_until

BATCH, STEPS = 8, 8
_SPLITS = "splits: {train: 'train', val: 'train[:2]'}"


@pytest.fixture(scope="module")
def folder(oxe_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted root, ``oxe``, and a mixture of two of its datasets, 3 to 1, ``two.yaml``."""
    root_folder = tmp_path_factory.mktemp("bench-loader")
    (root_folder / "oxe").symlink_to(oxe_root)
    members = f"  bridge: {{weight: 3, {_SPLITS}}}\n  kuka: {{weight: 1, {_SPLITS}}}\n"
    (root_folder / "two.yaml").write_text(f"members:\n{members}")
    return root_folder


def _arguments(folder: Path, *more: str) -> list[str]:
    size = ["--batch-size", str(BATCH), "--steps", str(STEPS), "--warmup", "2", "--limit-s", "0.1", "--repeat", "1"]
    return ["--root", str(folder / "oxe"), "--mixture", str(folder / "two.yaml"), *size, *more]


def _parameters(folder: Path, **more: Any) -> Parameters:
    size = {"batch_size": BATCH, "steps": STEPS, "warmup": 2, "limit_s": 0.0}
    return Parameters(root=str(folder / "oxe"), mixture=str(folder / "two.yaml"), **{**size, **more})


@pytest.mark.long
def test_each_value_of_a_sweep_is_a_point_with_figures_that_fit_together(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    more = ("--num-workers", "1", "--sweep", "datasets=1,2", "--json", "--out", str(out))
    done = run(*_arguments(folder, *more), module="bench.loader")
    assert (done.code, done.err) == (0, "")
    printed = json.loads(done.out)
    assert json.loads((out / RESULT_FILE).read_text()) == printed
    assert [point["point"] for point in printed["points"]] == [{"datasets": 1}, {"datasets": 2}]
    for point in printed["points"]:
        (measured,) = point["repeats"]
        rate = statistics.median(part["batches"] / part["seconds"] for part in measured["slices"])
        limit = statistics.median(part["pairs_per_s"] for part in measured["limit_slices"])
        assert measured["samples_per_s"] == pytest.approx(rate * BATCH)
        assert measured["ratio"] == pytest.approx(rate * BATCH / limit)
        assert len(measured["limit_slices"]) == len(measured["slices"]) + 1
        assert sum(part["batches"] for part in measured["slices"]) == STEPS
        assert all(sum(part["step_seconds"]) == pytest.approx(part["seconds"]) for part in measured["slices"])
    lines = [json.loads(line) for line in (out / "datasets=2" / BATCHES_FILE).read_text().splitlines()]
    assert sum(line["measured"] for line in lines) == STEPS
    assert len(lines) == measured["stats"]["batches"]
    loader = open_loader(_parameters(folder, datasets=2, num_workers=1))
    for number, line in enumerate(lines):
        counts = np.bincount(loader.rank_plan.rows_of([number]).member, minlength=2).tolist()
        assert line["step"] == number and 0 <= line["wait_s"] <= line["step_s"] + 1e-9
        assert line["rows"] == {name: n for name, n in zip(loader.dataset_names, counts, strict=True) if n}


@pytest.mark.parametrize("batches", [1, 450])
def test_plots_of_any_number_of_batches_are_written(batches: int, tmp_path: Path) -> None:
    plot_mixture(tmp_path, np.resize([[3, 1, 0], [2, 1, 1]], (batches, 3)), ["a", "b", "c"])
    for name in (OVER_TIME, WINDOWS):
        assert (tmp_path / name).with_suffix(".png").stat().st_size > 1000


@pytest.mark.long
def test_threads_are_measured_without_workers_or_limit(folder: Path) -> None:
    measured = measure_point(_parameters(folder, num_workers=0, threads=2))
    assert measured["ratio"] is None and measured["limit_slices"] == []
    assert all(part["worker_cpu_seconds"] == 0 < part["trainer_cpu_seconds"] for part in measured["slices"])
    assert measured["stats"]["per_dataset"]["bridge"] / measured["stats"]["samples"] == pytest.approx(0.75, abs=0.05)


@given(st.integers(1, 5000), st.floats(1e-4, 10), st.integers(1, 16))
def test_slices_hold_all_steps_and_whole_rounds_of_the_workers(steps: int, step_seconds: float, lanes: int) -> None:
    slices = plan_slices(steps, step_seconds=step_seconds, lanes=lanes)
    assert all(part % lanes == 0 and part > 0 for part in slices)
    assert steps <= sum(slices) < steps + slices[0]


def test_the_slope_and_its_error_are_those_of_least_squares() -> None:
    batches, pss = [0.0, 10.0, 25.0, 40.0, 70.0], [100.0, 131.0, 149.0, 190.0, 270.0]
    fit, covariance = np.polyfit(batches, pss, 1, cov=True)
    rise, error = slope(batches, pss)
    assert rise == pytest.approx(fit[0])
    assert error == pytest.approx(covariance[0, 0] ** 0.5)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--sweep", "num-worker=1,2"), "no parameter 'num-worker'; did you mean 'num_workers'"),
        (("--sweep", "vectors=all,some"), "vectors: found 'some', expected one of all, none"),
        (("--sweep", "seed=1", "--sweep", "seed=2"), "seed is swept more than once"),
        (("--steps", "0"), "argument --steps: found '0', expected a whole number of at least 1"),
        (("--datasets", "3"), "datasets=3: mixture"),
        (("--sweep", "mixture=bridge,kuku", "--split", "train"), "no mixture or dataset 'kuku'; did you mean 'kuka'"),
    ],
)
def test_what_cannot_be_measured_is_one_line_before_anything_runs(
    more: tuple[str, ...], message: str, folder: Path, refused: Refused
) -> None:
    code, line = refused(main, _arguments(folder, *more))
    assert code == 2
    assert line.startswith("error: ") and message in line


@pytest.mark.long
def test_a_point_that_fails_is_a_row_and_the_others_go_on(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("bridge", "kuka"):
        shutil.copytree(folder / "oxe" / name, tmp_path / name)
    for path in (tmp_path / "kuka").rglob("*.arrayrecord"):
        path.write_bytes(path.read_bytes()[:-100])
    more = ("--root", str(tmp_path), "--num-workers", "1", "--no-limit", "--sweep", "mixture=kuka,bridge")
    assert main(_arguments(folder, *more)) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[1].split()[:2] == ["mixture=kuka", "failed"]
    assert float(out[2].split()[1].replace(",", "")) > 0
    assert any(line.startswith("mixture=kuka failed: RecordError: ") for line in out)


@pytest.mark.long
def test_an_interrupt_ends_everything(folder: Path) -> None:
    with start(*_arguments(folder, "--steps", "1000000"), module="bench.loader") as command:
        assert wait_until(
            lambda: any("stream.worker" in process.cmdline() for process in command.processes()),
            seconds=TIMEOUT,
            poll=0.2,
        )
        command.signal(signal.SIGINT)
        assert command.wait() == Result(130, "", "interrupted\n")
        assert wait_until(lambda: command.processes() == [], seconds=TIMEOUT)
