"""Small tokenizers of actions and of text, trained in a second, in the formats of the published ones."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def chunks_of(count: int, *, steps: int = 16, dims: int = 7, seed: int = 0) -> np.ndarray:
    """Return smooth chunks about -1 to 1, float32 [count, steps, dims]."""
    steps_of_walk = np.random.default_rng(seed).normal(scale=0.1, size=(count, steps, dims))
    return steps_of_walk.cumsum(axis=1).astype(np.float32)


def dct_by_sums(chunk: np.ndarray, *, scale: float = 10) -> np.ndarray:
    """Return the rounded coefficients of a chunk by the definition of the orthonormal DCT, int [H, D]."""
    steps = len(chunk)
    time, frequency = np.arange(steps) + 0.5, np.arange(steps)[:, None]
    waves = np.cos(np.pi * frequency * time / steps) * np.sqrt(2 / steps)
    waves[0] /= np.sqrt(2)
    return np.around(waves @ chunk.astype(np.float64) * scale).astype(int)


def write_fast(folder: Path, chunks: np.ndarray, *, vocab_size: int = 400, **config: Any) -> Path:
    """Fit a FAST tokenizer as its own processor does, with the coefficients of the chunks as alphabet."""
    from tokenizers import ByteLevelBPETokenizer, trainers

    coefficients = [dct_by_sums(chunk) for chunk in chunks]
    least, largest = int(np.min(coefficients)), int(np.max(coefficients))
    alphabet = [chr(code) for code in range(largest - least + 1)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, initial_alphabet=alphabet, max_token_length=10_000, show_progress=False
    )
    bpe = ByteLevelBPETokenizer()._tokenizer
    texts = ("".join(chr(code - least) for code in values.ravel()) for values in coefficients)
    bpe.train_from_iterator(texts, trainer=trainer)
    folder.mkdir(parents=True, exist_ok=True)
    bpe.save(str(folder / "tokenizer.json"))
    defaults = {"scale": 10, "min_token": least, "vocab_size": vocab_size, "action_dim": None, "time_horizon": None}
    (folder / "processor_config.json").write_text(json.dumps(defaults | config))
    return folder


def write_paligemma(path: Path, texts: Sequence[str] = (), *, vocab_size: int = 1500) -> Path:
    """Train a SentencePiece model with the settings of PaliGemma's on random words and some texts; return its path."""
    import sentencepiece

    draw = np.random.default_rng(0)
    letters = np.array([*"abcdefghijklmnopqrstuvwxyzATS"])
    words = ["".join(draw.choice(letters, size)) for size in draw.integers(2, 9, 4000)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*texts, *words, *map(str, range(256)), "Task: , State: ;\n"]),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        split_digits=True,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        # The marks are at the front, as the last tokens of the model are those of actions.
        user_defined_symbols=["Action", ":", " ", "|"],
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())
    return path
