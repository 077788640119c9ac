"""The command that measures how evenly workers end converts every job, and knows the best division."""

from __future__ import annotations

import json

import pytest

from bench.convert.schedule import best_division, main


def test_the_best_division_keeps_the_long_job_apart() -> None:
    assert best_division([6, 1, 1, 1, 1, 1, 1], 2) == 6
    assert best_division([2, 2, 3], 3) == 3
    assert best_division([1, 2, 3], 1) == 6


@pytest.mark.long
def test_jobs_that_wait_are_all_converted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seconds", "0.3,0.1,0.1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["best_seconds"] == pytest.approx(0.3)
    assert result["seconds"] >= 0.3
