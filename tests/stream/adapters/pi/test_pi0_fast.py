"""Sequences of pi0-FAST: openpi's text, masks and numbers of tokens, in workers, and the chunk on a robot."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, Vector, make_loader
from stream.adapters import openpi
from stream.adapters.action_tokens import FastTokens, MalformedTokens
from stream.adapters.pi0_fast import FastTokenizer, _warn_of_cuts
from tests.fixtures.trained_tokenizers import chunks_of, write_fast, write_paligemma
from tests.stream.adapters.raw import UNITS, changed, keep_units

pytest.importorskip("scipy")
pytest.importorskip("tokenizers")
sentencepiece: Any = pytest.importorskip("sentencepiece")

CHUNKS = chunks_of(300, steps=10)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a SentencePiece model and the folder of a FAST tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizers")
    return write_paligemma(folder / "paligemma.model"), write_fast(folder / "fast", CHUNKS)


@pytest.fixture
def text_model(files: tuple[Path, Path]) -> Any:
    return sentencepiece.SentencePieceProcessor(model_file=str(files[0]))


def test_a_sequence_is_task_state_and_action_with_the_loss_on_the_action(
    files: tuple[Path, Path], text_model: Any
) -> None:
    state = np.array([-1.2, -1, -0.9921875, 0, 0.999, 1, 7], np.float32)
    row = FastTokenizer(*files, max_len=120).tokenize(" Stir_the Red cup\n", state, CHUNKS[0])
    prefix = text_model.encode("Task: stir the red cup, State: -1 0 1 128 255 255 255;\n", add_bos=True)
    ids = [text_model.vocab_size() - 1 - 128 - token for token in FastTokens(files[1]).encode(CHUNKS[0])]
    suffix = [*text_model.encode("Action: "), *ids, *text_model.encode("|"), text_model.eos_id()]
    tokens, is_token, is_causal, has_loss = row
    length = len(prefix) + len(suffix)
    assert length < 120 and tokens.tolist() == [*prefix, *suffix, *[0] * (120 - length)]
    assert is_token.tolist() == [True] * length + [False] * (120 - length)
    assert has_loss.tolist() == [False] * len(prefix) + [True] * len(suffix) + [False] * (120 - length)
    assert is_causal.tolist() == has_loss.astype(int).tolist()
    assert [array.dtype.name for array in row] == ["int32", "bool", "int32", "bool"]


def test_without_actions_the_sequence_ends_before_them(files: tuple[Path, Path]) -> None:
    tokenizer, state = FastTokenizer(*files), np.zeros(7, np.float32)
    with_actions, is_causal = tokenizer.tokenize("stir", state, CHUNKS[0])[::2]
    tokens, is_token, *suffix = tokenizer.tokenize("stir", state, None)
    length = int(is_token.sum())
    assert not np.any(suffix) and length == is_causal.argmax()
    np.testing.assert_array_equal(tokens[:length], with_actions[:length])


def test_longer_sequences_are_cut_which_is_reported_once(
    files: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    _warn_of_cuts.cache_clear()
    state = np.zeros(7, np.float32)
    complete = FastTokenizer(*files).tokenize("stir", state, CHUNKS[0])
    short = FastTokenizer(*files, max_len=30)
    with caplog.at_level(logging.WARNING, "stream"):
        cut, _ = (short.tokenize("stir", state, CHUNKS[0]) for _ in range(2))
    for part, values in zip(cut, complete, strict=True):
        np.testing.assert_array_equal(part, values[:30])
    assert len(caplog.records) == 1 and "more than max_len=30 tokens" in caplog.text


def test_a_predicted_sequence_gives_the_chunk(files: tuple[Path, Path]) -> None:
    tokenizer = FastTokenizer(*files)
    for chunk in CHUNKS[:50]:
        tokens, _, is_causal, _ = tokenizer.tokenize("stir", np.zeros(7, np.float32), chunk)
        expected = tokenizer.fast.decode(tokenizer.fast.encode(chunk), steps=10, dims=7)
        for predicted in (tokens, tokens[is_causal > 0], tokens.tolist()):
            np.testing.assert_array_equal(tokenizer.extract_actions(predicted, 10, 7), expected)


def test_tokens_of_no_complete_chunk_are_an_error_not_zeros(files: tuple[Path, Path]) -> None:
    tokenizer = FastTokenizer(*files)
    tokens, is_token, is_causal, _ = tokenizer.tokenize("stir", np.zeros(7, np.float32), CHUNKS[0])
    start, end = int(is_causal.argmax()), int(is_token.sum())
    for predicted, message in (
        (tokens[:start], "no 'Action: ' in"),
        (tokens[: end - 2], r"no '\|' in"),
        (np.delete(tokens, end - 3), "coefficients; expected 10 steps x 7 dimensions"),
        (np.insert(tokens, end - 2, 5), "expected 0 to 399"),
    ):
        with pytest.raises(MalformedTokens, match=message):
            tokenizer.extract_actions(predicted, 10, 7)


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.long)])
def test_batches_have_the_sequences_of_their_rows(
    files: tuple[Path, Path], frames_root: Path, num_workers: int
) -> None:
    tokenizer = FastTokenizer(*files)
    plain, tokenized = (
        keep_units(changed(openpi.sample("pi0_fast", action_horizon=10, tokenizer=value), **UNITS))
        for value in (None, tokenizer)
    )
    arguments: Any = {"batch_size": 16, "num_steps": 2}
    batches = [*make_loader(frames_root, "droid,viola", **arguments, num_workers=num_workers, **tokenized)]
    keys = ["tokenized_prompt", "tokenized_prompt_mask", "token_ar_mask", "token_loss_mask"]
    for batch, expected in zip(batches, make_loader(frames_root, "droid,viola", **arguments, **plain), strict=True):
        assert list(batch) == [*(key for key in expected if key != "prompt"), *keys]
        rows = zip(expected["prompt"], expected["state"], expected["actions"], strict=True)
        sequences = [tokenizer.tokenize(*row) for row in rows]
        for key, arrays in zip(keys, zip(*sequences, strict=True), strict=True):
            np.testing.assert_array_equal(batch[key], arrays)
            assert batch[key].dtype == arrays[0].dtype and batch[key].shape == (16, 250)


def test_datasets_of_other_dimensions_are_an_error(files: tuple[Path, Path], frames_root: Path) -> None:
    sample = openpi.sample("pi0_fast", normalize=False, tokenizer=FastTokenizer(*files))
    sample = changed(sample, action=Vector(10), state=UNITS["state"])
    with pytest.raises(ArgumentError, match=r"action of language_table has 2 dimensions, that of viola has 8; .*"):
        make_loader(frames_root, "viola,language_table", batch_size=4, **keep_units(sample))


def test_files_that_do_not_fit_are_an_error(files: tuple[Path, Path], tmp_path: Path) -> None:
    model, fast = files
    with pytest.raises(ArgumentError, match=r"none\.model: No such file or directory; expected PaliGemma's"):
        FastTokenizer(tmp_path / "none.model", fast)
    with pytest.raises(ArgumentError, match="not a SentencePiece model"):
        FastTokenizer(fast / "tokenizer.json", fast)
    with pytest.raises(ArgumentError, match="no such file; expected a folder of a FAST tokenizer"):
        FastTokenizer(model, tmp_path)
    with pytest.raises(ArgumentError, match=r"room for \d+ action tokens, and .* has 400"):
        FastTokenizer(write_paligemma(tmp_path / "small.model", vocab_size=600), fast)
    with pytest.raises(ArgumentError, match="max_len"):
        FastTokenizer(model, fast, max_len=0)
