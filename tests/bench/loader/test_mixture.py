"""What is said of a run's mixture, against counts made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.loader.mixture import OVER_TIME, WINDOWS, format_mixture, plot_mixture, summarise_mixture

COMPOSITION = np.array([[3, 1, 0], [2, 1, 1], [1, 3, 0], [2, 2, 0]])
COSTS = [{"decode_ms": 1.0, "bytes": 10e3}, {"decode_ms": 3.0, "bytes": 30e3}, {"decode_ms": 2.0, "bytes": 20e3}]


def test_the_summary_counts_what_is_there() -> None:
    summary = summarise_mixture(COMPOSITION, ["a", "b", "c"], [0.5, 0.375, 0.125], COSTS)
    assert (summary["batches"], summary["rows"]) == (4, 16)
    assert summary["unique"] == {"least": 2, "mean": 2.25, "most": 3}
    assert summary["dominant"] == {"a": 3, "b": 1}
    assert summary["switch_rate"] == pytest.approx(2 / 3)
    assert summary["shares"] == {"a": 0.5, "b": 7 / 16, "c": 1 / 16}
    assert sum(summary["shares"].values()) == pytest.approx(1)
    assert abs(summary["deviation"]["share"]) == pytest.approx(1 / 16)
    # After the second batch c has 1 of 8 * 0.125, a 5 of 4; after the fourth b has 7 of 6.
    assert summary["rows_off"] == pytest.approx(1.0)
    assert list(summary["costs"]) == ["b", "c", "a"]


def test_the_text_ranks_the_slowest_first() -> None:
    text = format_mixture(summarise_mixture(COMPOSITION, ["a", "b", "c"], [0.5, 0.375, 0.125], COSTS))
    assert "dominant dataset switches in 66.7% of the batches" in text
    assert [line.split()[0] for line in text.splitlines()[-3:]] == ["b", "c", "a"]


@pytest.mark.parametrize("batches", [1, 4, 450])
def test_plots_of_any_length_are_written(batches: int, tmp_path: Path) -> None:
    plot_mixture(tmp_path, np.resize(COMPOSITION, (batches, 3)) + 1, ["a", "b", "c"])
    for name in (OVER_TIME, WINDOWS):
        assert (tmp_path / name).stat().st_size > 1000
        assert (tmp_path / name).with_suffix(".png").stat().st_size > 1000
