"""The command, small: its figures mean nothing here, but the trainer is the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.machines import format_result, main

NOTHING: dict[str, Any] = {"opened": [], "not_opened": "/dev/fuse cannot be opened", "shards": 22_127}


@pytest.mark.long
def test_a_trainer_hands_out_what_sleeping_workers_make(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--workers", "1,2", "--batch-sizes", "8", "--seconds", "1", "--shards", "29", "--openers", "2"]
    slow = ["--core-rows", "80", "--latency-ms", "3"]
    assert main([*size, *slow, "--out", str(tmp_path)]) == 0
    assert "| 2 | 8 |" in capsys.readouterr().out
    result: dict[str, Any] = json.loads((tmp_path / "machines.json").read_text())
    for each in result["handed"]:
        # A worker sleeps 0.1 s for a batch of 8.
        assert 0.3 * 80 * each["workers"] < each["rows_per_s"] < 1.5 * 80 * each["workers"]
        assert each["trainer_ms"] > 0
    if result["not_opened"] is not None:
        assert result["opened"] == []
        return
    ((opened, workers),) = ((each, each["requests"]["workers"]) for each in result["opened"])
    # Each worker opens a table or shard once, and the trainer a table twice: to map it, and to compare its columns.
    assert opened["requests"]["trainer"]["open"][".arrow"] == 2 * 3 * 29
    assert sorted(each["open"][".arrow"] for each in workers if "open" in each) == [3 * 29] * 2
    assert all(0 < each["open"][".arrayrecord"] <= 29 for each in workers if "open" in each)


def test_the_smaller_of_trainer_and_decoding_is_the_bound() -> None:
    handed = [{"workers": workers, "batch_size": 64, "trainer_ms": 0.32, "rows_per_s": 1.0} for workers in (16, 192)]
    shown = format_result({"handed": handed, **NOTHING, "parameters": {"core_rows": 2000.0, "latency_ms": (1,)}})
    assert "| 200,000 | 32,000 | 32,000 (decoding) |" in shown
    assert "| 200,000 | 384,000 | 200,000 (trainer) |" in shown
    assert shown.endswith("Opening was not measured: /dev/fuse cannot be opened.")


def test_a_node_of_64_workers_is_modelled_from_the_requests_of_one() -> None:
    trainer = {"lookup": {".arrow": 87, ".json": 58}, "open": {".arrow": 174, ".json": 29}, "read": {".arrow": 1300}}
    worker = {"open": {".arrow": 87, ".arrayrecord": 500}, "lookup": {".arrayrecord": 300}, "read": {".arrow": 20}}
    asked = {"trainer": trainer, "workers": [{"lookup": {"": 1}}, worker, worker]}
    opened = {"latency_ms": 5, "workers": 2, "open_s": 1.0, "first_batch_s": 2.0, "rows_per_s": 9.0, "requests": asked}
    result = {"handed": [], "opened": [opened], "not_opened": None, "shards": 22_127}
    shown = format_result({**result, "parameters": {"core_rows": 2000.0, "latency_ms": (5,)}})
    assert "| 5 | 2 | 1.0 | 2.0 | 9.0 | 145 | 203 | 1,300 | 300 | 87 | 500 | 20 | 0 |" in shown
    assert "shards once, 111 s at 5 ms for one thread. 64 workers of a node make 1,421,696 openings in all" in shown
