"""The example that fits a FAST tokenizer: a folder for ours and other readers, figures, and errors of one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import Vector, load_normalize, make_loader
from stream.adapters import openpi
from stream.adapters.action_tokens import FastTokens, codes_to_text, quantize
from stream.adapters.chunks import repeat_edges
from tests.fixtures.command import REPOSITORY

pytest.importorskip("scipy")
tokenizers: Any = pytest.importorskip("tokenizers")


def _fit(root: Path | str, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "examples/fit_fast.py", "--root", str(root), "--out", str(out), *more]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def fitted(frames_root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder of delta joints, and the figures that were printed."""
    out = tmp_path_factory.mktemp("fit") / "fast"
    done = _fit(
        frames_root, out, "--mixture", "droid", "--space", "joint", "--relative", "--chunks", "200", "--vocab", "400"
    )
    assert done.returncode == 0, done.stderr
    return out, done.stdout


@pytest.fixture(scope="module")
def chunks(frames_root: Path, fitted: tuple[Path, str]) -> np.ndarray:
    """Return the chunks of pi0-FAST on the same data, normalised by the file that the example wrote."""
    space: Any = {"space": "joint", "on_unknown_units": "error"}
    loader = make_loader(
        frames_root,
        "droid",
        batch_size=220,
        frames=None,
        action=Vector(16, relative_to="state", **space),
        state=Vector(**space),
        normalize=load_normalize(fitted[0] / "normalize.json"),
    )
    batch = loader.batch_at(0)
    return repeat_edges(batch["action"], batch["action_mask"])[0]


@pytest.mark.long
def test_the_folder_encodes_the_chunks_that_it_was_fitted_to(fitted: tuple[Path, str], chunks: np.ndarray) -> None:
    fast = FastTokens(fitted[0])
    assert (fast.steps, fast.dims, fast.scale, fast.vocab_size) == (16, 8, 10, 400)
    assert fast.min_token == quantize(chunks, scale=10).min()
    counts = []
    for chunk in chunks:
        tokens = fast.encode(chunk)
        counts.append(len(tokens))
        np.testing.assert_array_equal(
            quantize(fast.decode(tokens).astype(np.float64), scale=10), quantize(chunk, scale=10)
        )
    assert np.mean(counts) < chunks[0].size / 3


@pytest.mark.long
def test_statistics_are_those_of_training_on_the_same_chunks(fitted: tuple[Path, str], frames_root: Path) -> None:
    sample = openpi.sample("pi0_fast", action_horizon=16, use_delta_joint_actions=True)
    sample = replace(sample, action=replace(sample.action, space="joint"), state=Vector(space="joint"))
    trained: Any = make_loader(frames_root, "droid", batch_size=4, **sample).normalize
    written = load_normalize(fitted[0] / "normalize.json")
    assert (written.method, written.per, written.tails) == (trained.method, trained.per, trained.tails)
    for name in ("q01", "q99"):
        numbers = [getattr(item.statistics["action"]["droid"], name) for item in (written, trained)]
        np.testing.assert_array_equal(*numbers)


@pytest.mark.long
def test_any_coefficient_can_be_encoded(fitted: tuple[Path, str]) -> None:
    """Published tokenizers lose characters whose bytes their chunks lacked."""
    bpe = tokenizers.Tokenizer.from_file(str(fitted[0] / "tokenizer.json"))
    text = codes_to_text(np.arange(2_000))
    assert bpe.decode(bpe.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.long
def test_the_files_are_those_of_the_published_processor(fitted: tuple[Path, str]) -> None:
    config = json.loads((fitted[0] / "processor_config.json").read_text())
    assert config.pop("min_token") < 0
    assert config == {
        "scale": 10,
        "vocab_size": 400,
        "time_horizon": 16,
        "action_dim": 8,
        "processor_class": "UniversalActionProcessor",
        "auto_map": {
            "AutoProcessor": "physical-intelligence/fast--processing_action_tokenizer.UniversalActionProcessor"
        },
    }
    tokenizer = json.loads((fitted[0] / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert tokenizer["clean_up_tokenization_spaces"] is False


@pytest.mark.long
def test_figures_are_of_chunks_that_were_left_out(fitted: tuple[Path, str]) -> None:
    lines = fitted[1].splitlines()
    assert re.match(r"220 chunks of 16 x 8, [\d,]+ a second$", lines[0])
    assert re.match(r"400 tokens fit coefficients of -\d+ to \d+, [\d,]+ a second$", lines[1])
    assert re.match(r"[\d.]+ tokens a chunk, at most \d+, [\d.]+ values a token, [\d,]+ a second$", lines[2])
    mean, largest = map(float, re.findall(r"0\.\d+", lines[3]))
    assert 0 < mean < largest < 0.4 and lines[3].endswith(str(fitted[0]))


@pytest.mark.long
def test_what_cannot_be_fitted_is_one_line(frames_root: Path, tmp_path: Path) -> None:
    for root, more, message in (
        (tmp_path / "nowhere", (), f"error: {tmp_path}/nowhere: no such folder"),
        (frames_root, ("--mixture", "bridge,language_table"), "error: per='mixture': action of "),
    ):
        done = _fit(root, tmp_path / "out", *more)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith(message) and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
    assert "expected a whole number of at least 256" in _fit(frames_root, tmp_path, "--vocab", "200").stderr
