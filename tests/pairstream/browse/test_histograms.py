"""Histograms tell the shares of a sample of steps, with the same bins for all datasets."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from pairstream.browse import histograms
from pairstream.browse.browsed_root import BrowsedRoot
from pairstream.browse.drawing import draw_comparison
from pairstream.browse.histograms import compare, sample_rows
from stream import make_loader
from stream.base.errors import FormatError


def test_shares_are_those_of_the_values_between_the_same_ends(opened: BrowsedRoot) -> None:
    comparison = compare(opened, ("bridge", "train"), list(opened.names), "action_oxe", "raw")
    assert next(iter(comparison.rows)) == "bridge"
    for name, row in comparison.rows.items():
        values = opened.index(name, "train").steps.array("action_oxe")
        for dim, histogram in enumerate(row):
            if histogram is None:
                continue
            first, ends = comparison.rows["bridge"][dim], (histogram.low, histogram.high)
            finite = values[np.isfinite(values[:, dim]), dim].astype(np.float64)
            counts, _ = np.histogram(np.clip(finite, *ends), histograms.BINS, ends)
            assert first is None or ends == (first.low, first.high)
            assert np.allclose(histogram.shares, counts / len(finite))
            assert histogram.nonfinite == len(values) - len(finite)


def test_normalised_values_are_those_of_the_loader(opened: BrowsedRoot, oxe_root: Path) -> None:
    loader = make_loader(oxe_root, "bridge", batch_size=64, split="train", normalize="q01_q99", action=1)
    batch = loader.batch_at(0)
    comparison = compare(opened, ("bridge", "train"), [], "action", "normalised").rows["bridge"]
    for dim, histogram in enumerate(comparison):
        values = batch["action"][:, 0, dim]
        assert histogram is not None and histogram.most - histogram.least <= 2.001
        assert histogram.least - 1e-6 <= values.min() and values.max() <= histogram.most + 1e-6


def test_a_large_table_is_sampled_in_runs_of_neighbours() -> None:
    rows = sample_rows(60_000_000)
    assert len(np.unique(rows)) == len(rows) == 16_384
    assert (rows[0], rows[-1]) == (0, 59_999_999)
    assert len(np.unique(rows // 256)) <= 2 * 64


def test_a_drawing_escapes_names(opened: BrowsedRoot) -> None:
    comparison = compare(opened, ("bridge", "train"), [], "action", "raw")
    odd = histograms.Comparison(("<script>",), {"<b>": comparison.rows["bridge"][:1]}, comparison.sampled)
    assert "<script>" not in draw_comparison(odd)
    assert "<b>" not in draw_comparison(odd)


def test_a_damaged_dataset_does_not_hide_the_others(oxe_root: Path, tmp_path: Path) -> None:
    for name in ("bridge", "kuka"):
        shutil.copytree(oxe_root / name, tmp_path / "root" / name)
    (steps,) = (tmp_path / "root" / "kuka").glob("*/train/steps.arrow")
    steps.write_bytes(steps.read_bytes()[:1000])
    damaged = BrowsedRoot(tmp_path / "root", marks=tmp_path / "marks.json")
    assert list(compare(damaged, ("bridge", "train"), ["kuka"], "action_oxe", "raw").rows) == ["bridge"]
    with pytest.raises(FormatError):
        compare(damaged, ("kuka", "train"), ["bridge"], "action_oxe", "raw")
