"""FAST's tokens of chunks: the DCT by its definition, round trips, and tokens that are no chunk."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream import ArgumentError, StreamError
from stream.adapters.action_tokens import FastTokens, MalformedTokens, quantize
from tests.fixtures.trained_tokenizers import chunks_of, dct_by_sums, write_fast

pytest.importorskip("scipy")
tokenizers: Any = pytest.importorskip("tokenizers")

CHUNKS = chunks_of(400)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fast(tmp_path_factory.mktemp("fast"), CHUNKS)


def test_coefficients_are_those_of_the_orthonormal_dct_over_time_frequency_by_frequency() -> None:
    chunk = np.array([[-1, 0.5], [-0.5, 0.5], [0.25, 0.5], [1, 0.5]])
    assert quantize(chunk, scale=10).ravel().tolist() == [-1, 10, -15, 0, 1, 0, -1, 0]
    chunks = chunks_of(50, steps=13, dims=5, seed=1)
    np.testing.assert_array_equal(quantize(chunks, scale=10), [dct_by_sums(chunk) for chunk in chunks])


def test_tokens_are_those_of_the_text_of_the_coefficients(folder: Path) -> None:
    fast = FastTokens(folder)
    bpe = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for chunk in chunks_of(50, seed=2) * np.float32(0.8):
        codes = np.maximum(dct_by_sums(chunk) - fast.min_token, 0)
        assert fast.encode(chunk) == bpe.encode("".join(map(chr, codes.ravel()))).ids


def test_each_coefficient_of_a_decoded_chunk_is_within_half_a_step(folder: Path) -> None:
    fast = FastTokens(folder / "tokenizer.json")
    for chunk in CHUNKS[:50]:
        decoded = fast.decode(fast.encode(chunk), steps=16, dims=7)
        assert (decoded.shape, decoded.dtype.name) == ((16, 7), "float32")
        np.testing.assert_array_equal(quantize(decoded.astype(np.float64), scale=10), dct_by_sums(chunk))


def test_lower_coefficients_than_those_of_the_fit_are_clipped(folder: Path) -> None:
    fast = FastTokens(folder)
    decoded = fast.decode(fast.encode(np.full((16, 7), -20.0)), steps=16, dims=7)
    assert set(quantize(decoded.astype(np.float64), scale=10)[0].tolist()) == {fast.min_token}


def test_steps_and_dims_are_those_of_the_call_or_the_folder(folder: Path, tmp_path: Path) -> None:
    ids = FastTokens(folder).encode(CHUNKS[0])
    with pytest.raises(ArgumentError, match="steps=None, dims=None; expected those of the encoded chunk"):
        FastTokens(folder).decode(ids)
    fitted = FastTokens(write_fast(tmp_path, CHUNKS, time_horizon=16, action_dim=7))
    assert fitted.decode(ids).shape == (16, 7)
    assert fitted.decode(ids, steps=8, dims=14).shape == (8, 14)


def test_tokens_of_no_chunk_are_an_error_with_what_they_are(folder: Path) -> None:
    fast = FastTokens(folder)
    bpe = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = fast.encode(CHUNKS[0])
    single = bpe.token_to_id(chr(-fast.min_token))
    assert issubclass(MalformedTokens, StreamError)
    for tokens, dims, message in (
        ([*ids, single], 7, "113 coefficients; expected 16 steps x 7 dimensions"),
        (ids, 8, "112 coefficients; expected 16 steps x 8 dimensions"),
        ([], 7, "0 coefficients"),
        ([*ids, fast.vocab_size], 7, f"token {fast.vocab_size} of {len(ids) + 1}; expected 0 to 399"),
        ([-1, *ids], 7, "token -1"),
    ):
        with pytest.raises(MalformedTokens, match=message):
            fast.decode(tokens, steps=16, dims=dims)


def test_bytes_that_are_no_character_are_not_taken_for_a_coefficient(tmp_path: Path) -> None:
    """FAST's own code takes the replacement character, U+FFFD, for a coefficient of 6,550."""
    chunks = chunks_of(400) * 4
    fast = FastTokens(write_fast(tmp_path, chunks))
    bpe = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    lead, single = bpe.token_to_id("Ã"), bpe.token_to_id("A")
    with pytest.raises(MalformedTokens, match="4 coefficients, of which 1 are invalid"):
        fast.decode([single, lead, single, single], steps=2, dims=2)


@pytest.mark.parametrize("value", [np.nan, np.inf, 2e6])
def test_values_that_are_not_normalised_are_an_error(folder: Path, value: float) -> None:
    chunk = CHUNKS[0].copy()
    chunk[3, 2] = value
    with pytest.raises(ArgumentError, match="FAST takes normalised values, about -1 to 1"):
        FastTokens(folder).encode(chunk)


def test_workers_get_the_tokenizer_itself(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    fast = FastTokens(tmp_path / "copy")
    sent = pickle.dumps(fast)
    shutil.rmtree(tmp_path / "copy")
    assert pickle.loads(sent).encode(CHUNKS[0]) == fast.encode(CHUNKS[0])


def test_folders_of_both_versions_of_transformers_are_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bpe_tokenizer").mkdir()
    shutil.copy(folder / "tokenizer.json", tmp_path / "bpe_tokenizer")
    shutil.copy(folder / "processor_config.json", tmp_path)
    assert FastTokens(tmp_path).encode(CHUNKS[0]) == FastTokens(folder).encode(CHUNKS[0])


def test_what_is_no_folder_of_a_tokenizer_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"processor_config\.json: no such file; expected a folder of a FAST"):
        FastTokens(tmp_path)
    config = tmp_path / "processor_config.json"
    for content, message in (
        ("{", "cannot be read as JSON"),
        ("[]", "scale is \\[\\]"),
        (json.dumps({"min_token": "low"}), "min_token is 'low'"),
        ("{}", "tokenizer.json: not a tokenizer"),
    ):
        config.write_text(content)
        with pytest.raises(ArgumentError, match=message):
            FastTokens(tmp_path)
