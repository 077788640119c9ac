"""The command, small: its figures mean nothing here, but the trainer is the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.machines import format_result, main


@pytest.mark.long
def test_a_trainer_hands_out_what_sleeping_workers_make(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--workers", "1,2", "--batch-sizes", "8", "--seconds", "1", "--shards", "29", "--threads", "1"]
    slow = ["--core-rows", "80", "--open-ms", "30"]
    assert main([*size, *slow, "--out", str(tmp_path)]) == 0
    assert "| 2 | 8 |" in capsys.readouterr().out
    result: dict[str, Any] = json.loads((tmp_path / "machines.json").read_text())
    for each in result["handed"]:
        # A worker sleeps 0.1 s for a batch of 8.
        assert 0.3 * 80 * each["workers"] < each["rows_per_s"] < 1.5 * 80 * each["workers"]
        assert each["trainer_ms"] > 0
    assert [each["open_ms"] for each in result["opened"]] == [0, 30]


def test_the_smaller_of_trainer_and_decoding_is_the_bound() -> None:
    handed = [
        {"workers": workers, "batch_size": 64, "trainer_ms": 0.32, "rows_per_s": 1.0, "open_ms": 1}
        for workers in (16, 192)
    ]
    shown = format_result(
        {"handed": handed, "opened": [], "shards": 22_127, "parameters": {"core_rows": 2000.0, "open_ms": 1.0}}
    )
    assert "| 200,000 | 32,000 | 32,000 (decoding) |" in shown
    assert "| 200,000 | 384,000 | 200,000 (trainer) |" in shown
    assert "takes a worker of one thread 22 s in all, and 64 workers make 1,416,128 openings" in shown
